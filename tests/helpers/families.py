"""Every family of models, tiny and with all its features switched on, and its comparisons with other programs.

Each comparison returns the largest difference. `python -m tests.families` prints the table of dev/log/families.md.
"""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.lang.structure import PREDICTED, structure, visible_matrix
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from pasta_jax.models.rope import Rope, Yarn
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import config_file, families, huggingface
from pasta_jax.weights.config_file import config_to_json
from pasta_jax.weights.family import GGUF, TRANSFORMERS
from pasta_jax.weights.for_cpu import in_panels
from pasta_jax.weights.lazy import params_of, read_now
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.gguf_models import gguf_bytes
from tests.helpers.loading import load_model
from tests.helpers.models import random_params, trained
from tests.helpers.replays import replay

TOKENIZER = ByteTokenizer()
TOY = dataclasses.replace(PRESETS["toy"], query_scalar=12)
_PLAIN = dataclasses.replace(
    TOY, scaled_embed=False, post_norms=False, qk_norm=False, window=None, global_every=1, local_rope=None,
    attention_cap=None, logit_cap=None, query_scalar=None, activation="silu", tied_head=False, rope=Rope(1e6),
)  # fmt: skip
_YARN = Rope(500_000.0, yarn=Yarn(8.0, 64), amplitude=1.2)
_OLMO2 = dataclasses.replace(_PLAIN, pre_norms=False, post_norms=True, qk_norm=True, whole_qk_norm=True)
_BIASED = dict(qkv_bias=True, out_bias=True)
# Caps: transformers applies those of Gemma 2 in Gemma 2 only.
VARIANTS = {
    "llama": dataclasses.replace(_PLAIN, rope=Rope(500_000.0, llama3=(8.0, 1.0, 4.0, 64)), mlp_bias=True, **_BIASED),
    "mistral": dataclasses.replace(_PLAIN, window=16, global_every=4),
    "ministral": dataclasses.replace(_PLAIN, window=16, global_every=3),
    "ministral3": dataclasses.replace(_PLAIN, rope=Rope(1e6, yarn=Yarn(16.0, 2048))),
    "qwen2": dataclasses.replace(_PLAIN, qkv_bias=True),
    "qwen3": dataclasses.replace(_PLAIN, qk_norm=True, rope=Rope(1e6, yarn=Yarn(4.0, 64), amplitude=1.1), **_BIASED),
    "qwen3_moe": dataclasses.replace(
        _PLAIN, qk_norm=True, experts=6, active_experts=3, ff=24, shares_of_all=True, **_BIASED
    ),
    "olmoe": dataclasses.replace(
        _PLAIN, qk_norm=True, whole_qk_norm=True, experts=6, active_experts=3, ff=24, shares_of_all=True, **_BIASED
    ),
    "gpt_oss": dataclasses.replace(
        _PLAIN, experts=6, active_experts=3, router_bias=True, mlp_bias=True, gate_limit=1.5, gate_slope=1.3,
        sinks=True, window=16, global_every=2, **_BIASED,
        rope=Rope(150_000.0, yarn=Yarn(8.0, 64, whole=False), amplitude=1.2),
    ),
    "smollm3": dataclasses.replace(_PLAIN, tied_head=True, nope_every=2, mlp_bias=True, **_BIASED),
    "granite": dataclasses.replace(
        _PLAIN, embed_scale=12.0, residual_scale=0.25, attention_scale=0.125, logit_divisor=0.5, **_BIASED
    ),
    "olmo2": dataclasses.replace(_OLMO2, **_BIASED),
    "olmo3": dataclasses.replace(_OLMO2, rope=_YARN, local_rope=Rope(500_000.0), window=16, global_every=3, **_BIASED),
    "phi3": dataclasses.replace(
        _PLAIN, rope=Rope(1e4, divisors=(1.0, 1.5, 4.0), amplitude=1.25, share=0.75), window=16, global_every=4
    ),
    "gemma": dataclasses.replace(
        TOY, post_norms=False, qk_norm=False, window=None, global_every=1, local_rope=None,
        attention_cap=None, logit_cap=None, query_scalar=None,
    ),
    "gemma2": dataclasses.replace(TOY, qk_norm=False, global_every=2, local_rope=None),
    "gemma3_text": dataclasses.replace(TOY, attention_cap=None, logit_cap=None),
    "gemma4_text": dataclasses.replace(
        TOY, layers=6, attention_cap=None, query_scalar=None, attention_scale=1.0, value_norm=True, global_head_dim=16,
        shared_layers=3, wide_shared=True, layer_embed=4, layer_scales=True, rope=Rope(1e6, share=0.25, of_pairs=True),
    ),
}  # fmt: skip
VARIANTS = {kind: dataclasses.replace(config, family=kind) for kind, config in VARIANTS.items()}
_UNBIASED = dict(qkv_bias=False, out_bias=False, mlp_bias=False)
# What GGUF files of a family say, where they can't say all of the above.
IN_GGUF = {
    "llama": {"rope": Rope(500_000.0, llama3=(8.0, 1.0, 4.0, 8192))},
    "qwen2": {},
    "qwen3": {"rope": Rope(1e4, yarn=Yarn(4.0, 64), amplitude=1 + 0.1 * math.log(4.0)), **_UNBIASED},
    "qwen3_moe": {"shares_of_all": False, "qkv_bias": False, "out_bias": False},
    "olmoe": {"kv_heads": 4, "qkv_bias": False, "out_bias": False},  # llama.cpp takes keys to be as wide as queries
    # llama.cpp blends positions between whole pairs: here, both ends are where that's the same.
    "gpt_oss": {
        "gate_limit": 7.0,
        "gate_slope": 1.702,
        "rope": Rope(7.0, yarn=Yarn(8.0, 200, whole=False), amplitude=1 + 0.1 * math.log(8.0)),
    },
    "smollm3": {"nope_every": 4, "layers": 5, **_UNBIASED},
    "granite": {},
    "olmo2": _UNBIASED,
    "phi3": {"window": None, "global_every": 1},  # llama.cpp disregards its window
    "gemma": {},
    "gemma2": {"query_scalar": None},
    "gemma3_text": {"query_scalar": None, "global_every": 6, "local_rope": Rope(10_000.0)},
    "gemma4_text": {},
    "olmo3": {
        "layers": 4,
        "global_every": 4,
        "rope": Rope(500_000.0, yarn=Yarn(8.0, 64), amplitude=1 + 0.1 * math.log(8.0)),
        **_UNBIASED,
    },
    "ministral3": {"context": 2048},
}


def read(folder: Path):
    """Parameters, configuration and record of a folder."""
    family, config, record = config_file.read_config(folder)
    files = huggingface.Files(folder)
    return read_now(params_of(files, TRANSFORMERS, family, config, config.vocab)), config, record


LENGTH = 107  # odd, so that our kernels' last groups of rows are not whole


def our_logits(params, config, ids, position=None, see=None):
    """Logits [T, V] of a sequence, causal by default; padded at the end with what nobody sees, to compile one shape."""
    count = len(ids)
    seen, place = np.eye(LENGTH, dtype=bool), np.arange(LENGTH)
    seen[:count, :count] = np.tri(count, dtype=bool) if see is None else see
    if position is not None:
        place[:count] = position
    tokens = np.pad(ids, (0, LENGTH - count))
    return np.asarray(_forward(params, config, tokens[None], place[None], seen[None])[0, :count])


_forward = jax.jit(transformer.forward, static_argnums=1)


def _theirs(folder: Path, **options):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, **options)


def _their_logits(model, ids, position=None, see=None, window: int | None = None):
    import torch

    more = {}
    if see is not None:
        distance = position[:, None] - position[None, :]
        near = see if window is None else see & (distance < window)
        masks = [torch.where(torch.tensor(one), 0.0, torch.finfo(torch.float32).min)[None, None] for one in (see, near)]
        types = set(getattr(model.config, "layer_types", None) or ())
        by_type = dict(zip(("full_attention", "sliding_attention"), masks, strict=True))
        takes_dict = model.config.model_type not in (
            "llama",
            "mistral",
            "ministral3",
            "granite",
            "olmo2",
            "gemma",
            "phi3",
            "qwen3_moe",
            "olmoe",
        )
        more["attention_mask"] = by_type if takes_dict else masks[window is not None]
        assert takes_dict or len(types) < 2
        more["position_ids"] = torch.tensor(position)[None]
    with torch.no_grad():
        return model(torch.tensor(ids)[None], **more).logits[0].numpy()


def random_theirs(kind: str, folder: Path):
    """A random model of a family as transformers makes and writes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = config_to_json(VARIANTS[kind], None)
    raw["model_type"] = kind
    raw["rope_parameters"] |= {"llama_4_scaling_beta": 0.1} if kind == "ministral3" else {}
    for name in ("architectures", "rope_theta", "rope_scaling"):
        raw.pop(name, None)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(raw.pop("model_type"), **raw), attn_implementation="eager"
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model.eval()


PROMPT = 10  # tokens


def program() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A program that forks twice and joins: ids, positions, and who sees whom."""
    tags, text = TOKENIZER.tags, itertools.cycle(range(97, 123))
    prompt = [TOKENIZER.bos, *itertools.islice(text, PROMPT - 1)]

    def some(count: int) -> list[int]:
        return list(itertools.islice(text, count))

    response: list[int] = []
    for _ in range(2):
        for tens in (1, 3):
            close = tags.close(tens)
            response += [*some(5), tags.promise, *some(2), close, tags.async_, *some(8), tags.end_async]
        response += [*some(3), tags.sync, *some(4)]
    ids = np.array(prompt + response)
    linear = structure(ids, tags, len(prompt), TOKENIZER.end_of_turn, PREDICTED, ended=False)
    return ids, linear.position, visible_matrix(linear)


def _ids(config) -> np.ndarray:
    return np.random.default_rng(0).integers(0, config.vocab, 40)


def folder_in(kind: str, folder: Path) -> float:
    """A folder that transformers wrote, causal and as a forked program: logits."""
    theirs = random_theirs(kind, folder)
    params, config, _ = read(folder)
    ids = _ids(config)
    causal = np.abs(our_logits(params, config, ids) - _their_logits(theirs, ids)).max()
    ids, position, see = program()
    forked = our_logits(params, config, ids, position, see)
    forked = np.abs(forked - _their_logits(theirs, ids, position, see, config.window)).max()
    return float(np.maximum(causal, forked))


def adapter(kind: str, folder: Path) -> float:
    """An export that transformers loads, and an adapter on it that peft loads: logits."""
    from peft import PeftModel

    config = VARIANTS[kind]
    params = random_params(config, seed=1)
    base = Model("toy", config, params, TOKENIZER)
    settings = lora.AdapterSettings(
        rank=3, alpha=6.0, targets=("qkv", "out") if config.experts else lora.AdapterSettings().targets
    )
    pairs = trained(lora.new_adapter(params, settings, TOKENIZER.tags, seed=0), seed=2)
    lora.save_adapter(folder / "adapter", pairs, base, lora.describe(base, settings, PREDICTED))
    huggingface.write_model(folder / "base", params, config)
    tags = TOKENIZER.tags
    ids = np.concatenate([np.random.default_rng(0).integers(0, tags.base, 20), np.arange(tags.base, tags.end)])
    theirs = _theirs(folder / "base")
    plain = _their_logits(theirs, ids)
    expected = _their_logits(PeftModel.from_pretrained(theirs, folder / "adapter"), ids)
    ours = our_logits(lora.merge_on_host(params, pairs, tags), config, ids)
    assert np.abs(ours - plain).max() > 0.1
    of_export = np.abs(our_logits(params, config, ids) - plain).max()
    return float(np.maximum(np.abs(ours - expected).max(), of_export))


def _written(kind: str, folder: Path):
    """A GGUF file of a family; its configuration and parameters."""
    config = dataclasses.replace(VARIANTS[kind], norm_eps=1e-5, **IN_GGUF[kind])
    content, params = gguf_bytes(families.of_config(config).kinds[GGUF], config)
    (folder / "toy.gguf").write_bytes(content)
    return dataclasses.replace(config, vocab=len(params["embed"])), params


def llama_cpp(kind: str, folder: Path) -> float:
    """llama.cpp on a GGUF file: the share of prompts after which it writes another id."""
    config, params = _written(kind, folder)
    prompts = [np.random.default_rng(seed).integers(5, 250, 24).tolist() for seed in range(20)]
    command = [sys.executable, str(Path(__file__).with_name("llama_cpp_next.py")), str(folder / "toy.gguf")]
    done = subprocess.run(command, input=json.dumps(prompts), capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    ours = [int(our_logits(params, config, np.array(prompt))[-1].argmax()) for prompt in prompts]
    assert len(set(ours)) > 2
    return float(np.mean(np.array(ours) != json.loads(done.stdout)))


def gguf(kind: str, folder: Path) -> float:
    """A GGUF file: parameters."""
    config, expected = _written(kind, folder)
    model = load_model("", str(folder / "toy.gguf"))
    differing = {
        field.name: (getattr(model.config, field.name), getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.compare and field.name != "vocab" and getattr(model.config, field.name) != getattr(config, field.name)
    }
    assert not differing, differing
    tags, params = model.tokenizer.tags, dict(model.params)
    for name in {"embed", "head"} & expected.keys():  # rows of the tags are ours
        params[name] = np.array(model.params[name][: len(expected[name])])
        params[name][tags.base : tags.end] = expected[name][tags.base : tags.end]
    return float(np.max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), params, expected))))


def kernels(kind: str, folder: Path) -> float:
    """Our kernels for CPUs beside XLA: logits."""
    config = VARIANTS[kind]
    params, ids = random_params(config, seed=1), _ids(config)
    return float(np.abs(our_logits(in_panels(params), config, ids) - our_logits(params, config, ids)).max())


def decoding(kind: str, folder: Path) -> float:
    """Threads that write and read a pool, with our kernels, beside one pass over the program: logits."""
    config = VARIANTS[kind]
    params = random_params(config, seed=1)
    ids, position, see = program()
    expected = our_logits(params, config, ids, position, see)
    model = Model("toy", config, jax.device_put(in_panels(params)), TOKENIZER, PREDICTED)
    prompt, response = ids[:PROMPT].tolist(), ids[PROMPT:].tolist()
    settings = DecodeConfig(lanes=1, rows=3, slots=128)
    ((replayed, logits),) = replay(model, [prompt], [response], settings)
    assert len(replayed.token) == len(ids)
    return float(np.abs(logits - expected[replayed.linear]).max())


CHECKS = {
    "folder in": folder_in,
    "adapter": adapter,
    "GGUF": gguf,
    "llama.cpp": llama_cpp,
    "kernels": kernels,
    "decoding": decoding,
}
MOST = 1e-4


def applies(check: str, kind: str) -> bool:
    """Whether there is such a thing for the family."""
    if check == "llama.cpp" and kind == "gemma3_text":  # its own assertion fails for so small a model
        return False
    return check not in ("GGUF", "llama.cpp") or kind in IN_GGUF


def difference(check: str, kind: str, folder: Path) -> float:
    """The largest difference of one comparison."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CHECKS[check](kind, folder)
