"""The toy task's tokenizer: a SentencePiece model trained deterministically, within a second, on the task's words."""

import io
import tempfile
from functools import cache
from pathlib import Path

import sentencepiece

from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pasta_jax.toy.task import ENDS_REQUEST, RINGS, WORDS

VOCAB = 1024  # all ids: pieces, 256 bytes, control pieces, and the unused pieces that the tags occupy


@cache
def toy_tokenizer() -> Tokenizer:
    """One id for each word, number and ring name; other text falls back to bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(_train())
        return load_tokenizer(path)


def _train() -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_lines()),
        model_writer=out,
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        user_defined_symbols=[
            *_words(),
            "<start_of_turn>",
            "<end_of_turn>",
            *(f"<unused{n}>" for n in range(NUM_TAGS)),
        ],
        num_threads=1,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
        **{"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>", "unk_piece": "<unk>"},
    )
    return out.getvalue()


def _words() -> list[str]:
    """The single pieces: words after a space, and those that begin a line."""
    counts = [str(count) for count in range(1, 17)]
    starts = [*RINGS, "ends", "user", "model", *ENDS_REQUEST.split()[:1]]
    spaced = [*RINGS, *WORDS, *(word.capitalize() for word in WORDS), *counts, *ENDS_REQUEST.split()[1:]]
    return ["\n", "▁", *starts, *(f"▁{word}" for word in spaced)]


def _lines() -> list[str]:
    """The training text of the remaining pieces: every letter, often enough to be learnt."""
    return [*WORDS, *RINGS, ENDS_REQUEST]
