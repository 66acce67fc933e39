"""The files with which `transformers` chats, beside config and weights: tokenizer with tags, template, generation."""

import json
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pasta_jax.files.atomic import write_json, write_whole
from pasta_jax.tokenizers import template
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.generation_config import FILE, PLAIN, as_json
from pasta_jax.weights.rules import Defaults

_UNKNOWN, _USER_DEFINED = 2, 4  # types of pieces in a .model
_BLANK = "▁"
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def write(folder: Path, tokenizer: Tokenizer, defaults: Defaults = PLAIN) -> None:
    """Write the files. A tokenizer.model is kept beside tokenizer.json: we read that one."""
    tokenizer.save(folder)
    write_whole(folder / "tokenizer.json", json.dumps(tokenizer_json(tokenizer), ensure_ascii=False, indent=1))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(tokenizer))
    if tokenizer.jinja:
        write_whole(folder / template.FILE, tokenizer.jinja)
    write_json(folder / FILE, _generation_config(tokenizer) | as_json(defaults))


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json, with the tags as special tokens."""
    content = tokenizer.vocabulary.content()
    is_bpe = tokenizer.vocabulary.file == "tokenizer.json"
    spec = json.loads(content if is_bpe else _from_sentencepiece(ModelProto.FromString(content)))
    tags, vocabulary = tokenizer.tags, spec["model"]["vocab"]
    if tags.end != tokenizer.vocab_size:  # reserved pieces at the very end would be read back as appended ones
        names = {tag: tags.piece(tag) for tag in range(tags.base, tags.end)}
        kept = [token for token in spec["added_tokens"] if token["id"] not in names]
        spec["added_tokens"] = kept + [
            {"id": tag, "content": name, "special": True, **_FLAGS} for tag, name in names.items()
        ]
        if isinstance(vocabulary, list):
            for tag, name in names.items():
                vocabulary[tag : tag + 1] = [[name, 0.0]]
        else:
            pieces = {text: id for text, id in vocabulary.items() if id not in names}
            spec["model"]["vocab"] = pieces | {name: tag for tag, name in names.items()}
    if (bos := tokenizer.family.bos) is not None:
        template = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos)])
        spec["post_processor"] = json.loads(_state(template))
    return spec


def _state(processor: processors.PostProcessor) -> str:
    """A post-processor as tokenizer.json states it."""
    holder = Encoder(models.BPE())
    holder.post_processor = processor
    return json.dumps(json.loads(holder.to_str())["post_processor"])


def _from_sentencepiece(model: ModelProto) -> str:
    """The tokenizer.json that cuts as a SentencePiece model does."""
    encoder = Encoder(_unigram(model) if model.trainer_spec.model_type == TrainerSpec.UNIGRAM else _bpe(model))
    prefix = [normalizers.Prepend(_BLANK)] if model.normalizer_spec.add_dummy_prefix else []
    encoder.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _BLANK)])
    encoder.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    parts = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    encoder.decoder = decoders.Sequence(parts)
    spec = json.loads(encoder.to_str())
    spec["added_tokens"] = [
        # A user-defined piece is found in text whose blanks are already `▁`; a control piece only where it is spelled.
        {"id": id, "content": piece.piece, **_FLAGS}
        | ({"special": False, "normalized": True} if piece.type == _USER_DEFINED else {"special": True})
        for id, piece in enumerate(model.pieces)
        if piece.type in (2, 3, _USER_DEFINED)
    ]
    return json.dumps(spec)


def _unigram(model: ModelProto) -> models.Unigram:
    """The likeliest pieces."""
    unknown = next((id for id, piece in enumerate(model.pieces) if piece.type == _UNKNOWN), None)
    return models.Unigram([(piece.piece, piece.score) for piece in model.pieces], unknown, byte_fallback=True)


def _bpe(model: ModelProto) -> models.BPE:
    """Merges, those of the best-scored pieces first."""
    ids = {piece.piece: id for id, piece in enumerate(model.pieces)}
    unknown = next((piece.piece for piece in model.pieces if piece.type == _UNKNOWN), None)
    normal = {piece.piece: piece.score for piece in model.pieces if piece.type == 1}
    merges = [
        (-score, ids[text[:cut]], ids[text[cut:]], text[:cut], text[cut:])
        for text, score in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    return models.BPE(vocab=ids, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer_config.json: an answer ends with its turn, or as the model's own template says."""
    family, control = tokenizer.family, tokenizer.vocabulary.control
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": family.close,
        "pad_token": "<pad>" if "<pad>" in control else family.eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**9,
        "chat_template": tokenizer.jinja or None,  # for versions that don't read chat_template.jinja
    }
    if family.bos is not None:
        config["bos_token"] = family.bos
    return config | (dict(tokenizer.tokens) if isinstance(tokenizer.template, template.Template) else {})


def padding_of(tokenizer: Tokenizer) -> int:
    """The id that other tools fill rows with."""
    control = tokenizer.vocabulary.control
    return control.get("<pad>", control[tokenizer.family.eos])


def _generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json: the ids that end an answer."""
    config = {
        "eos_token_id": list(tokenizer.stop_ids),
        "pad_token_id": padding_of(tokenizer),
        "max_new_tokens": 512,
    }
    return config if tokenizer.bos is None else config | {"bos_token_id": tokenizer.bos}
