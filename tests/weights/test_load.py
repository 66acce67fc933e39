"""Loading models: GGUF files and folders, the cache of converted weights, fresh tag rows, export, and refusals."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.config import PRESETS
from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.tag_rows import initial_tag_rows, rows_apart
from pasta_jax.models.transformer import forward
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.weights import cache, load, prepare
from pasta_jax.weights.gguf_model import read_config
from pasta_jax.weights.load import export_model
from pasta_jax.weights.prepare import for_decoding
from tests.helpers.gguf_models import GEMMA3, LLAMA, QWEN2, gguf_bytes
from tests.helpers.loading import load_model
from tests.helpers.models import uncached
from tests.helpers.requires import requires_smollm2
from tests.helpers.tiny_tokenizers import PREFIXED, fallback_json, metaspace, train_sentencepiece


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "cache"))


CONFIGS = {"llama": LLAMA, "gemma3": GEMMA3, "qwen2": QWEN2}


def written(folder: Path, kind: str, **changes) -> Path:
    """A GGUF file of random weights."""
    path = folder / "toy.gguf"
    path.write_bytes(gguf_bytes(kind, CONFIGS[kind], **changes)[0])
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_gguf_file_and_the_cache_give_the_same_model(kind, tmp_path, monkeypatch):
    path, config = written(tmp_path, kind), CONFIGS[kind]
    params = gguf_bytes(kind, config)[1]
    model = load_model("", str(path))
    assert not load.difference(model.config, config)
    tags = model.tokenizer.tags
    for name in ("final_norm", "layers"):
        jax.tree.map(np.testing.assert_array_equal, model.params[name], params[name])
    rows = len(params["embed"])
    others = [row for row in range(rows) if not tags.base <= row < tags.end]
    np.testing.assert_array_equal(model.params["embed"][np.array(others)], params["embed"][others])
    assert model.config.vocab == model.tokenizer.model_vocab == len(model.params["embed"])

    monkeypatch.setattr(load.Files, "read", None)  # a second start converts nothing
    again = load_model("", str(path))
    assert again.config == model.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


def cut(content: bytes) -> bytes:
    return content[:-1000]


def flip(content: bytes) -> bytes:
    """One bit, in the middle of the arrays."""
    at = len(content) * 3 // 4
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


def test_a_conversion_that_nobody_uses_is_removed(tmp_path):
    first, folder = written(tmp_path, "llama"), tmp_path / "cache" / "converted"
    load_model("", str(first))
    [cached] = folder.iterdir()
    os.utime(cached, (0, 0))
    load_model("", str(first))  # used again
    second = first.rename(tmp_path / "moved.gguf")
    load_model("", str(second))
    assert cached in {*folder.iterdir()}
    os.utime(cached, (0, 0))
    load_model("", str(second.rename(tmp_path / "again.gguf")))
    assert len([*folder.iterdir()]) == 2
    assert not cached.exists()


def test_a_conversion_that_cannot_be_kept_is_used_all_the_same(tmp_path, capsys):
    path, folder = written(tmp_path, "llama"), tmp_path / "cache" / "converted"
    folder.parent.mkdir()
    folder.write_text("a file in its place")
    model = load_model("", str(path))
    assert "the conversion is not kept for later runs: " in capsys.readouterr().err
    folder.unlink()
    jax.tree.map(np.testing.assert_array_equal, load_model("", str(path)).params, model.params)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_cache_is_converted_again(damage, tmp_path):
    path = written(tmp_path, "llama")
    first = load_model("", str(path))
    [cached] = (tmp_path / "cache" / "converted").glob("*.safetensors")
    cached.write_bytes(damage(cached.read_bytes()))
    again = load_model("", str(path))
    jax.tree.map(np.testing.assert_array_equal, again.params, first.params)
    assert [p.suffix for p in cached.parent.iterdir()] == [".safetensors"]


def test_what_a_damaged_cache_says_is_one_printable_line(tmp_path, caplog):
    header = json.dumps({"a": {"dtype": "\x1b[31m\n", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert cache.load(tmp_path / "a.safetensors") is None
    assert caplog.messages[0].isprintable()


def test_stacked_and_other_dtypes(tmp_path):
    path = written(tmp_path, "llama")
    model = load_model("", str(path), dtype=jnp.bfloat16, stacked=True)
    assert model.params["layers"]["down"]["kernel"].shape == (LLAMA.layers, LLAMA.embed, LLAMA.ff)
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} == {jnp.dtype("bfloat16")}


def rounded_matrices(params):
    """Parameters with their matrices, but not norms and biases, rounded to bfloat16."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            leaf if "norm" in str(path) or "bias" in str(path) else leaf.astype(jnp.bfloat16).astype(jnp.float32)
        ),
        params,
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["columns", "panels", "halves", "codes"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_model_for_decoding_has_another_layout_and_equal_logits(width, layout, tmp_path, monkeypatch):
    if layout != "columns" and kernels.library() is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(prepare, "is_available", lambda: layout != "columns")
    path = written(tmp_path, {1: "qwen2", 3: "gemma3"}[width])
    model = load_model("", str(path))
    dtype = {"codes": "q8", "halves": "bfloat16"}.get(layout)
    other = load_model("", str(path), dtype=dtype, only_decoding=True)
    kind = "panels" if layout == "halves" else layout
    matrices = [leaves for name, leaves in other.params["layers"][0].items() if "norm" not in name]
    assert [kind in leaves for leaves in matrices] == [True] * 4
    assert kind in other.params["embed"]
    assert (other.dtype, other.precision) == (jnp.float32, dtype or "float32")
    if layout == "halves":  # equal to the model whose matrices are rounded
        model = dataclasses.replace(model, params=rounded_matrices(model.params))

    def logits(model):  # each token the only one of its sequence
        tokens, nowhere = jnp.arange(5, 5 + width)[:, None], jnp.zeros((width, 1), jnp.int32)
        seen = jnp.ones((width, 1, 1), bool)
        return jax.jit(forward, static_argnums=1)(model.params, model.config, tokens, nowhere, seen)

    expected, ours = logits(model), logits(other)
    error = 0.05 * np.std(expected) if layout == "codes" else 1e-5
    np.testing.assert_allclose(ours, expected, atol=error)
    assert layout != "codes" or np.abs(ours - expected).max() > 1e-5
    again = for_decoding(model)
    assert (again is model) == (layout == "columns")
    if layout == "panels":
        jax.tree.map(np.testing.assert_array_equal, again.params, other.params)
    with_scanned = load_model("", str(path), stacked=True, only_decoding=True)
    assert "kernel" in with_scanned.params["layers"]["down"]


def test_weights_of_8_bits_are_only_to_decode_with(tmp_path, monkeypatch, capsys):
    path = written(tmp_path, "llama")
    with pytest.raises(PastaError, match="dtype q8: only to decode with; set it to auto"):
        load_model("", str(path), dtype="q8")
    monkeypatch.setattr(prepare, "is_available", lambda: False)
    model = load_model("", str(path), dtype="q8", only_decoding=True)
    assert "columns" in model.params["embed"]
    assert capsys.readouterr().err == "dtype q8 needs our own kernels, which run on one CPU: using float32\n"


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_an_export_loads_with_equal_logits_and_keeps_its_tags(kind, tmp_path):
    path = written(tmp_path, kind)
    model = load_model("", str(path))
    tags = model.tokenizer.tags
    trained = model.params["embed"].at[tags.sync].set(0.25)
    model = dataclasses.replace(model, params=model.params | {"embed": trained})
    export_model(model, tmp_path / "out")
    back = load_model("", str(tmp_path / "out"))
    assert back.tokenizer.tags == tags
    ids = back.tokenizer.encode("What is the capital of Italy?")
    assert ids == model.tokenizer.encode("What is the capital of Italy?")
    np.testing.assert_array_equal(back.params["embed"][tags.sync], trained[tags.sync])
    np.testing.assert_allclose(uncached(back, ids), uncached(model, ids), atol=1e-5)


@pytest.mark.parametrize("files", [("json", "added"), ("json",), ("added",)])
def test_pieces_added_to_a_tokenizer_later_are_known(tmp_path, files):
    """As fast and slow tokenizers are saved, in a folder of the older file too."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(**PREFIXED))
    spec = json.loads(fallback_json(**PREFIXED))
    ids = [one["id"] for one in spec["added_tokens"]] + list(spec["model"]["vocab"].values())
    later = {"<|im_start|>": max(ids) + 1, "<|im_end|>": max(ids) + 2}
    spec["added_tokens"] += [spec["added_tokens"][0] | {"id": id, "content": piece} for piece, id in later.items()]
    if "json" in files:
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    if "added" in files:
        (tmp_path / "added_tokens.json").write_text(json.dumps(later))
    tokenizer = load_tokenizer(load.tokenizer_file(tmp_path))
    assert later.items() <= tokenizer.vocabulary.control.items()
    assert tokenizer.vocab_size == max(later.values()) + 1
    if files == ("added",):
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": later["<|im_end|>"]}))
        with pytest.raises(PastaError, match=r"added_tokens\.json: '<\|im_end\|>' has id \d+, but \d+ follows"):
            load_tokenizer(load.tokenizer_file(tmp_path))


def test_a_blank_before_the_first_piece_alone_stands_in_the_newer_file(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(**PREFIXED))
    (tmp_path / "tokenizer.json").write_text(fallback_json(metaspace("first")))
    assert load.tokenizer_file(tmp_path).name == "tokenizer.json"
    (tmp_path / "tokenizer.json").write_text(fallback_json(metaspace("always")))
    assert load.tokenizer_file(tmp_path).name == "tokenizer.model"


def test_a_folder_without_our_section_gets_fresh_tag_rows(tmp_path):
    path = written(tmp_path, "llama")
    model = load_model("", str(path))
    fresh = model.params["embed"]
    trained = dataclasses.replace(model, params=model.params | {"embed": fresh.at[model.tokenizer.tags.sync].set(0.25)})
    export_model(trained, tmp_path / "out")
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    raw.pop("pasta_jax")
    (tmp_path / "out" / "config.json").write_text(json.dumps(raw))
    np.testing.assert_allclose(load_model("", str(tmp_path / "out")).params["embed"], fresh, atol=1e-6)


class Words:
    """A tokenizer of 200 words."""

    tags = TagIds(210)

    def encode(self, text):
        return [sum(map(ord, word)) % 200 for word in text.split()]


def test_tag_rows_are_apart_not_longer_than_others_and_near_their_words():
    table = np.random.default_rng(5).standard_normal((300, 512)).astype(np.float32)
    rows = initial_tag_rows(table, Words())
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = unit @ unit.T - np.eye(68)
    assert cosine.max() < 0.95
    assert np.linalg.norm(rows, axis=1).max() < np.median(np.linalg.norm(table[:200], axis=1))
    near = unit[67] @ (table / np.linalg.norm(table, axis=1, keepdims=True)).T
    assert set(np.argsort(near)[-3:]) == {sum(map(ord, word)) % 200 for word in ("wait", "join", "together")}


def test_rows_apart_are_near_no_word_and_as_long_as_others():
    rng = np.random.default_rng(5)
    table = (rng.standard_normal((300, 512)) + 2 * rng.standard_normal(512)).astype(np.float32)  # a common direction
    tags = Words.tags
    near = initial_tag_rows(table, Words())
    apart = rows_apart(table, Words())
    mean = np.delete(table, range(tags.base, tags.end), axis=0).mean(0)

    def cosine(row):
        words = table[:200] - mean
        return (words @ (row - mean) / np.linalg.norm(words, axis=1) / np.linalg.norm(row - mean)).max()

    ends = tags.end_async - tags.base
    assert cosine(near[ends]) > 0.4
    assert cosine(apart[ends]) < 0.2
    assert 0.9 < np.linalg.norm(apart[ends] - mean) / np.linalg.norm(table[0] - mean) < 1.1
    np.testing.assert_array_equal(apart[1:65], near[1:65])  # lengths


REFUSALS = [
    ({"general.architecture": "mamba"}, "", "unsupported architecture 'mamba'"),
    ({"llama.rope.scaling.type": "dynamic"}, "", "unsupported rope scaling 'dynamic'"),
    ({"llama.expert_count": 8}, "", "unsupported metadata llama: expert_count; use a model without"),
    ({"llama.logit_scale": np.float32(8.0)}, "", "unsupported metadata llama: logit_scale; use a model without"),
    ({"llama.attention.causal": False}, "", "unsupported metadata llama: attention.causal"),
    ({"llama.feed_forward_length": 65}, "", "ffn_down.weight has shape"),
    ({}, "blk.1.attn_k", "no tensor 'blk.1.attn_k.weight'"),
    ({}, "token_embd", "no tensor token_embd.weight"),
]


@pytest.mark.parametrize(("metadata", "drop", "message"), REFUSALS)
def test_unusable_files_are_refused(metadata, drop, message, tmp_path):
    path = written(tmp_path, "llama", drop=drop, **metadata)
    with pytest.raises(PastaError, match=message) as caught:
        load_model("", str(path))
    assert str(path) in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_scales_beside_the_blocks_of_nvfp4_are_refused(tmp_path):
    file = GGUF.open(written(tmp_path, "llama"))
    scaled = dataclasses.replace(
        file, tensors=file.tensors | {"blk.0.attn_q.scale": file.tensors["output_norm.weight"]}
    )
    with pytest.raises(
        PastaError, match=r"unsupported tensor blk\.0\.attn_q\.scale; use a file in another number format"
    ):
        read_config(scaled)


def test_missing_and_mismatched_models_are_refused(tmp_path):
    path = tmp_path / "toy.gguf"
    for preset, place, message in (
        ("", "", "no model named"),
        ("gemma_8b", "", "unknown model preset 'gemma_8b'"),
        ("gemma_7b", "", "gemma_7b: no package ships its weights"),
        ("", str(path), "not found; use a GGUF file, a folder with .*, or the workdir of launch.sft"),
    ):
        with pytest.raises(PastaError, match=message):
            load_model(preset, place)
    path.write_bytes(b"no model")
    with pytest.raises(PastaError, match="not a GGUF file"):
        load_model("", str(path))
    written(tmp_path, "llama")
    with pytest.raises(PastaError, match=r"not a smollm2_135m \(layers is 3, not 30\)"):
        load_model("smollm2_135m", str(path))
    own = dataclasses.replace(PRESETS["gemma3_270m"], query_scalar=256, vocab=9)  # as its folder says
    assert load.difference(own, PRESETS["gemma3_270m"]) == ""
    other = dataclasses.replace(own, query_scalar=128)
    assert load.difference(other, PRESETS["gemma3_270m"]).startswith("score_scale is ")
    (tmp_path / "folder").mkdir()
    export_model(load_model("", str(path)), tmp_path / "folder")
    (tmp_path / "folder" / "tokenizer.json").unlink()
    with pytest.raises(PastaError, match=r"neither tokenizer\.model nor tokenizer\.json; copy"):
        load_model("", str(tmp_path / "folder"))


@requires_smollm2
def test_the_second_start_loads_converted_weights(monkeypatch):
    monkeypatch.delenv("PASTA_JAX_CACHE")
    load_model("smollm2_135m", "")
    monkeypatch.setattr(load.Files, "read", None)
    load_model("smollm2_135m", "")
    assert list((packages.cache_dir() / "converted").glob("SmolLM2*.safetensors"))
