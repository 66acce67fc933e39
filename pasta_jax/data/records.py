"""Verified records: an answer with its tags and figures, a JSON line each, as an annotation run writes them."""

import dataclasses
import json
from pathlib import Path

from pasta_jax.data.pairs import Pair
from pasta_jax.errors import PastaError


@dataclasses.dataclass(frozen=True)
class Record:
    """An accepted answer. `program` is its surface text in PASTA-LANG; the rest of the figures follow from it."""

    id: str
    source: str
    split: str
    system: str
    instruction: str
    response: str
    program: str
    annotator: str
    evidence: dict | None  # what an annotator measured
    prompt_tokens: int
    tokens: int  # of the linear answer, tags and topics counted
    plain_tokens: int  # of the answer without tags: the sequential baseline
    chunk_tokens: list[int]  # each block, with its two tags
    topics: list[str]
    syncs: int
    critical_path: int
    speedup: float  # theoretical
    parallelism: float

    @property
    def forks(self) -> int:
        return len(self.chunk_tokens)

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def messages(pair: Pair | Record) -> list[tuple[str, str]]:
    """The question as (role, text) pairs."""
    return [*([("system", pair.system)] if pair.system else []), ("user", pair.instruction)]


def prompt_ids(pair: Pair | Record, tokenizer) -> list[int]:
    """The question as the model's own chat template writes it, the assistant's turn opened."""
    return tokenizer.chat(messages(pair))


def read_records(path: Path) -> list[Record]:
    """A file of accepted records, as an annotation run wrote it."""
    records = []
    fields = {field.name for field in dataclasses.fields(Record)}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise PastaError(f"{path}: line {number}, column {error.colno}: no JSON: {error.msg}") from None
                if not isinstance(row, dict) or row.keys() != fields:
                    raise PastaError(f"{path}: line {number}: no record of an annotation run; write them again")
                records.append(Record(**row))
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start} is not UTF-8; write the records again") from None
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; give the records.jsonl of an annotation run") from None
    return records
