"""Verified records: annotated answers with their figures, one JSON line each, as an annotation run writes them."""

import dataclasses
import json
from pathlib import Path

from pasta_jax.data.pairs import Pair
from pasta_jax.errors import PastaError
from pasta_jax.models.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Record:
    """An accepted answer. `program` is its surface text in PASTA-LANG, from which the figures follow."""

    id: str
    source: str
    origin: str  # place in the source
    license: str  # of the source's texts
    split: str
    system: str
    instruction: str
    response: str
    program: str
    annotator: str
    evidence: dict[str, object] | None  # measurements of the annotator
    prompt_tokens: int
    tokens: int  # of the linear answer, tags and topics included
    plain_tokens: int  # of the answer without tags: the sequential baseline
    chunk_tokens: list[int]  # of each block, its two tags included
    topics: list[str]
    syncs: int
    critical_path: int
    speedup: float  # theoretical
    parallelism: float

    @property
    def forks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_tokens)

    def json(self) -> str:
        """The record on one line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def messages(pair: Pair | Record) -> list[tuple[str, str]]:
    """The question as (role, text) pairs."""
    return [*([("system", pair.system)] if pair.system else []), ("user", pair.instruction)]


def prompt_ids(pair: Pair | Record, tokenizer: Tokenizer) -> list[int]:
    """The question in the model's chat template, up to the start of the assistant's turn."""
    return tokenizer.chat(messages(pair))


def read_records(path: Path) -> list[Record]:
    """Read the records.jsonl of an annotation run."""
    records = []
    fields = {field.name for field in dataclasses.fields(Record)}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise PastaError(f"{path}: line {number}, column {error.colno}: not JSON: {error.msg}") from None
                if not isinstance(row, dict) or row.keys() != fields:
                    raise PastaError(f"{path}: line {number}: not a record of an annotation run; rerun the annotation")
                records.append(Record(**row))
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start} is not UTF-8; rerun the annotation") from None
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; choose the records.jsonl of an annotation run") from None
    return records
