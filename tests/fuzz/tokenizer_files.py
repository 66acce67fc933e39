"""Doors of tokenizers: tokenizer.json and tokenizer.model."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.fuzz.mutations import STRANGE, Mutator, Unchanged
from tests.fuzz.run import Read
from tests.helpers.tiny_tokenizers import LLAMA3_SPECIALS, SMOLLM2_SPECIALS, train_bpe, train_sentencepiece

TEXT = "  Größe 数\n\n\t12345 I'll <|im_start|> " + "ab " * 200 + " " * 300
PATTERNS = ("(a+)+b", "(a|a)*b", r"(\s*)*x", ".*.*.*.*.*x", "(", "[", "a" * 10_000, r"(x)\1*", "(?R)", "\\p{Nope}", "")
PRE_TOKENIZERS = (
    *({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in PATTERNS),
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True},
    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "prepend_scheme": "always"},
    {"type": "Sequence", "pretokenizers": []},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "FixedLength", "length": 0},
)
NORMALIZERS = (
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
    {"type": "Prepend", "prepend": "x" * 1000},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""},
)


def use(tokenizer: Tokenizer) -> None:
    """Encode and decode as a prompt would be."""
    tokenizer.decode(tokenizer.chat([("user", TEXT)]))


def tokenizer_json(folder: Path):
    """tokenizer.json: its pieces, merges, added tokens, and how words are cut."""
    words = json.loads(train_bpe(SMOLLM2_SPECIALS)) | {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        }
    }
    valid = [words, json.loads(train_bpe(LLAMA3_SPECIALS))]
    path = folder / "tokenizer.json"

    def attempt(by: Unchanged) -> Read:
        spec = by.pick(valid)
        if isinstance(by, Mutator):
            match by.rng.randrange(6):
                case 0:
                    spec = spec | {"pre_tokenizer": by.tree(by.pick(PRE_TOKENIZERS))}
                case 1:
                    spec = spec | {"normalizer": by.tree(by.pick(NORMALIZERS))}
                case 2:
                    vocab = dict(spec["model"]["vocab"])
                    vocab[by.pick(list(vocab))] = by.pick(STRANGE)
                    spec = spec | {"model": spec["model"] | {"vocab": vocab}}
                case 3:
                    spec = spec | {"added_tokens": by.tree(spec["added_tokens"])}
                case 4:
                    spec = spec | {"pre_tokenizer": by.pick(PRE_TOKENIZERS)}
        path.write_bytes(by.json(spec))
        return lambda: use(load_tokenizer(path))

    return attempt


def tokenizer_model(folder: Path):
    """tokenizer.model: any field of its protocol buffer, and its bytes."""
    valid = train_sentencepiece()
    path = folder / "tokenizer.model"

    def attempt(by: Unchanged) -> Read:
        content = valid
        if isinstance(by, Mutator) and by.rng.random() < 0.75:
            model = ModelProto.FromString(valid)
            for _ in range(by.pick((1, 1, 2, 5))):
                _change_message(by, model)
            content = model.SerializePartialToString()
        elif isinstance(by, Mutator):
            content = by.raw(valid)
        path.write_bytes(content)
        return lambda: use(load_tokenizer(path))

    return attempt


def _change_message(by: Mutator, message: Message) -> None:
    """Change one field of a protocol buffer, or of one inside it."""
    field = by.pick(message.DESCRIPTOR.fields)
    repeated = field.is_repeated
    if field.message_type is not None:
        if not repeated:
            return _change_message(by, getattr(message, field.name))
        parts = getattr(message, field.name)
        if not parts or by.rng.random() < 0.1:
            parts.add()
        if by.rng.random() < 0.1:
            del parts[by.rng.randrange(len(parts)) :]
        elif len(parts):
            _change_message(by, by.pick(list(parts)))
        return None
    numbers = (0, 1, -1, 2, 3, 255, 2**31 - 1, -(2**31))
    value: Any = {
        field.CPPTYPE_STRING: by.pick(("", " ", "a", "▁", "<0xZZ>", "<0x41>", "<unk>", "x" * 100_000, "\0", "數")),
        field.CPPTYPE_BOOL: by.pick((True, False)),
        field.CPPTYPE_FLOAT: by.pick((float("nan"), float("inf"), -1e30, 0.0)),
    }.get(field.cpp_type, by.pick(numbers))
    if field.enum_type is not None:
        value = by.pick(field.enum_type.values).number
    elif field.type == field.TYPE_BYTES:
        value = by.rng.randbytes(by.pick((0, 1, 4, 8, 64, 1000)))
    elif field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        value = abs(value) if isinstance(value, int) else 0
    if repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)
    return None
