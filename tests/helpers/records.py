"""Verified records: of a text and its annotation, and of the toy task."""

from pasta_jax.annotate.verify import verify
from pasta_jax.data.pairs import Pair, split_of
from pasta_jax.data.records import Record
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from tests.helpers.traces import Chatty


def record_of(annotated: str, plain: str, question: str = "what", id: str = "1") -> Record:
    pair = Pair(id, "", question, plain, "sharegpt", "record 7, turn 3")
    verdict = verify(pair, {"text": annotated}, Chatty(), 9999, "by hand", "train")
    assert isinstance(verdict, Record), verdict
    return verdict


def toy_records(count: int, validation_percent: int = 0) -> list[Record]:
    """The first problems of the toy task with their own annotations; each instruction once."""
    records = []
    for problem in {problem.instruction: problem for problem in problems(1, 0, count, "medium")}.values():
        pair = Pair.of("", problem.instruction, problem.answer, "toy")
        split = split_of(pair, validation_percent)
        records.append(verify(pair, {"text": problem.annotation}, toy_tokenizer(), 2048, "toy", split))
    return records
