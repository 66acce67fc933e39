"""BPE over characters with byte pieces for rare ones, from a tokenizer.json: Llama 2, older Mistral models, Gemma.

Such a file writes blanks as `▁`, and most put one before texts. We encode text as it continues others, so that decoding
restores it; the blank is added where a prompt begins.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pasta_jax.errors import PastaError
from pasta_jax.tokenizers.vocabulary import (
    BLANK,
    MARKER,
    NONE,
    Opened,
    Strips,
    Vocabulary,
    around_blanks,
    as_it_is,
    check_merges,
    ids_of,
)

_FIX = "use a GGUF or .model file"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
_PREPEND = {"type": "Prepend", "prepend": BLANK}
_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}

GEMMA4 = _REPLACE, _SPLIT  # its normalizer and pre-tokenizer, which GGUF files don't state


def opened_by(path: Path, normalizer: dict | None, pre_tokenizer: dict | None) -> Opened:
    """Where a file puts a blank before texts; one that changes text in other ways is refused."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    steps = steps if isinstance(steps, list) else [steps]
    words = pre_tokenizer or {}
    is_metaspace = words.get("type") == "Metaspace"
    if any(step not in (_REPLACE, _PREPEND) for step in steps) or not (_REPLACE in steps or is_metaspace):
        raise PastaError(f"{path}: decoding doesn't restore every text: its normalizer rewrites it; {_FIX}")
    if not is_metaspace and words not in ({}, _SPLIT):
        raise PastaError(f"{path}: unsupported pre_tokenizer {words.get('type')!r} with byte_fallback; {_FIX}")
    if is_metaspace and words.get("replacement") != BLANK:
        raise PastaError(f"{path}: unsupported replacement of blanks {words.get('replacement')!r}; {_FIX}")
    if _PREPEND in steps:
        return always
    scheme = words.get("prepend_scheme", "always" if words.get("add_prefix_space", is_metaspace) else "never")
    return {"always": unless_blank, "first": unless_blank_or_later}.get(scheme, as_it_is)


def always(text: str, is_first: bool) -> str:
    """A blank before each text between control pieces."""
    return f" {text}" if text else text


def unless_blank(text: str, is_first: bool) -> str:
    """The same, but for texts that begin with one."""
    return text if text.startswith((" ", BLANK)) else always(text, is_first)


def unless_blank_or_later(text: str, is_first: bool) -> str:
    """The same, but only before everything else."""
    return unless_blank(text, is_first) if is_first else text


def vocabulary(
    path: Path,
    vocab: dict[str, int],
    merges: list[list[str]],
    whole_words: bool,
    added: dict[str, tuple[int, bool, bool]],
    normalizer: dict | None,
    pre_tokenizer: dict | None,
    bos: str | None,
    strips: Strips = NONE,
) -> Vocabulary:
    """`added` maps a piece to its id, whether it is a control piece, and whether it is found in text with `▁`."""
    opened = opened_by(path, normalizer, pre_tokenizer)
    control = {text: id for text, (id, special, _) in added.items() if special or MARKER.fullmatch(text)}
    pieces = {text: id for text, id in vocab.items() if text not in control}
    pieces |= {text: id for text, (id, *_) in added.items() if text not in control}
    if missing := next((piece for piece in _BYTES if piece not in pieces), None):
        raise PastaError(f"{path}: no piece {missing}, so rare characters would be lost; {_FIX}")
    check_merges(path, pieces, merges)
    pairs = [tuple(pair) for pair in merges]
    split = bool((pre_tokenizer or {}).get("split", True))
    encoder = Tokenizer(models.BPE(pieces, pairs, byte_fallback=True, ignore_merges=whole_words))
    encoder.normalizer = normalizers.Replace(" ", BLANK)
    if pre_tokenizer == _SPLIT:
        encoder.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif pre_tokenizer:
        encoder.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, "never", split)
    whole = {text for text, flags in strips.items() if flags["single_word"]}
    encoder.add_tokens(
        [
            AddedToken(text, normalized=found, single_word=text in whole)
            for text, (_, _, found) in added.items()
            if text not in control
        ]
    )
    data = [b""] * (1 + max([*pieces.values(), *control.values()]))
    for text, id in pieces.items():
        data[id] = text.replace(BLANK, " ").encode()
    for byte, piece in enumerate(_BYTES):
        data[pieces[piece]] = bytes([byte])

    def encode(text: str) -> list[int]:
        return ids_of(encoder, text)

    def content() -> bytes:
        steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
        encoder.decoder = decoders.Sequence(steps if opened is as_it_is else [*steps, decoders.Strip(" ", 1, 0)])
        spec = json.loads(encoder.to_str()) | {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
        spec["model"]["vocab"] = pieces | control
        plain = {"single_word": False, "lstrip": False, "rstrip": False}
        spec["added_tokens"] = [
            {"id": id, "content": text, "special": special, "normalized": found, **plain, **strips.get(text, {})}
            for text, (id, special, found) in added.items()
        ]
        return json.dumps(spec, ensure_ascii=False, indent=1).encode()

    spelled = control | {text: id for text, (id, *_) in added.items()}
    blank_sign = [pieces[_BYTES[byte]] for byte in BLANK.encode()]
    encode_all = around_blanks(encode, blank_sign)
    return Vocabulary(
        data, control, spelled, bos if bos in control else None, encode_all, "tokenizer.json", content, opened, strips
    )
