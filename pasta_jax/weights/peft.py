"""Adapters in PEFT's layout: the names and shapes of its tensors, and its config.

PEFT knows one pair per matrix of the model's files. Our pair of a fused kernel becomes several that share `lora_A`. The
factor alpha / rank is inside `lora_A`, so PEFT's own factor is 1. The tags' rows are its `trainable_token_indices`.
"""

from typing import Any

import numpy as np

from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import PARTS, Params, join_kernel, plain_shapes, split_kernel
from pasta_jax.weights import families
from pasta_jax.weights.families import TRANSFORMERS

_PREFIX = "base_model.model."


def tensors(adapter: Params, config: TransformerConfig) -> dict[str, np.ndarray]:
    """The file's tensors, from an unrolled adapter on the host."""
    flat = {}
    for l, layer in enumerate(adapter["layers"]):
        for target, pair in layer.items():
            for plain, b in split_kernel(target, pair["lora_b"], config).items():
                a_name, b_name = _names(config, l, plain)
                flat |= {a_name: pair["lora_a"], b_name: b}
    return flat | {_rows_name(config, table): rows for table, rows in adapter["tag_rows"].items()}


def adapter(flat: dict[str, np.ndarray], config: TransformerConfig, targets: tuple[str, ...]) -> Params:
    """The unrolled adapter in a file's tensors, whose names and shapes are those of `shapes`."""

    def pair(l: int, target: str) -> Params:
        names = {plain: _names(config, l, plain) for plain in PARTS[target]}
        a = flat[names[PARTS[target][0]][0]]
        return {"lora_a": a, "lora_b": join_kernel(target, {plain: flat[b] for plain, (_, b) in names.items()}, config)}

    rows = {table: flat[_rows_name(config, table)] for table in ("embed", "head") if _rows_name(config, table) in flat}
    return {
        "layers": tuple({target: pair(l, target) for target in targets} for l in range(config.layers)),
        "tag_rows": rows,
    }


def shapes(config: TransformerConfig, rank: int, targets: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file."""
    expected: dict[str, tuple[int, ...]] = {}
    matrices = plain_shapes(config)
    for l in range(config.layers):
        for plain in (plain for target in targets for plain in PARTS[target]):
            (outputs, inputs), (a_name, b_name) = matrices[plain], _names(config, l, plain)
            expected |= {a_name: (rank, inputs), b_name: (outputs, rank)}
    tables = ("embed",) if config.tied_head else ("embed", "head")
    return expected | {_rows_name(config, table): (NUM_TAGS, config.embed) for table in tables}


def unequal_copies(
    flat: dict[str, np.ndarray], config: TransformerConfig, targets: tuple[str, ...]
) -> tuple[str, str] | None:
    """Two tensors that must be equal, because our fused kernel has one pair, and are not; None if there are none."""
    for l in range(config.layers):
        for target in targets:
            first, *others = (_names(config, l, plain)[0] for plain in PARTS[target])
            for other in others:
                if not np.array_equal(flat[first], flat[other]):
                    return first, other
    return None


def config_json(
    config: TransformerConfig, tags: TagIds, rank: int, targets: tuple[str, ...], base: str
) -> dict[str, Any]:
    """adapter_config.json."""
    ids = list(range(tags.base, tags.end))
    tables = ("embed",) if config.tied_head else ("embed", "head")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": [_module(config, plain, 0).rpartition(".")[2] for name in targets for plain in PARTS[name]],
        # A tied head follows the embedding.
        "trainable_token_indices": {_module(config, table).rpartition(".")[2]: ids for table in tables},
    }


def _module(config: TransformerConfig, plain: str, layer: int | None = None) -> str:
    return families.of_config(config).tensor(TRANSFORMERS, plain, layer).removesuffix(".weight")


def _names(config: TransformerConfig, layer: int, plain: str) -> tuple[str, str]:
    """The names of a matrix's two tensors."""
    module = _PREFIX + _module(config, plain, layer)
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _rows_name(config: TransformerConfig, table: str) -> str:
    return f"{_PREFIX}{_module(config, table)}.token_adapter.trainable_tokens_delta"
