"""Unsupported tokenizer files are refused in one line; tests/fuzz damages them."""

import json

import numpy as np
import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from pasta_jax.errors import PastaError
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from tests.helpers.tiny_tokenizers import (
    SMOLLM2_SPECIALS,
    bpe_metadata,
    fallback_json,
    gguf_model,
    metaspace,
    sentencepiece_metadata,
    train_bpe,
    train_sentencepiece,
)


def broken_name() -> bytes:
    model = ModelProto.FromString(train_sentencepiece())
    model.trainer_spec.unk_piece = "<unknown>"
    return model.SerializeToString().replace(b"<unknown>", b"<\xd3nknown>")


def changed(tokenizer_json: str, **parts) -> bytes:
    return json.dumps(json.loads(tokenizer_json) | parts).encode()


BPE = train_bpe(SMOLLM2_SPECIALS)
FALLBACK = fallback_json()
SPM = sentencepiece_metadata(train_sentencepiece())
BPE_GGUF = bpe_metadata(BPE, "smollm")
REFUSED = {
    "nothing": (lambda: b"", "not a SentencePiece model|no byte pieces"),
    "noise": (lambda: bytes(range(7, 200)), "not a SentencePiece model"),
    "a name that is not UTF-8": (broken_name, "not a SentencePiece model"),
    "other json": (lambda: b'{"a": 1}', "not a tokenizer.json of the BPE kind"),
    "cut json": (lambda: BPE[:5000].encode(), "not a tokenizer.json of the BPE kind"),
    "normalizer": (lambda: changed(BPE, normalizer={"type": "NFKC"}), "decoding doesn't restore every text"),
    "slow words": (
        lambda: changed(BPE, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated"}),
        "pattern '.*' may take forever",
    ),
    "removed": (
        lambda: changed(BPE, pre_tokenizer={"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}),
        "drops the text that it cuts out",
    ),
    "many rows": (
        lambda: changed(BPE, model=json.loads(BPE)["model"] | {"vocab": {"a": 10**12}}),
        r"model.vocab\[...\]: expected `int` <= 1048575",
    ),
    "same id": (
        lambda: changed(
            BPE,
            added_tokens=json.loads(BPE)["added_tokens"][:1] * 1
            + [{"id": 5, "content": "<|im_start|>", "special": True}],
        ),
        "two pieces have the same id",
    ),
    "words lost": (lambda: changed(BPE, pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer.type: invalid value"),
    "no pieces": (
        lambda: changed(BPE, model={"type": "WordPiece", "vocab": {}}),
        "not a tokenizer.json of the BPE kind",
    ),
    "no bytes": (
        lambda: changed(BPE, model=json.loads(BPE)["model"] | {"vocab": {"▁a": 0}, "merges": []}),
        "not byte-level",
    ),
    "no marks, json": (lambda: changed(BPE, added_tokens=[]), "no known control piece that opens a turn"),
    "no marks": (lambda: train_sentencepiece(marks=False), "no known control piece that opens a turn"),
    "nfkc": (lambda: train_sentencepiece(normalization_rule_name="nfkc"), "decoding doesn't restore every text"),
    "other blanks": (
        lambda: fallback_json(metaspace("first") | {"replacement": "_"}).encode(),
        "replacement of blanks '_'",
    ),
    "rewritten": (lambda: changed(fallback_json(), normalizer={"type": "NFKC"}), "its normalizer rewrites it"),
    "no byte": (lambda: fallback_json().replace("<0x41>", "<0xzz>").encode(), "no piece <0x41>"),
    "lost merges": (
        lambda: changed(FALLBACK, model=json.loads(FALLBACK)["model"] | {"merges": ["a"]}),
        "merge 0 joins",
    ),
    "fewer spaces": (lambda: train_sentencepiece(remove_extra_whitespaces=True), "decoding doesn't restore every text"),
    "no fallback": (lambda: train_sentencepiece(byte_fallback=False, vocab_size=230), ": no byte pieces"),
    "no tokenizer": (lambda: gguf_model({"tokenizer.ggml.tokens": ["a"]}), "metadata tokenizer.ggml: model: missing"),
    "other kind": (
        lambda: gguf_model(SPM | {"tokenizer.ggml.model": "bert"}),
        "unsupported tokenizer kind 'bert'; use a file with one of llama, gpt2",
    ),
    "other type": (
        lambda: gguf_model(SPM | {"tokenizer.ggml.scores": 1}),
        "'tokenizer.ggml.scores' has type int, not ndarray",
    ),
    "short": (lambda: gguf_model(SPM | {"tokenizer.ggml.scores": np.zeros(3, "<f4")}), "490 tokens, 3 scores"),
    "bad unknown": (lambda: gguf_model(SPM | {"tokenizer.ggml.unknown_token_id": 490}), "490, .* for 490 tokens"),
    "bad types": (
        lambda: gguf_model(SPM | {"tokenizer.ggml.token_type": np.full(490, 9, "<i4")}),
        "invalid score or type of a token",
    ),
    "all bytes": (
        lambda: gguf_model(SPM | {"tokenizer.ggml.token_type": np.full(490, 6, "<i4")}),
        "piece 0, '<pad>', is listed as a byte",
    ),
    "other words": (
        lambda: gguf_model(BPE_GGUF | {"tokenizer.ggml.pre": "viking"}),
        "unknown pre-tokenizer 'viking' .known are smollm",
    ),
    "no merge": (lambda: gguf_model(BPE_GGUF | {"tokenizer.ggml.merges": ["a"]}), r"merge 0 joins \['a'\]"),
    "lost merge": (lambda: gguf_model(BPE_GGUF | {"tokenizer.ggml.merges": ["yyy zzz"]}), "merge 0 joins"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_files_are_refused_in_one_line(tmp_path, case):
    content, reason = REFUSED[case]
    (tmp_path / "file").write_bytes(content())
    with pytest.raises(PastaError, match=reason) as caught:
        load_tokenizer(tmp_path / "file")
    assert str(caught.value).startswith(f"{tmp_path / 'file'}: ")
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)  # the fix


def test_cuts_that_keep_what_they_match_are_isolated_ones(tmp_path):
    texts = "a b", "  Größe 123\n\n", "it's 数"
    ids = []
    for how in ({"behavior": "Isolated"}, {"behavior": "Removed", "invert": True}):  # as OLMo 2's file has it
        cut = {"type": "Split", "pattern": {"Regex": r"\s+|\w+|[^\s\w]+"}, **how}
        last = json.loads(BPE)["pre_tokenizer"] | {"use_regex": False}
        path = tmp_path / f"{how['behavior']}.json"
        path.write_bytes(changed(BPE, pre_tokenizer={"type": "Sequence", "pretokenizers": [cut, last]}))
        ids.append([load_tokenizer(path).encode(text) for text in texts])
    assert ids[0] == ids[1]


@pytest.mark.parametrize("steps", [[], [{"type": "NFC"}]])
def test_a_sequence_of_what_is_allowed_alone_is_allowed(steps, tmp_path):
    (tmp_path / "file").write_bytes(changed(BPE, normalizer={"type": "Sequence", "normalizers": steps}))
    assert load_tokenizer(tmp_path / "file").encode("a")


def test_absent_files_are_refused(tmp_path):
    with pytest.raises(PastaError, match=r"tokenizer\.model: No such file or directory; use a GGUF"):
        load_tokenizer(tmp_path / "tokenizer.model")
    with pytest.raises(PastaError, match="Is a directory; use a GGUF"):
        load_tokenizer(tmp_path)
