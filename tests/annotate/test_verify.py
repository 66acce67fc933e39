"""Verification: good annotations pass unchanged, everything else is refused with a reason and its place."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.annotate import verify as verification
from pasta_jax.annotate.verify import Refusal, verify
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import Record, read_records
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import as_line
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.tags import escape, escape_topic, tens_for
from tests.helpers.examples import examples
from tests.helpers.malformed import ANNOTATIONS, SOURCE
from tests.helpers.programs import texts
from tests.helpers.traces import Chatty, Refusing

TOKENIZER = Chatty()
PAIR = Pair("7", "Be brief.", "what", SOURCE, "mine")


def judge(annotated: str, pair: Pair = PAIR, max_tokens: int = 10_000) -> Record | Refusal:
    return verify(pair, {"text": annotated}, TOKENIZER, max_tokens, "by hand", "train")


GOOD = escape(SOURCE, ANNOTATION).replace("one two three four five", "<async topic='a'>one two three four five</async>")
GOOD = GOOD.replace("six seven eight nine ten", '<async topic="b c">six seven eight nine ten</async><sync/>')


def test_a_good_annotation_becomes_a_record():
    record = judge(GOOD)
    assert isinstance(record, Record), record
    program = Program.parse(record.program)
    assert program.strip() == SOURCE
    assert (record.forks, record.syncs, record.topics) == (2, 1, ["a", "b c"])
    assert record.chunk_tokens == [25, 26]
    assert record.plain_tokens == len(SOURCE.encode())
    assert record.tokens == record.plain_tokens + 4 * 2 + len("ab c") + 1
    assert record.prompt_tokens == len(TOKENIZER.chat([("system", "Be brief."), ("user", "what")]))
    assert record.speedup == pytest.approx(record.plain_tokens / record.critical_path, abs=1e-4)
    assert record.split == "train"


@pytest.mark.parametrize(("what", "annotated", "reason", "place"), ANNOTATIONS, ids=[what for what, *_ in ANNOTATIONS])
def test_a_bad_annotation_is_refused_at_its_place(what, annotated, reason, place):
    refusal = judge(annotated)
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.reason, refusal.place, refusal.annotation) == ("7", reason, place, annotated)
    assert "\n" not in refusal.detail


def test_a_record_too_long_for_the_pool_is_refused():
    record = judge(GOOD)
    need = record.prompt_tokens + record.tokens
    assert isinstance(judge(GOOD, max_tokens=need), Record)
    refusal = judge(GOOD, max_tokens=need - 1)
    assert (refusal.place, refusal.reason) == ("whole record", verification.TOO_LONG)


def test_a_program_whose_promises_are_wrong_is_refused():
    chunk = "one two three four five"
    pair = dataclasses.replace(PAIR, response=chunk)
    right = tens_for(len(chunk) + 2)
    for tens, kind in ((right, Record), (right + 1, Refusal)):
        program = Program((Chunk("a", tens, chunk),))
        assert isinstance(
            verify(pair, {"program": program.render(), "evidence": {}}, TOKENIZER, 10_000, "x", "train"), kind
        )


def test_text_that_a_tokenizer_does_not_round_trip_is_refused():
    class Lossy(Chatty):
        def decode(self, ids) -> str:
            return super().decode(ids).replace("é", "e")

    pair = dataclasses.replace(PAIR, response="un dé pipé")
    assert isinstance(judge("un dé pipé", pair), Record)
    refusal = verify(pair, {"text": "un dé pipé"}, Lossy(), 10_000, "x", "train")
    assert (refusal.place, refusal.reason) == ("program, line 1, column 5", verification.NOT_ENCODABLE)

    assert verify(pair, {"text": "un dé pipé"}, Refusing(), 10_000, "x", "train").reason == verification.NOT_ENCODABLE


@given(st.lists(st.tuples(texts, st.sampled_from(["main", "chunk", "sync"])), max_size=6))
@examples(150)
def test_faithful_annotations_strip_to_their_source(parts):
    """Awkward sources, full of look-alikes, are refused for style at most, never for their text."""
    source, annotated, program = [], [], []
    for text, kind in parts:
        if kind == "sync":
            annotated.append("<sync/>")
            program.append(Sync())
            continue
        source.append(text)
        piece = escape(text, ANNOTATION)
        annotated.append(piece if kind == "main" else f'<async topic="{escape_topic("t")}">{piece}</async>')
        program.append(Text(text) if kind == "main" else Chunk("t", tens_for(len(TOKENIZER.encode(text)) + 2), text))
    pair = dataclasses.replace(PAIR, response="".join(source))
    if not pair.response:
        return
    verdict = judge("".join(annotated), pair)
    short = any(kind == "chunk" and len(text.split()) < 5 for text, kind in parts)
    assert isinstance(verdict, Refusal if short else Record), verdict
    if isinstance(verdict, Record):
        assert Program.parse(verdict.program) == Program(tuple(program))


def test_edits_anywhere_are_found():
    rng = random.Random(1)
    for _ in range(200):
        at = rng.randrange(len(GOOD))
        edited = GOOD[:at] + rng.choice(["", "x", " ", "<sync>"]) + GOOD[at + rng.randrange(2) :]
        verdict = judge(edited)
        if isinstance(verdict, Record):
            assert Program.parse(verdict.program).strip() == SOURCE


def test_records_are_read_back(tmp_path):
    record = judge(GOOD)
    path = tmp_path / "records.jsonl"
    path.write_text(as_line(record) + "\n")
    assert read_records(path) == [record]
    for wrong, place in (
        ("{", "line 2, column"),
        ("[]", "line 2: not a record"),
        ('{"id": "1"}', "line 2: not a record"),
    ):
        path.write_text(as_line(record) + "\n" + wrong)
        with pytest.raises(PastaError, match=place):
            read_records(path)
    path.write_bytes(b"\xff")
    with pytest.raises(PastaError, match="UTF-8"):
        read_records(path)
    with pytest.raises(PastaError, match=r"absent\.jsonl"):
        read_records(tmp_path / "absent.jsonl")
