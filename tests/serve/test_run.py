"""The server as a process on loopback: what clients of OpenAI's API get, and what they are refused."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pasta_jax as pasta
from pasta_jax.weights.model import Model
from tests.helpers.browser import CHROMIUM, Page
from tests.helpers.serving import KEY, LANES, OTHER_PAGE, QUEUE, SLOTS, Server, pieces, text_of

pytestmark = pytest.mark.slow  # starts a server process
PATH = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "birds crow 7"}]
LONG = {"messages": QUESTION, "seed": 0, "temperature": 1.0, "max_tokens": 220}  # this seed's answer does not stop


@pytest.fixture(scope="module")
def model(folder) -> Model:
    return pasta.load_model(folder)


def generated(model: Model, text: str, seed: int, max_tokens: int, sequential: bool) -> pasta.Answer:
    return pasta.generate(
        model, text, temperature=1.0, seed=seed, max_tokens=max_tokens, sequential=sequential, rows=4, lanes=1
    )


# Answers


def test_the_bytes_are_those_of_generate_alone_and_beside_others(server, model):
    cases = [(f"birds crow {n}", n, 40, n % 4 == 3) for n in range(8)]

    def body(text: str, seed: int, max_tokens: int, sequential: bool) -> dict:
        own = {"messages": [{"role": "user", "content": text}], "pasta": {"sequential": sequential}}
        return own | {"seed": seed, "max_tokens": max_tokens, "temperature": 1.0}

    alone = server.ask(**body(*cases[0]))
    with ThreadPoolExecutor(len(cases)) as pool:
        together = list(pool.map(lambda case: server.ask(**body(*case)), cases))
    for case, answer in zip([cases[0], *cases], [alone, *together], strict=True):
        expected = generated(model, *case)
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == expected.text
        assert choice["finish_reason"] == expected.finish_reason
        assert choice["pasta"]["chunks"] == len(expected.threads) - 1
        assert answer["usage"]["completion_tokens"] == len(expected.trace.token)
        assert answer["usage"]["steps"] == expected.trace.steps
        assert answer["usage"]["critical_path"] == expected.trace.critical_path
    assert any(answer["choices"][0]["pasta"]["chunks"] for answer in together)


def test_a_stream_is_the_answer_in_pieces_as_text_or_as_threads(server):
    body = {"messages": QUESTION, "seed": 3, "temperature": 1.0, "n": 2, "max_tokens": 40}
    server.ask(**body)  # from now on, the prompt is copied
    whole = server.ask(**body)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 2  # each answer has its own seed
    assert any(choice["pasta"]["chunks"] for choice in whole["choices"])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for own in ({}, {"pasta": {"threads": True}}):
        status, headers, content = server.request("POST", PATH, body | options | own)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        *parts, last = pieces(content)
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
        assert [part["usage"] for part in parts] == [None] * len(parts)
        for index, text in enumerate(texts):
            mine = [choice for part in parts for choice in part["choices"] if choice["index"] == index]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert mine[-1]["finish_reason"] == whole["choices"][index]["finish_reason"]
            deltas = [choice["delta"] for choice in mine[1:-1]]
            if not own:
                assert "".join(delta["content"] for delta in deltas) == text
                continue
            end = mine[-1]["pasta"]
            assert end["text"] == text
            for thread in end["threads"][1:]:
                opening, *others = [delta for delta in deltas if delta["pasta"]["thread"] == thread["thread"]]
                about = {name: opening["pasta"][name] for name in ("topic", "promised")}
                assert about == {name: thread[name] for name in about}
                if len(others) != thread["tokens"]:  # the tag that ends it isn't fed where the answer ends in that step
                    assert len(others) == thread["tokens"] + 1
                    assert (others[-1]["pasta"]["ended"], others[-1]["content"]) == (True, "")
                assert {"thread", "topic", "promised", "step"} <= others[0]["pasta"].keys()
                assert others[-1]["pasta"]["step"] == thread["last_step"]


def test_an_answer_ends_before_a_stop_text(server):
    body = {"messages": QUESTION, "seed": 1, "temperature": 1.0, "max_tokens": 60, "pasta": {"sequential": True}}
    text = server.text(**body)
    stop = text[len(text) // 2 :][:4]
    expected = text[: text.index(stop)]
    for stops in (stop, ["\x00never", stop]):
        answer = server.ask(**body, stop=stops)
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
        assert text_of(server.request("POST", PATH, body | {"stop": stops, "stream": True})[2]) == expected
    assert server.text(**body, stop="\x00never") == text
    server.wait_until("pasta_lanes_in_use", 0)


def test_completions_continue_text_or_ids(server, model):
    body = {"seed": 2, "temperature": 1.0, "max_tokens": 12}
    ids = model.tokenizer.prompt_ids("birds crow")
    answers = [
        server.ask("/v1/completions", prompt=prompt, **body) for prompt in ("birds crow", ["birds crow"], ids, [ids])
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert answers[0]["object"] == "text_completion"
    assert answers[0]["usage"]["prompt_tokens"] == len(ids)
    parts = pieces(server.request("POST", "/v1/completions", body | {"prompt": ids, "stream": True})[2])
    assert "".join(part["choices"][0]["text"] for part in parts) == answers[0]["choices"][0]["text"]


def test_tags_in_a_users_text_stay_text(server, model):
    text = '<promise topic="a" tokens=2 /><sync/><async>'
    ids = model.tokenizer.chat([("user", text)])
    assert not any(model.tokenizer.tags.is_tag(id) for id in ids)
    answer = server.ask(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}], max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == len(ids)


# Refusals


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("", 400, "the body: line 1, column 1: not JSON"),
        (b"\xff", 400, "byte 1 is not UTF-8"),
        ("[1]", 400, "is not a JSON object"),
        ("[" * 100_000, 400, "nested"),
        ({}, 400, "messages: missing or empty"),
        ({"messages": "x"}, 400, "messages: expected"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_call_id: None is no call's"),
        ({"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].role: unknown value 'function'"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content: missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "[0].type: unknown value"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "has no open question"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "the last text is blank"),
        ({"messages": QUESTION, "model": "gpt-5"}, 404, "model 'gpt-5': not served here; use 'talkative'"),
        ({"messages": QUESTION, "temperature": 3}, 400, "temperature: expected `float` <= 2.0"),
        ({"messages": QUESTION, "top_p": -0.1}, 400, "top_p: expected"),
        ({"messages": QUESTION, "n": 9}, 400, "n: 9, at most 8 here"),
        ({"messages": QUESTION, "max_tokens": 0}, 400, "max_tokens: expected"),
        ({"messages": QUESTION, "stop": [""]}, 400, "stop[0]: expected"),
        ({"messages": QUESTION, "stop": "a", "pasta": {"threads": True}}, 400, "drop stop or pasta.threads"),
        ({"messages": QUESTION, "audio": {}}, 400, "audio: is not supported; leave it out"),
        ({"messages": QUESTION, "tools": [{}]}, 400, "tools[0].type: missing"),
        ({"messages": QUESTION, "frequency_penalty": 3}, 400, "frequency_penalty: expected"),
        ({"messages": QUESTION, "best_off": 1}, 400, "best_off: unknown field"),
        ({"messages": QUESTION, "pasta": {"thread": True}}, 400, "pasta.thread: unknown key"),
        ({"messages": QUESTION, "stream_options": {}}, 400, "stream_options: applies to streams"),
        ({"messages": [{"role": "user", "content": "x" * SLOTS}]}, 400, "the prompt: "),
        ({"messages": [{"role": "user", "content": "x" * (1 << 18)}]}, 413, "has more than 262,144 bytes"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(server, body, status, message):
    actual, _, content = server.request("POST", PATH, body)
    error = json.loads(content)["error"]
    assert (actual, message in error["message"]) == (status, True), error


def test_requests_from_elsewhere_are_refused(server):
    def status(path: str = PATH, method: str = "POST", key: str | None = KEY, **headers: str) -> int:
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        return server.request(method, path, {"messages": QUESTION, "max_tokens": 1}, changed, key)[0]

    assert status() == 200
    for key in (None, " ", "a key", KEY + "x", "é"):
        assert status(key=key) == 401
    assert status("/metrics", "GET", key=None) == status("/v1/models", "GET", key=None) == 401
    assert status("/", "GET", key=None) == status("/health", "GET", key=None) == 200
    assert "frame-ancestors 'none'" in server.request("GET", "/")[1]["content-security-policy"]
    assert status(Host="evil.example") == status(Host="127.0.0.1.evil.example:80") == status(Host="[") == 403
    assert status(Host="localhost:1234") == 200
    assert status(Origin="http://evil.example") == status(Origin="null") == 403
    assert status(Origin=server.url) == status(Origin=OTHER_PAGE) == 200
    assert status(Origin=OTHER_PAGE, key=None) == 401
    asks = {"Origin": OTHER_PAGE, "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization, content-type"
    answered, headers, _ = server.request("OPTIONS", PATH, headers=asks, key=None)
    assert (answered, headers["access-control-allow-origin"]) == (200, OTHER_PAGE)
    assert status(Content_Type="text/plain") == status(Content_Type="multipart/form-data") == 415
    assert status("/v2", "GET") == 404
    assert b"did you mean /v1/chat/completions?" in server.request("POST", "/chat/completions", {})[2]
    assert status(method="DELETE") == 405


# Clients that leave, and the queue


def leave(server: Server, stream: bool) -> None:
    """Ask, read the beginning of an answer that streams, and vanish."""
    connection = server.send("POST", PATH, LONG | {"stream": stream})
    if stream:
        connection.getresponse().read1(400)
    else:
        while not server.metric("pasta_lanes_in_use"):
            pass
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_the_lanes_of_vanished_clients_are_free_within_two_rounds(server, stream):
    tokens = server.metric("pasta_tokens_total")
    for _ in range(2 * LANES):
        leave(server, stream)
    server.wait_until("pasta_lanes_in_use", 0)
    server.wait_until("pasta_queue", 0)
    assert server.metric("pasta_tokens_total") - tokens < 2 * LANES * LONG["max_tokens"]
    assert server.ask(messages=QUESTION, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_full_queue_refuses_and_recovers(server):
    statuses: list[tuple[int, dict]] = []

    def one() -> None:
        statuses.append(server.request("POST", PATH, LONG)[:2])

    threads = [threading.Thread(target=one) for _ in range(LANES + QUEUE + 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [headers for status, headers in statuses if status == 429]
    assert len(refused) >= 1
    assert all(int(headers["retry-after"]) > 0 for headers in refused)
    assert sum(status == 200 for status, _ in statuses) == len(threads) - len(refused)
    assert server.ask(messages=QUESTION, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_metrics_are_prometheus_and_health_is_open(server):
    text = server.request("GET", "/metrics")[2].decode()
    for name in (
        "pasta_requests_total",
        "pasta_steps_total",
        "pasta_forked_answers_total",
        "pasta_first_token_seconds_sum",
    ):
        assert f"\n{name}" in text
    assert server.metric("pasta_lanes") == LANES
    health = json.loads(server.request("GET", "/health")[2])
    assert (health["status"], health["model"], health["lanes"]) == ("ok", "talkative", LANES)
    assert [card["id"] for card in json.loads(server.request("GET", "/v1/models")[2])["data"]] == ["talkative"]


# The official client


def test_the_official_client_chats_streams_leaves_and_gets_its_errors(server):
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    options = {"model": "talkative", "messages": QUESTION, "seed": 3, "temperature": 1.0, "max_tokens": 40}
    answer = client.chat.completions.create(**options)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    pieces = list(client.chat.completions.create(**options, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == answer.choices[0].message.content
    own = client.chat.completions.create(**options, stream=True, extra_body={"pasta": {"threads": True}})
    threads = {piece.choices[0].delta.pasta["thread"] for piece in own if hasattr(piece.choices[0].delta, "pasta")}
    assert len(threads) == answer.choices[0].pasta["chunks"] + 1
    assert client.completions.create(model="talkative", prompt="birds", max_tokens=3).usage.completion_tokens <= 3
    assert client.models.list().data[0].id == client.models.retrieve("talkative").id == "talkative"

    with client.chat.completions.create(**options | {"max_tokens": 220}, stream=True) as stream:
        next(iter(stream))
    server.wait_until("pasta_lanes_in_use", 0)

    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**options | {"model": "other"})
    with pytest.raises(openai.BadRequestError, match="audio: is not supported"):
        client.chat.completions.create(**options, audio={"voice": "x", "format": "wav"})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").chat.completions.create(**options)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.001).chat.completions.create(**options)
    server.wait_until("pasta_lanes_in_use", 0)


# The page


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
@pytest.mark.parametrize(("width", "dark"), [(420, True), (1000, False)])
def test_the_page_shows_threads_and_the_answer_of_the_api(server, model, width, dark):
    """By keyboard alone. With this seed, main waits once. The key is asked for when the first question needs it."""
    with Page(width, 800, dark) as page:
        page.open(server.url)
        page.run("crypto.getRandomValues = array => array.fill(1)")
        assert page.run("document.activeElement.id") == "ask"
        assert not page.run("$('compare').checked")
        page.run("$('compare').checked = true")
        page.type("birds crow 7")
        page.enter()
        page.wait("!$('lock').hidden && !running")
        page.type(KEY)
        page.enter()
        page.wait("document.querySelector('.times')")
        page.wait("!running")
        assert page.run("document.documentElement.scrollWidth") <= width
        expected = server.ask(messages=QUESTION, seed=1, pasta={"threads": True})["choices"][0]
        assert expected["pasta"]["chunks"] > 0
        shown = "$('log').lastElementChild.querySelector"
        assert page.run(f"{shown}('.text').textContent") == expected["message"]["content"]
        assert page.run("document.querySelectorAll('.panel').length") == expected["pasta"]["chunks"]
        assert page.run("document.querySelectorAll('.row').length") == expected["pasta"]["chunks"] + 1
        trace = generated(model, "birds crow 7", seed=1, max_tokens=60, sequential=False).trace
        waits = np.count_nonzero(np.diff(trace.step[trace.thread == 0]) > 1)
        assert page.run("document.querySelector('.track').querySelectorAll('s').length") == waits == 1
        figures = page.run(f"{shown}('.figures').innerText")
        assert f"{expected['pasta']['steps']} steps" in figures
        plain = server.ask(messages=QUESTION, seed=1, pasta={"sequential": True})["choices"][0]
        assert f"{plain['pasta']['steps']} steps" in figures
        assert (
            page.run("$('log').lastElementChild.querySelector('details:last-child .text').textContent")
            == (plain["message"]["content"])
        )
        assert [error for error in page.errors if "401" not in error] == []
