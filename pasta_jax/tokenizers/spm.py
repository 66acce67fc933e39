"""SentencePiece vocabularies (Gemma): from a GGUF file or a .model file.

Both are rebuilt before use: pieces that only a program may write become control pieces, which SentencePiece never
produces from text. So the text `<start_of_turn>` becomes ordinary pieces, and no prompt can inject a turn or a tag.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import MIB, Count, read_bytes, read_json
from pasta_jax.tokenizers.fallback import always
from pasta_jax.tokenizers.vocabulary import BLANK, MARKER, MOST_PIECES, Vocabulary, around_blanks, as_it_is

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # GGUF and SentencePiece share these numbers
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
_ROLE = ("id", "piece")
_FIX = "use a GGUF, .model or tokenizer.json file"
ADDED = "added_tokens.json"


@dataclass(frozen=True)
class _Options:
    """Metadata of a GGUF file besides its pieces."""

    unknown_token_id: Count
    bos_token_id: Count
    eos_token_id: Count
    add_space_prefix: bool = True  # as in llama.cpp


def from_gguf(gguf: GGUF) -> Vocabulary:
    """The vocabulary in a GGUF file."""
    texts = gguf.texts("tokenizer.ggml.tokens", MOST_PIECES)
    types = gguf.integers("tokenizer.ggml.token_type", MOST_PIECES).tolist()
    scores = gguf.floats("tokenizer.ggml.scores", MOST_PIECES).tolist()
    if not len(texts) == len(scores) == len(types):
        raise PastaError(
            f"{gguf.path}: {len(texts)} tokens, {len(scores)} scores and {len(types)} types; fetch the file again"
        )
    options = gguf.section("tokenizer.ggml.", _Options)
    roles = {"unknown": options.unknown_token_id, "bos": options.bos_token_id, "eos": options.eos_token_id}
    if max(roles.values()) >= len(texts):
        raise PastaError(f"{gguf.path}: token ids {roles} for {len(texts)} tokens; fetch the file again")
    types[roles["unknown"]] = _UNKNOWN  # listed as a control piece
    # Runs of spaces are user-defined pieces, the only ones that a GGUF file lists with real spaces.
    texts = [
        text.replace(" ", BLANK) if type == _USER_DEFINED else text for text, type in zip(texts, types, strict=True)
    ]
    model = ModelProto()
    model.trainer_spec.model_type = TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(texts)
    for role, field in (("unknown", "unk"), ("bos", "bos"), ("eos", "eos")):  # for other readers of what we save
        setattr(model.trainer_spec, f"{field}_id", roles[role])
        setattr(model.trainer_spec, f"{field}_piece", texts[roles[role]])
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = options.add_space_prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    add = model.pieces.add
    try:
        for text, score, type in zip(texts, scores, types, strict=True):
            add(piece=text, score=score, type=type)
    except (TypeError, ValueError) as error:
        raise PastaError(f"{gguf.path}: invalid score or type of a token ({error}); fetch the file again") from error
    return _vocabulary(gguf.path, model, texts, types)


def count(path: Path) -> int:
    """How many pieces a .model file has; of a damaged one, which is to be named, as many as any may have."""
    try:
        return len(ModelProto.FromString(read_bytes(path, 64 * MIB, _FIX)).pieces)
    except DecodeError:
        return MOST_PIECES


def _with_added(file: ModelProto, path: Path) -> None:
    """Append the pieces that a later version of the model got, which stand beside its file, as control pieces."""
    if not (beside := path.with_name(ADDED)).is_file():
        return
    added = read_json(beside, dict[str, Count], MIB, "copy the one of the model")
    for id, text in sorted((id, text) for text, id in added.items() if id >= len(file.pieces)):
        if id != len(file.pieces):
            raise PastaError(
                f"{beside}: {text!r} has id {id}, but {len(file.pieces)} follows; copy the one of the model"
            )
        file.pieces.add(piece=text, score=0.0, type=_CONTROL)


def from_file(path: Path) -> Vocabulary:
    """The vocabulary in a .model file, with what was added to it later."""
    try:
        file = ModelProto.FromString(read_bytes(path, 64 * MIB, _FIX))
        _with_added(file, path)
        texts, types = [piece.piece for piece in file.pieces], [piece.type for piece in file.pieces]
        names = ("model_type", "byte_fallback", *(f"{r}_{f}" for r in ("unk", "bos", "eos", "pad") for f in _ROLE))
        trained = {name: getattr(file.trainer_spec, name) for name in names}
        if any(isinstance(value, bytes) for value in (*texts, *trained.values())):  # what is not UTF-8
            raise DecodeError
    except DecodeError:
        raise PastaError(f"{path}: not a SentencePiece model; {_FIX}") from None
    if len(texts) > MOST_PIECES:
        raise PastaError(f"{path}: has {len(texts):,} pieces, at most {MOST_PIECES:,} are supported; {_FIX}")
    if not all(math.isfinite(piece.score) for piece in file.pieces):
        raise PastaError(f"{path}: the score of a piece is not finite; fetch the file again")
    if file.normalizer_spec.precompiled_charsmap:
        raise PastaError(f"{path}: decoding doesn't restore every text: its normalizer rewrites characters; {_FIX}")
    if trained["model_type"] not in (TrainerSpec.BPE, TrainerSpec.UNIGRAM):
        raise PastaError(f"{path}: unsupported kind of SentencePiece model (neither BPE nor unigram); {_FIX}")
    # Only what tokenizing needs, since the library trusts the rest: its compiled tables, its own tests.
    model = ModelProto(pieces=file.pieces)
    for name, value in trained.items():
        setattr(model.trainer_spec, name, value)
    model.trainer_spec.vocab_size = len(texts)
    model.normalizer_spec.name = "identity"
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(model.normalizer_spec, name, getattr(file.normalizer_spec, name))
    return _vocabulary(path, model, texts, types)


def _vocabulary(path: Path, model: ModelProto, texts: list[str], types: list[int]) -> Vocabulary:
    if not model.trainer_spec.byte_fallback:
        raise PastaError(f"{path}: no byte pieces, so rare characters would be lost; use a model with byte fallback")
    for id, (text, type) in enumerate(zip(texts, types, strict=True)):
        if type == _BYTE and not _BYTE_PIECE.fullmatch(text):
            raise PastaError(f"{path}: piece {id}, {text[:20]!r}, is listed as a byte; fetch the file again")
        if type not in (_NORMAL, _UNKNOWN, _BYTE) and MARKER.fullmatch(text):
            model.pieces[id].type = types[id] = _CONTROL
    content = model.SerializeToString()
    opened = always if model.normalizer_spec.add_dummy_prefix else as_it_is
    model.normalizer_spec.add_dummy_prefix = False
    try:
        processor = SentencePieceProcessor(model_proto=model.SerializeToString())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise PastaError(f"{path}: SentencePiece rejects its pieces ({reason}); fetch the file again") from error
    data = [text.replace(BLANK, " ").encode() for text in texts]
    control = {}
    for id, type in enumerate(types):
        if type == _BYTE:
            data[id] = bytes([int(texts[id][3:5], 16)])
        elif type in (_CONTROL, _UNKNOWN):
            data[id] = b""
            control[texts[id]] = id
    blank_sign = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in BLANK.encode()]
    bos = model.trainer_spec.bos_piece
    encode = around_blanks(processor.encode, blank_sign)
    return Vocabulary(
        data, control, control, bos if bos in control else None, encode, "tokenizer.model", lambda: content, opened
    )
