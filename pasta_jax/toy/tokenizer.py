"""The toy task's tokenizer: a SentencePiece model trained deterministically, within a second, on the task's words."""

import io
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pasta_jax.toy.task import ENDS_REQUEST, RINGS, WORDS

MARKS = ("<start_of_turn>", "<end_of_turn>")
VOCAB = 1024  # all ids: pieces, 256 bytes, control pieces, and the unused pieces that the tags occupy


@cache
def toy_tokenizer() -> Tokenizer:
    """One id for each word, number and ring name; other text falls back to bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        symbols = [*_words(), *MARKS, *(f"<unused{n}>" for n in range(NUM_TAGS))]
        lines = [*WORDS, *RINGS, ENDS_REQUEST]  # every letter of the other pieces, often enough to be learnt
        path.write_bytes(train(lines, symbols, vocab_size=VOCAB))
        return load_tokenizer(path)


def train(lines: Sequence[str], symbols: Sequence[str], **more: Any) -> bytes:
    """A .model like Gemma 1's from lines of text, with these pieces besides; `more` are options of the trainer."""
    out = io.BytesIO()
    recipe = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "character_coverage": 1.0,
        "user_defined_symbols": list(symbols),
        "num_threads": 1,
        "minloglevel": 2,
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
        **{"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>", "unk_piece": "<unk>"},
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **recipe | more)
    return out.getvalue()


def _words() -> list[str]:
    """The single pieces: words after a space, and those that begin a line."""
    counts = [str(count) for count in range(1, 17)]
    starts = [*RINGS, "ends", "user", "model", *ENDS_REQUEST.split()[:1]]
    spaced = [*RINGS, *WORDS, *(word.capitalize() for word in WORDS), *counts, *ENDS_REQUEST.split()[1:]]
    return ["\n", "▁", *starts, *(f"▁{word}" for word in spaced)]
