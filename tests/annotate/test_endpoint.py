"""Annotation by a model behind an API: answers that break the rules, the cache, tags laid over the source."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.annotate.endpoint import TextChanged, annotate_all, overlay
from pasta_jax.annotate.prompt import DEMONSTRATIONS, question, strip_marks
from pasta_jax.annotate.settings import EndpointSettings
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, Program
from pasta_jax.lang.tags import escape
from pasta_jax.llm.client import EndpointError
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.endpoint_server import FakeTime, Server, bad, endpoint, good
from tests.helpers.examples import examples
from tests.helpers.programs import random_program, unescape

TOKENIZER = ByteTokenizer()


def check(annotation: str) -> Program:
    return Program.from_annotation(annotation, TOKENIZER)


SOURCE = "Here: one two three four five.  Then: six seven eight nine ten!\n"
MARKED = (
    "Here:<async topic='first'> one two three four five.</async>  Then:<async topic='second'> six seven eight nine"
    " ten!</async>\n"
)


def annotate(url: str, cache: Path, pairs=(("q", SOURCE),), attempts=2, concurrency=2, time=None, **changes) -> list:
    clock = (time or FakeTime()).clock()
    settings = EndpointSettings(endpoint=endpoint(url, **changes), concurrency=concurrency, attempts=attempts)
    answers = annotate_all(pairs, settings, cache, check, clock)
    by_index = {index: answer for index, answer, _ in answers}
    return [by_index[index] for index in range(len(pairs))]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (good(MARKED.replace("three", "thirty")), "rewritten"),
        (good(MARKED[: len(MARKED) // 2] + "</async>"), "rewritten"),
        (good("I'm sorry, but I can't help with that."), "rewritten"),
        (good(MARKED.replace("</async>", "")), "an <async> must be closed"),
        (good(MARKED.replace("<async topic='second'>", "")), "an </async> must close an <async>"),
        (good(MARKED.replace("'first'", "'much too long a topic'")), "a topic has at most 3 words"),
        (good(MARKED.replace(" four five.</async>", "</async> four five.")), "a chunk has at least 5 words"),
        (good(MARKED.replace(" topic='first'", "")), "an annotation's <async> must have a topic"),
        (good(""), "declined"),
    ],
)
def test_an_unusable_answer_is_a_failure_with_its_reason(answer, reason, tmp_path):
    with Server(lambda _, body: answer if "spoil" in body["messages"][15]["content"] else good(MARKED)) as server:
        pairs = [("fine", SOURCE), ("spoil", SOURCE), ("fine too", SOURCE)]
        before, failure, after = annotate(server.url, tmp_path / "cache", pairs)
    assert before == after == {"text": MARKED}, "good records beside a bad one survive"
    text = json.loads(answer[2])["choices"][0]["message"]["content"]
    assert failure.pop("refused", "") == text
    assert failure.keys() == {"failure", "detail"}
    assert failure["failure"] == reason


def test_a_refused_answer_is_requested_again_with_the_reason(tmp_path):
    with Server(lambda n, _: good(MARKED.replace("three", "thirty")) if n == 1 else good(MARKED)) as server:
        assert annotate(server.url, tmp_path / "cache") == [{"text": MARKED}]
    complaint = server.seen[1][2]["messages"][-1]
    assert complaint["role"] == "user"
    assert "character 17 of the response" in complaint["content"]


def test_a_fatal_error_ends_the_run_at_once_though_others_wait_for_a_retry(tmp_path):
    def respond(n, body):
        if "fatal" not in body["messages"][15]["content"]:
            return bad(503)
        while n < 3 and len(server.seen) < 3:
            time.sleep(0.005)
        return bad(401)

    began = time.monotonic()
    with Server(respond) as server:
        pairs = [("a", SOURCE), ("b", SOURCE), ("fatal", SOURCE)]
        settings = EndpointSettings(endpoint=endpoint(server.url, backoff_s=30.0), attempts=1)
        with pytest.raises(EndpointError):
            list(annotate_all(pairs, settings, tmp_path / "cache", check))
    assert time.monotonic() - began < 10


@examples(200)
@given(st.randoms(use_true_random=False), st.booleans())
def test_tags_are_laid_over_the_source_despite_changed_whitespace(rng, squeezed):
    program, _ = random_program(rng)
    source = program.strip()
    answer = "".join(
        f'<async topic="t">{escape(part.text, ANNOTATION)}</async>'
        if isinstance(part, Chunk)
        else escape(getattr(part, "text", ""), ANNOTATION)
        for part in program.parts
    )
    if squeezed:
        answer = "\n".join(answer.split("  "))
    result = overlay(answer, source)
    assert result == answer or squeezed
    assert result.count('<async topic="t">') == answer.count('<async topic="t">')
    # Look-alikes are escaped within each piece of text; joining two pieces may create another one.
    pieces = re.split('<async topic="t">|</async>', result)
    assert "".join(unescape(piece, ANNOTATION) for piece in pieces) == source


@pytest.mark.parametrize("answer", ["", "one", "one two three", "one tow", "two one two"])
def test_other_words_are_refused(answer):
    with pytest.raises(TextChanged, match="character"):
        overlay(answer, "one two")


@pytest.mark.parametrize(("instruction", "marked"), DEMONSTRATIONS)
def test_demonstrations_follow_the_rules_they_teach(instruction, marked):
    program = Program.from_annotation(marked, TOKENIZER)
    assert program.strip() == strip_marks(marked)
    assert len([part for part in program.parts if isinstance(part, Chunk)]) != 1
    assert ("assistant", marked) in question("q", "r")
