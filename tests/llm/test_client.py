"""The client of language models: failures that may pass, the name of the answer's limit, costs over several runs."""

import pytest

from pasta_jax.llm.client import IN_A_ROW, Client, EndpointDown, LLMError, Unavailable
from tests.helpers.endpoint_server import FakeTime, Server, bad, endpoint, good


def ask(number: int) -> tuple[tuple[str, str], ...]:
    return (("user", f"question {number}"),)


def failing(client: Client, count: int) -> None:
    for number in range(count):
        with pytest.raises(Unavailable, match="1 times"):
            client.chat(ask(number))


@pytest.mark.parametrize("status", [429, 500, 507, 522])
def test_many_failures_in_a_row_end_the_run_and_an_answer_starts_the_count_again(tmp_path, status):
    up = [False]
    with Server(lambda *_: good("yes") if up[0] else bad(status)) as server:
        with Client(endpoint(server.url, retries=0), tmp_path / "cache", FakeTime().clock()) as client:
            failing(client, IN_A_ROW - 1)
            up[0] = True
            assert client.chat(ask(0)) == "yes"
            up[0] = False
            for number in range(1, IN_A_ROW):
                with pytest.raises(Unavailable):
                    client.chat(ask(number))
            with pytest.raises(EndpointDown, match=f"{server.url}: status {status}.*rerun the command") as error:
                client.chat(ask(IN_A_ROW))
            assert error.value.exit_code == 3
        up[0] = True
        with Client(endpoint(server.url), tmp_path / "cache") as client:
            assert client.chat(ask(IN_A_ROW)) == "yes"
            assert client.usage.requests == 1
    assert len((tmp_path / "cache").read_text().splitlines()) == 2


def test_a_refused_request_is_an_answer_of_the_endpoint(tmp_path):
    with (
        Server(lambda n, _: bad(400) if n % 2 else bad(503)) as server,
        Client(endpoint(server.url, retries=0), tmp_path / "cache") as client,
    ):
        for number in range(3 * IN_A_ROW):
            with pytest.raises(LLMError):
                client.chat(ask(number))


def limits(server: Server) -> list[str]:
    """The name of the limit in each request."""
    return [next(key for key in body if key.startswith("max_")) for _, _, body in server.seen]


def test_max_completion_tokens_replaces_a_rejected_max_tokens_from_then_on(tmp_path):
    refusal = bad(400, body=b'{"error": {"message": "Unsupported parameter: \'max_tokens\' is not supported"}}')
    with Server(lambda _, body: refusal if "max_tokens" in body else good("yes")) as server:
        with Client(endpoint(server.url), tmp_path / "cache") as client:
            assert [client.chat(ask(number)) for number in range(3)] == ["yes"] * 3
        assert limits(server) == ["max_tokens", *["max_completion_tokens"] * 3]
        assert all(body["max_completion_tokens"] == 1000 for _, _, body in server.seen[1:])


def test_a_limit_that_is_refused_under_both_names_fails_as_the_first(tmp_path):
    def respond(_, body):
        known = "max_tokens" in body
        return bad(400, body=b"max_tokens is too large" if known else b"unknown parameter: max_completion_tokens")

    with Server(respond) as server, Client(endpoint(server.url), tmp_path / "cache") as client:
        for number in range(2):
            with pytest.raises(LLMError, match="max_tokens is too large") as error:
                client.chat(ask(number))
            assert error.value.reason == "status 400"
            assert not isinstance(error.value, Unavailable)
        assert limits(server) == ["max_tokens", "max_completion_tokens"] * 2


def test_an_answer_that_is_too_long_under_the_other_name_is_no_refused_limit(tmp_path):
    refusal = bad(400, body=b"max_tokens")
    with (
        Server(lambda _, body: refusal if "max_tokens" in body else good("ye", ended="length")) as server,
        Client(endpoint(server.url), tmp_path / "cache") as client,
        pytest.raises(LLMError, match="too long"),
    ):
        client.chat(ask(0))
    assert len(server.seen) == 2


def test_gemini_has_no_other_name_for_its_limit(tmp_path):
    with (
        Server(lambda *_: bad(400, body=b"max_tokens")) as server,
        Client(endpoint(server.url, kind="gemini"), tmp_path / "cache") as client,
        pytest.raises(LLMError),
    ):
        client.chat(ask(0))
    assert len(server.seen) == 1
