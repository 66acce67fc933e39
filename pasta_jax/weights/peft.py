"""Adapters in PEFT's layout: the names and shapes of its tensors, and its config.

PEFT knows one pair per matrix of the model's files. Our pair of a fused kernel becomes several that share `lora_A`. The
factor alpha / rank is inside `lora_A`, so PEFT's own factor is 1. The tags' rows are its `trainable_token_indices`.
"""

from typing import Any

import numpy as np

from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params, join_kernel, parts_of, plain_shapes, split_kernel
from pasta_jax.weights import families
from pasta_jax.weights.family import TRANSFORMERS

_PREFIX = "base_model.model."


def tensors(adapter: Params, config: TransformerConfig) -> dict[str, np.ndarray]:
    """The file's tensors, from an unrolled adapter on the host."""
    flat, family = {}, families.of_config(config)
    for l, layer in enumerate(adapter["layers"]):
        for target, pair in layer.items():
            b_of = family.stored(TRANSFORMERS, split_kernel(target, pair["lora_b"], config.of_layer(l)))
            for tensor, b in b_of.items():
                a_name, b_name = _names(config, l, tensor)
                flat |= {a_name: pair["lora_a"], b_name: b}
    return flat | {_rows_name(config, table): rows for table, rows in adapter["tag_rows"].items()}


def adapter(flat: dict[str, np.ndarray], config: TransformerConfig, targets: tuple[str, ...]) -> Params:
    """The unrolled adapter in a file's tensors, whose names and shapes are those of `shapes`."""

    def pair(l: int, target: str) -> Params:
        found, c = {}, config.of_layer(l)
        matrices = plain_shapes(c)
        for tensor, parts in _tensors(config, (target,), l):
            a_name, b_name = _names(config, l, tensor)
            rows = np.cumsum([matrices[part][0] for part in parts])
            found |= zip(parts, np.split(flat[b_name], rows[:-1]), strict=True)
        return {"lora_a": flat[a_name], "lora_b": join_kernel(target, found, c)}

    rows = {table: flat[_rows_name(config, table)] for table in ("embed", "head") if _rows_name(config, table) in flat}
    return {
        "layers": tuple({target: pair(l, target) for target in targets} for l in range(config.layers)),
        "tag_rows": rows,
    }


def shapes(config: TransformerConfig, rank: int, targets: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file."""
    expected: dict[str, tuple[int, ...]] = {}
    for l in range(config.layers):
        matrices = plain_shapes(config.of_layer(l))
        for tensor, parts in _tensors(config, targets, l):
            outputs, inputs = sum(matrices[part][0] for part in parts), matrices[parts[0]][1]
            a_name, b_name = _names(config, l, tensor)
            expected |= {a_name: (rank, inputs), b_name: (outputs, rank)}
    tables = ("embed",) if config.tied_head else ("embed", "head")
    return expected | {_rows_name(config, table): (NUM_TAGS, config.embed) for table in tables}


def unequal_copies(
    flat: dict[str, np.ndarray], config: TransformerConfig, targets: tuple[str, ...]
) -> tuple[str, str] | None:
    """Two tensors that must be equal, because our fused kernel has one pair, and are not; None if there are none."""
    for l in range(config.layers):
        for target in targets:
            first, *others = (_names(config, l, tensor)[0] for tensor, _ in _tensors(config, (target,), l))
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
        "target_modules": [_module(config, name, 0).rpartition(".")[2] for name, _ in _tensors(config, targets, 0)],
        # A tied head follows the embedding.
        "trainable_token_indices": {_module(config, table).rpartition(".")[2]: ids for table in tables},
    }


def _tensors(config: TransformerConfig, targets: tuple[str, ...], layer: int) -> list[tuple[str, tuple[str, ...]]]:
    """The files' tensors of our kernels in a layer, and the matrices in each."""
    family, c = families.of_config(config), config.of_layer(layer)
    return [pair for target in targets for pair in family.tensors(TRANSFORMERS, parts_of(target, c)).items()]


def _module(config: TransformerConfig, plain: str, layer: int | None = None) -> str:
    return families.of_config(config).tensor(TRANSFORMERS, plain, layer).removesuffix(".weight")


def _names(config: TransformerConfig, layer: int, plain: str) -> tuple[str, str]:
    """The names of a matrix's two tensors."""
    module = _PREFIX + _module(config, plain, layer)
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _rows_name(config: TransformerConfig, table: str) -> str:
    return f"{_PREFIX}{_module(config, table)}.token_adapter.trainable_tokens_delta"
