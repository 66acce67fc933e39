"""Verified records: annotated answers with their figures, one JSON line each, as an annotation run writes them."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from pasta_jax.data.pairs import Pair
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import read
from pasta_jax.files.validated import MIB, AtLeastZero, Count, typed
from pasta_jax.tokenizers.tokenizer import Tokenizer

MOST_BYTES = 4 * MIB  # of a record: the text three times, and evidence
_FIX = "rerun the annotation"


@dataclasses.dataclass(frozen=True)
class Record:
    """An accepted answer. `program` is its surface text in PASTA-LANG, from which the figures follow."""

    id: str
    source: str
    origin: str  # place in the source
    license: str  # of the source's texts
    split: Literal["train", "validation"]
    system: str
    instruction: str
    response: str
    program: Annotated[str, Meta(max_length=2**18)]
    annotator: str
    evidence: dict[str, object] | None  # measurements of the annotator
    prompt_tokens: Count
    tokens: Count  # of the linear answer, tags and topics included
    plain_tokens: Count  # of the answer without tags: the sequential baseline
    chunk_tokens: list[Count]  # of each block, its two tags included
    topics: list[str]
    syncs: Count
    critical_path: Count
    speedup: AtLeastZero  # theoretical
    parallelism: AtLeastZero

    @property
    def forks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_tokens)


def messages(pair: Pair | Record) -> list[tuple[str, str]]:
    """The question as (role, text) pairs."""
    return [*([("system", pair.system)] if pair.system else []), ("user", pair.instruction)]


def prompt_ids(pair: Pair | Record, tokenizer: Tokenizer) -> list[int]:
    """The question in the model's chat template, up to the start of the assistant's turn."""
    return tokenizer.chat(messages(pair))


def read_records(path: Path) -> list[Record]:
    """Read the records.jsonl of an annotation run."""
    fields = {field.name for field in dataclasses.fields(Record)}
    records = []
    for place, row in read(path, Any, MOST_BYTES, "choose the records.jsonl of an annotation run"):
        if not isinstance(row, dict) or row.keys() != fields:
            raise PastaError(f"{place}: not a record of an annotation run; {_FIX}")
        records.append(typed(row, Record, place, _FIX))
    return records
