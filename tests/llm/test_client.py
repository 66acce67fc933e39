"""The client against a local server that fails in every way that real ones do."""

import contextlib
import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.llm.client import IN_A_ROW, Client, EndpointDown, EndpointError, LLMError, Unavailable
from tests.helpers.endpoint_server import FakeTime, Server, bad, endpoint, good

KEY = "sk-very-secret-0123456789"


def ask(number: int = 0) -> tuple[tuple[str, str], ...]:
    return (("user", f"question {number}"),)


@pytest.fixture
def client(tmp_path):
    """A client of a server that answers with the given function; it keeps its clock as `time` and its `server`."""
    with contextlib.ExitStack() as stack:

        def of(respond, **changes) -> Client:
            server, clock = stack.enter_context(Server(respond)), FakeTime()
            service = dataclasses.replace(endpoint(server.url), **changes)
            one = stack.enter_context(Client(service, tmp_path / "cache", clock.clock()))
            one.server, one.time = server, clock
            return one

        yield of


@pytest.mark.parametrize(
    ("first", "pauses"),
    [
        (bad(500), [1.0]),
        (bad(429, {"Retry-After": "7"}), [7.0]),
        (bad(429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), [1.0]),
        (bad(429, {"Retry-After": "86400"}), [60.0]),
        ((200, {}, good("yes")[2][:60], 400), [1.0]),
        (bad(200, body=b"<html>busy</html>"), [1.0]),
        (bad(200, body=b'{"choices": []}'), [1.0]),
        (bad(200, body=b'{"error": "busy"}'), [1.0]),
        (bad(200, body=b"[1, 2]"), [1.0]),
    ],
    ids=["500", "429", "until a date", "for a day", "cut off", "not JSON", "no choice", "an error", "a list"],
)
def test_a_transient_failure_is_retried(first, pauses, client):
    one = client(lambda n, _: first if n == 1 else good("yes"))
    assert one.chat(ask()) == "yes"
    assert (len(one.server.seen), one.usage.retries) == (2, 1)
    assert one.time.slept == pytest.approx(pauses, abs=0.01)


def test_back_off_doubles_and_gives_up(client):
    one = client(lambda *_: bad(503), max_backoff_s=3.0)
    with pytest.raises(Unavailable, match=r"status 503.*4 times"):
        one.chat(ask())
    assert one.time.slept == pytest.approx([1, 2, 3], abs=0.01)


def test_a_slow_or_absent_server_is_unavailable(client):
    one = client(lambda *_: time.sleep(0.1) or good("yes"), timeout_s=0.02, retries=1)
    with pytest.raises(Unavailable, match=r"timeout: .*2 times"):
        one.chat(ask())
    absent = client(lambda *_: good("yes"), url="http://127.0.0.1:9", retries=0)
    with pytest.raises(Unavailable, match=r"no connection: .*refused"):
        absent.chat(ask())


def test_an_address_where_nothing_listens_ends_the_run_soon_and_is_named_at_once(client, capsys):
    absent = client(lambda *_: good("yes"), url="http://127.0.0.1:9", retries=6)
    with pytest.raises(EndpointDown, match=r"http://127\.0\.0\.1:9: no connection: .*refused; start the server or set"):
        absent.chat(ask())
    assert absent.time.slept == pytest.approx([1, 2], abs=0.01)
    assert "http://127.0.0.1:9: no connection" in capsys.readouterr().err


def test_a_server_that_was_there_is_waited_for(client):
    one = client(lambda *_: good("yes"), retries=4)
    assert one.chat(ask()) == "yes"
    one.server.__exit__(None, None, None)
    with pytest.raises(Unavailable, match="5 times"):
        one.chat(ask(1))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (good("ye", ended="length"), "too long"),
        (good(None), "declined"),
        (good(""), "declined"),
        (bad(400, body=b'{"error": "max_tokens is too large"}'), "status 400"),
    ],
)
def test_an_unusable_answer_is_final_for_its_request_only(answer, reason, client):
    one = client(lambda _, body: answer if "question" in body["messages"][-1]["content"] else good("yes"))
    for number in range(IN_A_ROW + 1):
        with pytest.raises(LLMError) as error:
            one.chat(ask(number))
    assert error.value.reason == reason
    assert not isinstance(error.value, Unavailable)
    assert len(one.server.seen) == (IN_A_ROW + 1) * (2 if reason == "status 400" else 1)


@pytest.mark.parametrize(
    ("body", "requests"), [(b'{"error": "unknown field"}', 2), (b'[{"error": {"message": "API key not valid."}}]', 1)]
)
def test_an_endpoint_that_refuses_whatever_it_is_asked_ends_the_run(body, requests, client):
    one = client(lambda *_: bad(400, body=body))
    with pytest.raises(EndpointError, match=f"{one.server.url}: status 400 .*; check the url"):
        one.chat(ask())
    assert len(one.server.seen) == requests


def test_reasoning_is_asked_for_counted_and_part_of_the_question(client):
    one = client(lambda *_: good("yes", total=1700), reasoning_effort="low")
    other = client(lambda *_: good("no"))
    assert (one.chat(ask()), other.chat(ask())) == ("yes", "no")
    assert one.server.seen[0][2]["reasoning_effort"] == "low"
    assert (one.usage.tokens_in, one.usage.tokens_out) == (1000, 700)


@pytest.mark.parametrize("status", [401, 403, 404, 301])
def test_a_wrong_key_or_address_ends_the_run_without_showing_the_key(status, client, monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)
    other = client(lambda *_: good("yes"))
    headers = {"Location": other.server.url} if status == 301 else {}
    one = client(lambda *_: bad(status, headers, f"wrong key {KEY}".encode()), key_variable="OUR_KEY")
    with pytest.raises(EndpointError, match=r"\[key\].*OUR_KEY") as caught:
        one.chat(ask())
    assert KEY not in str(caught.value)
    assert (len(one.server.seen), len(other.server.seen)) == (1, 0)


def test_a_request_holds_the_key_in_one_header_and_nothing_of_the_environment(client, monkeypatch, tmp_path):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OUR_KEY"):
        monkeypatch.setenv(name, KEY)
    with_key, without = client(lambda *_: good("yes"), key_variable="OUR_KEY"), client(lambda *_: good("yes"))
    for one in (with_key, without):
        one.chat(ask(one is with_key))
        [(path, headers, body)] = one.server.seen
        assert path == "/v1/chat/completions"
        assert [name for name, value in headers.items() if KEY in value] == ["authorization"] * (one is with_key)
        assert body.keys() == {"model", "messages", "temperature", "max_tokens"}
        assert KEY not in str(body) + (tmp_path / "cache").read_text()


def test_what_answers_depend_on_holds_no_secret_of_an_address():
    identity = endpoint(f"https://me:{KEY}@a.example:8000/v1?key={KEY}#{KEY}", reasoning_effort="low").identity()
    assert (identity["url"], identity["reasoning_effort"]) == ("https://a.example:8000/v1", "low")


@pytest.mark.parametrize("value", ["", "  ", "two words"])
def test_a_missing_or_broken_key_and_a_broken_address_are_named(value, client, monkeypatch):
    monkeypatch.setenv("OUR_KEY", value)
    with pytest.raises(PastaError, match="OUR_KEY"):
        client(bad, key_variable="OUR_KEY")
    with pytest.raises(PastaError, match="url 'ftp"):
        client(bad, url="ftp://127.0.0.1")


def test_requests_are_paced(client):
    one = client(lambda *_: good("yes"), requests_per_minute=6)
    for number in range(5):
        one.chat(ask(number))
    assert one.time.slept == pytest.approx([10] * 4)


@pytest.mark.parametrize("status", [429, 500, 507, 522])
def test_many_failures_in_a_row_end_the_run_and_an_answer_starts_the_count_again(status, client):
    up = [False]
    one = client(lambda *_: good("yes") if up[0] else bad(status), retries=0)
    for up[0] in (False, True, False):
        for number in range(1 if up[0] else IN_A_ROW - 1):
            if up[0]:
                assert one.chat(ask(-1)) == "yes"
                continue
            with pytest.raises(Unavailable):
                one.chat(ask(number))
    with pytest.raises(EndpointDown, match=f"{one.server.url}: status {status}.*rerun the command") as error:
        one.chat(ask(IN_A_ROW))
    assert error.value.exit_code == 3
    with pytest.raises(EndpointDown, match=f"status {status}"):  # not "stopped": every thread names the cause
        one.chat(ask(IN_A_ROW + 1))
    assert len(one.server.seen) == 2 * IN_A_ROW
    assert len(one._cache.path.read_text().splitlines()) == 1


def test_max_completion_tokens_replaces_a_rejected_max_tokens_from_then_on(client):
    refusal = bad(400, body=b'{"error": {"message": "Use max_completion_tokens in place of max_tokens"}}')
    one = client(lambda _, body: refusal if "max_tokens" in body else good("yes"))
    assert [one.chat(ask(number)) for number in range(3)] == ["yes"] * 3
    limits = [key for _, _, body in one.server.seen for key in body if key.startswith("max_")]
    assert limits == ["max_tokens", *["max_completion_tokens"] * 3]
    assert client(lambda _, body: refusal if "max_tokens" in body else good("yes"), retries=0).chat(ask(0)) == "yes"


def test_several_requests_whose_max_tokens_is_rejected_at_a_time_are_all_sent_again(client):
    refusal = bad(400, body=b"Use max_completion_tokens in place of max_tokens")
    together = threading.Barrier(4, timeout=9)

    def respond(_, body):
        if "max_tokens" not in body:
            return good("yes")
        together.wait()
        return refusal

    one = client(respond)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(one.chat, map(ask, range(4)))] == ["yes"] * 4
    assert len(one.server.seen) == 8


def test_a_stopped_client_waits_no_longer(tmp_path):
    with Server(lambda *_: bad(503)) as server, Client(endpoint(server.url, backoff_s=60.0), tmp_path / "c") as one:
        threading.Timer(0.1, one.stop).start()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="stopped"):
            one.chat(ask())
    assert time.monotonic() - began < 30
