"""Tokenizers of each kind, trained in a fraction of a second on a few lines, with the marks of their family."""

import io
import json

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_LINES = [
    "Give three tips for staying healthy. Eat well, drink water, and sleep for eight hours.",
    "The capital of France is Paris; the capital of Germany is Berlin. What is the capital of Italy?",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3",
    "Größe, naïve, façade, 東京, Москва, e\u0301",
] * 4


def train_sentencepiece(unused: int = 70, marks: bool = True, **options) -> bytes:
    """A .model like Gemma 1's: byte fallback, and markers among the user-defined pieces."""
    markers = ["<start_of_turn>", "<end_of_turn>"] if marks else []
    out = io.BytesIO()
    recipe = {
        "vocab_size": 420 + unused,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "character_coverage": 1.0,
        "user_defined_symbols": ["\n", "\n\n", "▁▁", "<b>", *markers, *(f"<unused{n}>" for n in range(unused))],
        "minloglevel": 2,
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
        **{"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>", "unk_piece": "<unk>"},
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(_LINES), model_writer=out, **recipe | options)
    return out.getvalue()


SMOLLM2_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
LLAMA3_SPECIALS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",  # alone: not where the tags go
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(1, 80)),
]


def train_bpe(specials: list[str], pre_tokenizer=None, added: tuple[str, ...] = ()) -> str:
    """A tokenizer.json with all 256 bytes; `specials` are control pieces, `added` parsed but plain ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_LINES, trainer)
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(list(added))
    return json.dumps(json.loads(tokenizer.to_str()))
