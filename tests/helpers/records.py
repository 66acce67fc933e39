"""Records made by hand: a text and its annotation, verified."""

from pasta_jax.annotate.verify import verify
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import Record
from tests.helpers.traces import Chatty


def record_of(annotated: str, plain: str, question: str = "what", id: str = "1") -> Record:
    pair = Pair(id, "", question, plain, "sharegpt", "record 7, turn 3")
    verdict = verify(pair, {"text": annotated}, Chatty(), 9999, "by hand", "train")
    assert isinstance(verdict, Record), verdict
    return verdict
