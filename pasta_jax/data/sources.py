"""Where pairs come from: files, TFDS names, and the data in packages; and which of them may be trained on."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pasta_jax import assets
from pasta_jax.data.pairs import Bad, Pair, pair_of, prompt_key
from pasta_jax.errors import PastaError

PACKAGED = {
    "sharegpt": assets.sharegpt_json,
    "alpaca_rows": assets.alpaca_rows_json,
    "preferences": assets.preferences_json,
    "alpaca_eval": assets.alpaca_eval_json,
    "mt_bench": assets.mt_bench_jsonl,
    "ifeval": assets.ifeval_jsonl,
}
EVALUATION = ("alpaca_eval", "mt_bench", "ifeval")
MOST_BYTES = 2**20  # of one record; what is longer is no question with its answer

NO_JSON = "a record must be JSON"
TOO_LARGE = f"a record has at most {MOST_BYTES} bytes"
NOT_UTF8 = "a record must be UTF-8"
TOO_DEEP = "a record must not be nested deeply"

Row = tuple[str, object]  # place, record as parsed or Bad


def read(source: str) -> Iterator[Pair | Bad]:
    """The pairs of a source, in order, and in its place each record that can't be read.

    A source is a name of PACKAGED, a file (.jsonl, .json, .parquet) or a TFDS name `tfds:name/split`.
    """
    named = _name(source)
    for where, row in rows_of(source):
        yield row if isinstance(row, Bad) else pair_of(row, named, where)


def rows_of(source: str) -> Iterator[Row]:
    """The records of a source as parsed, each with its place."""
    if source in PACKAGED:
        rows = _rows_of_file(PACKAGED[source](), cut_off=source == "sharegpt")
    elif source.startswith("tfds:"):
        rows = _tfds_rows(source)
    else:
        rows = _rows_of_file(Path(source), cut_off=False)
    for place, row in rows:
        where = f"{_name(source)}: {place}"
        yield where, dataclasses.replace(row, place=where) if isinstance(row, Bad) else row


def _name(source: str) -> str:
    """What a source is called in places and records: never a folder of this machine."""
    return source if source in PACKAGED or source.startswith("tfds:") else Path(source).name


def refuse_for_training(sources: Iterable[str]) -> None:
    """Raise where a data set holds what is kept for evaluation."""
    if kept := sorted(set(sources) & set(EVALUATION)):
        raise PastaError(f"{', '.join(kept)}: kept for evaluation, not to be trained on; take other data")


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which pairs are used. Words are what blanks divide."""

    prompt_words: tuple[int, int]  # fewest and most
    response_words: tuple[int, int]
    drop_duplicates: bool  # the first of several with the same prompt stays
    drop_evaluation: bool  # prompts of AlpacaEval, MT-bench and IFEval; needs them installed


def select(pairs: Iterable[Pair], wanted: Filter) -> tuple[list[Pair], Counter]:
    """The pairs to use, in order, and how many were left out for which reason."""
    evaluated = evaluation_prompts() if wanted.drop_evaluation else set()
    seen: set[str] = set()
    chosen: list[Pair] = []
    left_out: Counter = Counter()
    for pair in pairs:
        key = prompt_key(pair)
        if not _within(len(pair.instruction.split()), wanted.prompt_words):
            left_out["length of the prompt"] += 1
        elif not _within(len(pair.response.split()), wanted.response_words):
            left_out["length of the response"] += 1
        elif key in evaluated:
            left_out["prompt kept for evaluation"] += 1
        elif wanted.drop_duplicates and key in seen:
            left_out["prompt seen before"] += 1
        else:
            seen.add(key)
            chosen.append(pair)
    return chosen, left_out


def evaluation_prompts() -> set[str]:
    """Keys of all prompts that are kept for evaluation."""
    return {prompt_key(pair) for source in EVALUATION for pair in read(source) if isinstance(pair, Pair)}


def _within(count: int, limits: tuple[int, int]) -> bool:
    return limits[0] <= count <= limits[1]


def _rows_of_file(path: Path, cut_off: bool) -> Iterator[Row]:
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        known = ", ".join((*PACKAGED, "tfds:name/split"))
        raise PastaError(f"{path}: no source; give a file (.jsonl, .json, .parquet) or one of {known}")
    try:
        if path.suffix == ".json" and _begins_list(path):
            yield from _list_rows(path, cut_off)
        elif path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _lines(path)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; give a file that can be read") from None


def _lines(path: Path) -> Iterator[Row]:
    """JSON lines. A line that is too long is skipped without being held in memory."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_BYTES + 1):
            number += 1
            place = f"line {number}"
            if len(line) > MOST_BYTES and not line.endswith(b"\n"):
                size = len(line)
                while (more := file.readline(MOST_BYTES)) and not more.endswith(b"\n"):
                    size += len(more)
                yield place, Bad(place, TOO_LARGE, f"it has {size + len(more)}")
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield place, _parsed(line, place)


def _parsed(line: bytes, place: str) -> object:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Bad(place, NOT_UTF8, f"byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return Bad(place, NO_JSON, f"column {error.colno}: {error.msg}")
    except RecursionError:
        return Bad(place, TOO_DEEP)


def _begins_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _list_rows(path: Path, cut_off: bool) -> Iterator[Row]:
    """One JSON list, read item by item: what stands before a broken place is not lost with it."""
    try:
        # The end of a cut-off file may lie within a character.
        text = path.read_bytes().decode("utf-8-sig", "ignore" if cut_off else "strict")
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start + 1} is not UTF-8; convert it to UTF-8") from None
    decoder, blanks = json.JSONDecoder(), " \t\r\n"
    at, number = text.index("[") + 1, 0
    while True:
        while at < len(text) and text[at] in blanks:
            at += 1
        if text[at : at + 1] == "]":
            return
        number += 1
        place = f"record {number}"
        try:
            row, stop = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if not (cut_off and error.pos > at):
                yield place, Bad(place, NO_JSON, f"line {error.lineno}, column {error.colno}: {error.msg}")
            return
        except RecursionError:
            yield place, Bad(place, TOO_DEEP)
            return
        # The limit is of bytes; four bytes a character are the most there can be.
        large = stop - at > MOST_BYTES or (4 * (stop - at) > MOST_BYTES < len(text[at:stop].encode("utf-8", "replace")))
        yield place, Bad(place, TOO_LARGE) if large else row
        at = stop
        while at < len(text) and text[at] in blanks:
            at += 1
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            if not cut_off:
                yield place, Bad(place, NO_JSON, f"behind record {number}, character {at + 1}: no comma and no end")
            return


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
        raise PastaError(f"{path}: no readable Parquet file ({words}); write it again") from None


def _tfds_rows(source: str) -> Iterator[Row]:
    """A TFDS data set in array_record form: `tfds:name/split`, found in TFDS's own folder."""
    name, _, split = source.removeprefix("tfds:").rpartition("/")
    if not name or not split:
        raise PastaError(f"{source}: write tfds:name/split, such as tfds:my_set/train")
    import tensorflow_datasets as tfds

    try:
        rows = tfds.data_source(name, split=split, download=False)
    except Exception as error:  # TFDS raises a family of its own, AssertionErrors and more
        words = " ".join(str(error).split())[:160]
        raise PastaError(
            f"{source}: TFDS can't read it ({words}); prepare it with file_format='array_record'"
        ) from None
    for number in range(len(rows)):
        yield f"record {number + 1}", {key: _text_of_bytes(value) for key, value in rows[number].items()}


def _text_of_bytes(value: object) -> object:
    """TFDS gives texts as bytes, and a list of objects as an object of lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_text_of_bytes(part) for part in value]
    if not isinstance(value, dict):
        return value
    value = {key: _text_of_bytes(part) for key, part in value.items()}
    if value and all(isinstance(part, list) for part in value.values()):
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    return value


def given_preferences() -> list[tuple[str, str, str]]:
    """(question, chosen answer, rejected answer) of packaged conversations; who preferred is not said.

    The two answers end a conversation: of one with several turns, the question is the last, by itself.
    """
    found = []
    for place, row in rows_of("preferences"):
        if not isinstance(row, dict) or not {"conversations", "chosen", "rejected"} <= row.keys():
            continue
        asked = row["conversations"][-1:]
        ends = [{"conversations": asked, "chosen": row[name]} for name in ("chosen", "rejected")]
        chosen, rejected = (pair_of(end, "preferences", place) for end in ends)
        if isinstance(chosen, Pair) and isinstance(rejected, Pair):
            found.append((chosen.instruction, chosen.response, rejected.response))
    return found
