"""Annotation over HTTP, against a local server that fails in every way that real ones do."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.annotate.endpoint import Failure, TextChanged, annotate_all, overlay
from pasta_jax.annotate.prompt import DEMONSTRATIONS, question, strip_marks
from pasta_jax.errors import PastaError
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, Program
from pasta_jax.lang.tags import escape
from pasta_jax.llm.client import Client, EndpointError, LLMError
from tests import ROOT
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.endpoint_server import FakeTime, Server, bad, endpoint, good
from tests.helpers.examples import examples
from tests.helpers.programs import random_program, unescape

TOKENIZER = ByteTokenizer()
KEY = "sk-very-secret-0123456789"


def check(annotation: str) -> Program:
    return Program.from_annotation(annotation, TOKENIZER)


SOURCE = "Here: one two three four five.  Then: six seven eight nine ten!\n"
MARKED = (
    "Here:<async topic='first'> one two three four five.</async>  Then:<async topic='second'> six seven eight nine"
    " ten!</async>\n"
)
ASK = (("user", "hello"),)


def annotate(url: str, cache: Path, pairs=(("q", SOURCE),), attempts=2, concurrency=2, time=None, **changes) -> list:
    clock = (time or FakeTime()).clock()
    answers = annotate_all(pairs, endpoint(url, **changes), concurrency, attempts, cache, check, clock)
    by_index = {index: answer for index, answer, _ in answers}
    return [by_index[index] for index in range(len(pairs))]


@pytest.mark.parametrize(
    ("first", "pauses"),
    [
        (bad(500), [1.0]),
        (bad(429, {"Retry-After": "7"}), [7.0]),
        (bad(429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), [1.0]),
        (bad(429, {"Retry-After": "86400"}), [60.0]),
        ((200, {}, good(MARKED)[2][:60], 400), [1.0]),
        (bad(200, body=b"<html>busy</html>"), [1.0]),
        (bad(200, body=b'{"choices": []}'), [1.0]),
        (bad(200, body=b"[1, 2]"), [1.0]),
    ],
    ids=["500", "429", "429 until a date", "429 for a day", "cut off", "not JSON", "no choice", "a list"],
)
def test_a_transient_failure_is_retried(first, pauses, tmp_path):
    time = FakeTime()
    with Server(lambda n, _: first if n == 1 else good(MARKED)) as server:
        assert annotate(server.url, tmp_path / "cache", time=time) == [MARKED]
    assert len(server.seen) == 2
    assert time.slept == pytest.approx(pauses, abs=0.01)


def test_back_off_doubles_and_gives_up(tmp_path):
    time = FakeTime()
    with Server(lambda *_: bad(503)) as server:
        [failure] = annotate(server.url, tmp_path / "cache", time=time, max_backoff_s=3.0)
    assert failure.reason == "status 503"
    assert "4 times" in failure.detail
    assert time.slept == pytest.approx([1, 2, 3], abs=0.01)


def test_a_slow_server_times_out(tmp_path):
    def slow(*_):
        time.sleep(0.1)
        return good(MARKED)

    with Server(slow) as server:
        [failure] = annotate(server.url, tmp_path / "cache", timeout_s=0.02, retries=1)
    assert failure.reason == "timeout"


def test_an_unreachable_server_is_a_failure(tmp_path):
    with Server(lambda *_: good(MARKED)) as server:
        pass
    [failure] = annotate(server.url, tmp_path / "cache", retries=0)
    assert failure.reason == "no connection"


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
        (good(MARKED, ended="length"), "too long"),
        (good(None), "declined"),
        (good(""), "declined"),
        (bad(400, body=b'{"error": "content filter"}'), "status 400"),
    ],
)
def test_an_unusable_answer_is_a_failure_with_its_reason(answer, reason, tmp_path):
    with Server(lambda _, body: answer if "spoil" in body["messages"][15]["content"] else good(MARKED)) as server:
        pairs = [("fine", SOURCE), ("spoil", SOURCE), ("fine too", SOURCE)]
        before, failure, after = annotate(server.url, tmp_path / "cache", pairs)
    assert before == after == MARKED, "good records beside a bad one survive"
    assert isinstance(failure, Failure)
    assert failure.reason == reason
    assert failure.detail


def test_a_refused_answer_is_requested_again_with_the_reason(tmp_path):
    with Server(lambda n, _: good(MARKED.replace("three", "thirty")) if n == 1 else good(MARKED)) as server:
        assert annotate(server.url, tmp_path / "cache") == [MARKED]
    complaint = server.seen[1][2]["messages"][-1]
    assert complaint["role"] == "user"
    assert "character 17 of the response" in complaint["content"]


@pytest.mark.parametrize("status", [401, 403, 404, 301])
def test_a_wrong_key_or_address_ends_the_run_without_showing_the_key(status, tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)
    headers = {"Location": "http://127.0.0.1:9/"} if status == 301 else {}
    with (
        Server(lambda *_: bad(status, headers, f"wrong key {KEY}".encode())) as server,
        pytest.raises(EndpointError, match="OUR_KEY") as caught,
    ):
        annotate(server.url, tmp_path / "cache", key_variable="OUR_KEY")
    assert KEY not in str(caught.value)
    assert len(server.seen) <= 2


def test_the_key_goes_into_a_header_only(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)
    with Server(lambda *_: good(MARKED)) as server:
        annotate(server.url, tmp_path / "cache", key_variable="OUR_KEY")
    [(path, headers, body)] = server.seen
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(body) + (tmp_path / "cache").read_text()


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
        with pytest.raises(EndpointError):
            list(annotate_all(pairs, endpoint(server.url, backoff_s=30.0), 3, 1, tmp_path / "cache", check))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("value", ["", "  ", "two words"])
def test_a_missing_or_broken_key_is_named(value, tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_KEY", value)
    with pytest.raises(PastaError, match="OUR_KEY"):
        annotate("http://127.0.0.1:9", tmp_path / "cache", key_variable="OUR_KEY")


def test_gemini(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)
    answers = {
        "fine": {"candidates": [{"content": {"parts": [{"text": MARKED[:30]}, {"text": MARKED[30:]}]}}]},
        "cut": {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "MAX_TOKENS"}]},
        "blocked": {"promptFeedback": {"blockReason": "SAFETY"}},
        "silent": {"candidates": [{"finishReason": "SAFETY"}]},
    }

    def respond(_, body):
        word = body["contents"][-1]["parts"][0]["text"].split()[1]
        return bad(200, body=json.dumps(answers[word] | {"usageMetadata": {"promptTokenCount": 7}}).encode())

    with Server(respond) as server:
        pairs = [(word, SOURCE) for word in answers]
        change = dict(kind="gemini", model="gem/1", key_variable="OUR_KEY")
        fine, *failures = annotate(server.url, tmp_path / "cache", pairs, **change)
    assert fine == MARKED
    assert [failure.reason for failure in failures] == ["too long", "declined", "declined"]
    path, headers, body = server.seen[0]
    assert path == "/v1/models/gem%2F1:generateContent"
    assert headers["X-Goog-Api-Key"] == KEY
    assert "You are an expert editor" in body["systemInstruction"]["parts"][0]["text"]
    assert [turn["role"] for turn in body["contents"]] == ["user", "model"] * 7 + ["user"]


def test_requests_are_paced(tmp_path):
    time = FakeTime()
    with Server(lambda *_: good(MARKED)) as server:
        pairs = [(str(n), SOURCE) for n in range(5)]
        annotate(server.url, tmp_path / "cache", pairs, concurrency=1, time=time, requests_per_minute=6)
    assert time.slept == pytest.approx([10] * 4)


def test_counts_and_costs_and_the_cache(tmp_path):
    with Server(lambda *_: good(MARKED)) as server:
        for cached in (False, True):
            with Client(endpoint(server.url), tmp_path / "cache") as client:
                assert client.chat(ASK) == MARKED
            used = client.usage
            assert (used.requests, used.cache_hits) == (int(not cached), int(cached))
            assert (used.tokens_in, used.tokens_out) == ((0, 0) if cached else (1000, 100))
            assert used.dollars == pytest.approx(0 if cached else 0.003)
        with Client(endpoint(server.url, model="other"), tmp_path / "cache") as client:
            client.chat(ASK)
    assert len(server.seen) == 2, "another model is another question"


def test_a_cut_off_cache_line_is_removed_and_a_foreign_one_named(tmp_path):
    cache = tmp_path / "cache"
    with Server(lambda *_: good(MARKED)) as server:
        annotate(server.url, cache, [(str(n), SOURCE) for n in range(3)], concurrency=1)
        whole = cache.read_bytes()
        cache.write_bytes(whole[:-20])
        annotate(server.url, cache, [(str(n), SOURCE) for n in range(3)], concurrency=1)
    assert cache.read_bytes() == whole
    assert len(server.seen) == 4
    cache.write_bytes(whole.splitlines(keepends=True)[0] + b'{"key": 1}\n')
    with pytest.raises(PastaError, match="line 2"):
        annotate("http://127.0.0.1:9", cache)


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path):
    """After kill -9 during requests, the answers of both runs together are those of one."""
    pairs = [(str(n), SOURCE) for n in range(12)]
    slow = threading.Event()

    def respond(n, _):
        if n > 5 and not slow.is_set():
            time.sleep(0.05)
        return good(MARKED)

    program = (
        "import sys; from pathlib import Path; from tests.test_endpoint import annotate, SOURCE;"
        "annotate(sys.argv[1], Path(sys.argv[2]), [(str(n), SOURCE) for n in range(12)])"
    )
    with Server(respond) as server:
        command = [sys.executable, "-c", program, server.url, str(tmp_path / "killed")]
        killed = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        while len(server.seen) < 7:
            assert killed.poll() is None
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        slow.set()
        before = len(server.seen)
        cached = (tmp_path / "killed").read_bytes().count(b"\n")
        assert 0 < cached < len(pairs)
        resumed = annotate(server.url, tmp_path / "killed", pairs)
        assert len(server.seen) - before == len(pairs) - cached
        assert resumed == annotate(server.url, tmp_path / "whole", pairs)
    killed, whole = ((tmp_path / name).read_text().splitlines() for name in ("killed", "whole"))
    assert sorted(killed) == sorted(whole)


def test_an_empty_answer_is_an_error(tmp_path):
    with (
        Server(lambda *_: good("")) as server,
        Client(endpoint(server.url), tmp_path / "cache") as client,
        pytest.raises(LLMError, match="declined"),
    ):
        client.chat(ASK)


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
