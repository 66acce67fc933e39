"""Tokenizers of each kind, trained in a fraction of a second on a few lines, with the marks of their family."""

import json
from pathlib import Path

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pasta_jax.tokenizers.bpe import _WORDS
from pasta_jax.tokenizers.tokenizer import Tokenizer as OurTokenizer
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.tokenizers.vocabulary import MARKER
from pasta_jax.toy.tokenizer import MARKS, train
from pasta_jax.weights.export import _from_sentencepiece
from tests.helpers.gguf_writer import write_gguf

_LINES = [
    "Give three tips for staying healthy. Eat well, drink water, and sleep for eight hours.",
    "The capital of France is Paris; the capital of Germany is Berlin. What is the capital of Italy?",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3",
    "Größe, naïve, façade, 東京, Москва, e\u0301",
    "In 2024 and 20245 I'll pay 12345678, 2024, 20245 and 12345678 again...\n\n\t I'll, I'll, I'LL!",
] * 4


def train_sentencepiece(unused: int = 70, marks: bool = True, plain: bool = True, **options) -> bytes:
    """A .model like Gemma 1's: byte fallback, and markers among the user-defined pieces, with others if `plain`."""
    symbols = [*(["\n", "\n\n", "▁▁", "<b>"] if plain else ()), *(MARKS if marks else ())]
    symbols += [f"<unused{n}>" for n in range(unused)]
    return train(_LINES, symbols, **{"vocab_size": 420 + unused} | options)


SMOLLM2_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
BLANKS = ("  ", "    ", "        ")  # as pieces, as GPT-NeoX has them
# As DeepSeek has them: bytes that no text has, and so are found as the letters; and words.
LETTERS = ("ö", "ü", "À", "apital", "東京")
CHATML_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPECIALS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",  # alone: not where the tags go
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(1, 80)),
]


# A chat template in the manner of many models: calls in tags, results in a user's turn.
CALLING = """\
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if m.content %}{{- '\\n' + m.content }}{%- endif %}
        {%- for call in m.tool_calls %}
            {{- '\\n<call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<result>\\n' + m.content + '\\n</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def train_bpe(specials: list[str], words=None, added: tuple[str, ...] = (), whole: str | None = None) -> str:
    """A tokenizer.json with all 256 bytes; `specials` are control pieces, `added` are parsed like them but are plain.

    It is trained on uncut lines, so that its merges tell where `words` cuts. `whole` is a piece that no merges make.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400 - (whole is not None), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_LINES, trainer)
    spec = json.loads(tokenizer.to_str())
    if whole is not None:
        spec["model"] |= {"vocab": spec["model"]["vocab"] | {whole: 399}, "ignore_merges": True}
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.pre_tokenizer = words or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(list(added))
    return json.dumps(json.loads(tokenizer.to_str()))


def sentencepiece_metadata(model: bytes) -> dict:
    """A .model as a converter writes it into a GGUF file."""
    pieces = ModelProto.FromString(model).pieces
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in pieces],
        "tokenizer.ggml.scores": np.array([p.score for p in pieces], "<f4"),
        "tokenizer.ggml.token_type": np.array([3 if p.type == 2 else p.type for p in pieces], "<i4"),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }


def bpe_metadata(tokenizer_json: str, words: str) -> dict:
    """A tokenizer.json as a converter writes it into a GGUF file; `words` names how words are cut."""
    spec = json.loads(tokenizer_json)
    added = {token["content"]: token for token in spec["added_tokens"]}
    ids = spec["model"]["vocab"] | {text: token["id"] for text, token in added.items()}
    texts = sorted(ids, key=ids.get)
    types = [1 if text not in added else 3 if added[text]["special"] else 4 for text in texts]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": words,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, "<i4"),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids[spec["added_tokens"][0]["content"]],
        "tokenizer.ggml.eos_token_id": ids[spec["added_tokens"][1]["content"]],
    }


def gguf_model(tokenizer: dict) -> bytes:
    """A complete GGUF model with one layer of zeros, so that llama.cpp can load its tokenizer."""
    size, width = len(tokenizer["tokenizer.ggml.tokens"]), 32
    shapes = {"token_embd": (size, width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width,) for name in ("attn_norm", "ffn_norm")}
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{name}": (width, width) for name in matrices}
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": width,
        "llama.feed_forward_length": width,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
    }
    tensors = {f"{name}.weight": (shape, "F32", bytes(4 * int(np.prod(shape)))) for name, shape in shapes.items()}
    return write_gguf(metadata | tokenizer, tensors)


def train_chatml(words: str, **changes) -> str:
    trained = json.loads(train_bpe(CHATML_SPECIALS, pre_tokenizers.Sequence(_WORDS[words]), ("<think>",)))
    return json.dumps(trained | {name: {"type": kind} for name, kind in changes.items()})


def chatml_gguf(words: str) -> bytes:
    metadata = bpe_metadata(train_chatml(words), words)
    for _ in range(3):  # to the rows of an embedding
        metadata["tokenizer.ggml.tokens"].append(f"[PAD{len(metadata['tokenizer.ggml.tokens'])}]")
    types = metadata["tokenizer.ggml.token_type"]
    return gguf_model(metadata | {"tokenizer.ggml.token_type": np.append(types, np.full(3, 5, types.dtype))})


def train_llama3() -> str:
    return train_bpe(LLAMA3_SPECIALS, pre_tokenizers.Sequence(_WORDS["llama-bpe"]), whole="Ġtomorrow")


def fallback_json(pre_tokenizer: dict | None = None, **options) -> str:
    """A tokenizer.json that merges as a .model does; with a `pre_tokenizer`, that writes the blanks."""
    spec = json.loads(_from_sentencepiece(ModelProto.FromString(train_sentencepiece(**options))))
    if options == PREFIXED:
        spec["added_tokens"] = [token | {"special": True, "normalized": False} for token in spec["added_tokens"]]
    return json.dumps(spec | ({"normalizer": None, "pre_tokenizer": pre_tokenizer} if pre_tokenizer else {}))


def metaspace(scheme: str) -> dict:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


PREFIXED = {"plain": False, "add_dummy_prefix": True}  # as in Llama 2


def prefixed_metadata() -> dict:
    words = sentencepiece_metadata(train_sentencepiece(**PREFIXED))
    types = words["tokenizer.ggml.token_type"]
    control = {"tokenizer.ggml.token_type": np.where(types == 4, 3, types).astype("<i4")}
    return words | control | {"tokenizer.ggml.add_space_prefix": True}


def gemma4_metadata() -> dict:
    """What llama.cpp's converter writes of a tokenizer.json like Gemma's."""
    spec = json.loads(fallback_json())
    added = {
        one["content"]: 3 if one["special"] or MARKER.fullmatch(one["content"]) else 4 for one in spec["added_tokens"]
    }
    ids = spec["model"]["vocab"] | {token["content"]: token["id"] for token in spec["added_tokens"]}
    texts = sorted(ids, key=ids.__getitem__)
    types = [added.get(text, 6 if text.startswith("<0x") else 1) for text in texts]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.zeros(len(texts), "<f4"),
        "tokenizer.ggml.token_type": np.array(types, "<i4"),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<bos>"],
        "tokenizer.ggml.eos_token_id": ids["<eos>"],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


# Of each kind and family, by a file's name.
TINY = {
    "gemma.model": lambda: train_sentencepiece(),
    "gemma.gguf": lambda: gguf_model(sentencepiece_metadata(train_sentencepiece())),
    "gemma.json": lambda: fallback_json().encode(),
    "gemma4.gguf": lambda: gguf_model(gemma4_metadata()),
    "prefixed.model": lambda: train_sentencepiece(**PREFIXED),
    "prefixed.gguf": lambda: gguf_model(prefixed_metadata()),
    "prefixed.json": lambda: fallback_json(**PREFIXED).encode(),
    "first.json": lambda: fallback_json(metaspace("first"), **PREFIXED).encode(),
    "smollm2.json": lambda: train_bpe(SMOLLM2_SPECIALS, added=("<tool>",)).encode(),
    "smollm2.gguf": lambda: gguf_model(bpe_metadata(train_bpe(SMOLLM2_SPECIALS, added=("<tool>",)), "smollm")),
    "llama3.json": lambda: train_llama3().encode(),
    "llama3.gguf": lambda: gguf_model(bpe_metadata(train_llama3(), "llama-bpe")),
    "neox.json": lambda: train_bpe(CHATML_SPECIALS, None, BLANKS).encode(),
    "neox.gguf": lambda: gguf_model(bpe_metadata(train_bpe(CHATML_SPECIALS, None, BLANKS), "olmo")),
    "letters.json": lambda: train_bpe(CHATML_SPECIALS, None, LETTERS).encode(),
    "letters.gguf": lambda: gguf_model(bpe_metadata(train_bpe(CHATML_SPECIALS, None, LETTERS), "gpt-2")),
    "qwen2.json": lambda: train_chatml("qwen2", normalizer="NFC").encode(),
    **{f"{words}.gguf": lambda words=words: chatml_gguf(words) for words in ("qwen2", "gpt-4o", "tekken", "gpt-2")},
}


def in_folder(
    folder: Path, source: str | None, form: str = "file", pieces: list[str] = SMOLLM2_SPECIALS
) -> OurTokenizer:
    """The tokenizer of a model's folder with this template."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(train_bpe(pieces))
    (folder / "config.json").write_text("{}")
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    if pieces is not SMOLLM2_SPECIALS:
        config = {"bos_token": pieces[-2], "eos_token": pieces[-1]}
    if form == "config":
        config["chat_template"] = source
    elif form == "list":
        config["chat_template"] = [{"name": "default", "template": source}, {"name": "tools", "template": "x"}]
    elif source is not None:
        (folder / "chat_template.jinja").write_text(source)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder / "tokenizer.json")
