"""Servers under load and at their end: nothing lost or mixed up, flat memory, malformed input, signals."""

import contextlib
import http.client
import json
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pasta_jax.benchmark.clients import ask_together
from tests import ROOT
from tests.helpers.forked import command
from tests.helpers.serving import Server, pieces, text_of

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
CLIENTS, REQUESTS = 64, 10
MIB = 1 << 20


def body(number: int, **changes: object) -> dict:
    """One of ten different requests, some of them sequential."""
    number %= REQUESTS
    own = {"sequential": number % 3 == 0}
    messages = [{"role": "user", "content": f"birds crow {number}"}]
    return {"messages": messages, "seed": number, "temperature": 1.0, "max_tokens": 40, "pasta": own} | changes


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Server]:
    # Clients that have vanished hold their places until the server notices.
    with Server(folder, limits__queue=4 * CLIENTS) as server:
        yield server
        assert server.stop() == 0
        assert not [line for line in server.lines if "error" in line]


@pytest.mark.parametrize("clients", [8, pytest.param(CLIENTS, marks=pytest.mark.extended)])
def test_clients_get_their_own_answers_while_half_of_the_others_vanish(server, clients):
    alone = [server.text(**body(number)) for number in range(REQUESTS)]
    seen: Counter[str] = Counter()

    def client(number: int, requests: range) -> None:
        for request in requests:
            which = number + request
            if number % 2:
                vanish(which)
                seen["vanished"] += 1
            elif request % 2:
                assert server.text(**body(which)) == alone[which % REQUESTS]
                seen["whole"] += 1
            else:
                status, _, content = server.request("POST", PATH, body(which, stream=True))
                assert (status, text_of(content)) == (200, alone[which % REQUESTS])
                seen["streamed"] += 1

    def vanish(which: int) -> None:
        connection = server.send("POST", PATH, body(which, stream=True, max_tokens=220))
        connection.getresponse().read1(200)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def all_clients(requests: range) -> None:
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda number: client(number, requests), range(clients)))
        server.wait_until("pasta_lanes_in_use", 0)
        server.wait_until("pasta_queue", 0)

    all_clients(range(REQUESTS // 2))
    before = server.memory
    all_clients(range(REQUESTS // 2, REQUESTS))
    assert server.memory < before + 64 * MIB
    assert seen == {
        "vanished": clients * REQUESTS // 2,
        "whole": clients * REQUESTS // 4,
        "streamed": clients * REQUESTS // 4,
    }


def test_the_earlier_turns_of_a_chat_are_not_computed_again(server):
    messages, earlier, copied = [], 0, server.metric("pasta_prompt_tokens_copied_total")
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn}: fish cod {'and so on ' * 3}"})
        usage = server.ask(messages=messages, seed=turn, max_tokens=4)["usage"]
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        assert earlier // 16 * 16 <= reused <= earlier  # whole chunks of it, or with our kernels all of it
        copied, earlier = copied + reused, usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": "as you say"})
    assert server.metric("pasta_prompt_tokens_copied_total") == copied > 0


def test_the_benchmarks_clients_count_text_as_the_server_does(server):
    questions = ["birds crow 1", "fish cod 2", "fruits plum 3"]
    for question, seen in zip(questions, ask_together(server.port, questions, 30).answers, strict=True):
        answer = server.ask(messages=[{"role": "user", "content": question}], temperature=0, max_tokens=30)
        assert seen.tokens == answer["choices"][0]["pasta"]["text_tokens"] < answer["usage"]["completion_tokens"]
        assert seen.first_s > 0


def malformed(rng: random.Random) -> bytes:
    """A body that is damaged: a value of another type or size, a byte, or the end."""
    fields = body(1, max_tokens=1, n=1, stop=["x"], stream=False, top_p=0.5, user="u", logprobs=None)
    values = [None, True, -1, 10**30, 1e308, float("nan"), "", "\u0000", "x" * 300, [], [[]], [None], {}, {"a": {}}]
    match rng.randrange(4):
        case 0:
            fields[rng.choice(list(fields))] = rng.choice(values)
        case 1:
            fields["messages"] = [rng.choice([*values, {"role": rng.choice(values), "content": rng.choice(values)}])]
        case 2:
            fields["pasta"] = {rng.choice(["threads", "sequential", "top_k", "x"]): rng.choice(values)}
        case 3:
            fields[rng.choice(["tools", "response_format", "functions", "\ud800", "model"])] = rng.choice(values)
    content = bytearray(json.dumps(fields).encode())
    if rng.random() < 0.5:
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])


@pytest.mark.parametrize(("seed", "count"), [(0, 500), pytest.param(1, 8_000, marks=pytest.mark.extended)])
def test_malformed_bodies_and_headers_are_refused(server, seed, count):
    rng = random.Random(seed)
    names = [
        "Host",
        "Content-Length",
        "Content-Type",
        "Transfer-Encoding",
        "Authorization",
        "Origin",
        "Connection",
        "X",
    ]
    seen: Counter[int] = Counter()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    for number in range(count):
        if number % 10:
            connection.request("POST", PATH, malformed(rng), JSON)
            response = connection.getresponse()
            response.read()
            seen[response.status] += 1
            continue
        value = rng.choice(
            [b"", b"-1", b"\xff\xfe", b"a" * 20_000, b"chunked", b"\x00", b"1, 2", b"[::1", b"\r\n x", b"close"]
        )
        raw = b"POST %s HTTP/1.1\r\n%s: %s\r\n\r\n{}" % (PATH.encode(), rng.choice(names).encode(), value)
        with socket.create_connection((server.host, server.port), timeout=60) as plain:
            plain.sendall(raw)
            plain.shutdown(socket.SHUT_WR)
            answer = plain.recv(65536)
        seen[int(answer.split()[1]) if answer else 0] += 1
    connection.close()
    assert sum(seen.values()) == count
    assert all(status == 200 or 400 <= status < 500 for status in seen), seen
    assert seen[200] < count / 4  # harmless changes
    assert server.text(**body(1))
    server.wait_until("pasta_lanes_in_use", 0)


def test_broken_http_is_refused_and_the_server_answers_afterwards(server):
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without a host
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ):
        with socket.create_connection((server.host, server.port), timeout=30) as connection:
            connection.sendall(raw)
            answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 4"), (raw, answer)
    assert server.text(**body(1))


@pytest.mark.extended  # without: test_run.py
def test_launch_decode_writes_the_same_bytes_as_the_server_alone_and_beside_31_others(server, folder):
    flags = [
        "--config=configs/decode.py:local", f"--config.model.path={folder}",
        "--prompt=birds crow 1", "--json", "--nosequential", "--rows=4", "--config.decoding.widths=()",
        "--config.request.temperature=1.0", "--config.request.seed=1", "--config.request.max_tokens=40",
    ]  # fmt: skip
    expected = json.loads(command(folder.parent, "decode", *flags).finish())["text"]
    assert server.text(**body(1)) == expected
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda number: server.text(**body(number)), range(1, 33)))
    assert answers[0] == expected


def test_sigterm_finishes_the_answers_that_run_and_ends_with_0(folder):
    with Server(folder) as server:
        connection = server.send("POST", PATH, body(1, stream=True, max_tokens=220, n=4))
        response = connection.getresponse()
        begun = response.read1(300)
        waiting: list[dict] = []
        other = threading.Thread(target=lambda: waiting.append(server.ask(**body(2, max_tokens=220, n=4))))
        other.start()
        server.wait_until("pasta_queue", 4)
        server.send_signal(signal.SIGTERM)
        content = begun + response.read()
        connection.close()
        other.join()
        assert server.wait() == 0
        reasons = [choice["finish_reason"] for part in pieces(content) for choice in part["choices"]]
        assert sum(reason is not None for reason in reasons) == 4
        assert len(waiting[0]["choices"]) == 4
        with pytest.raises(ConnectionRefusedError):
            server.request("GET", "/health")


def test_after_a_kill_a_server_starts_on_the_same_port(folder):
    with Server(folder) as server:
        port = server.port
        connection = server.send("POST", PATH, body(1, stream=True, max_tokens=220))
        connection.getresponse().read1(300)
        server.stop(signal.SIGKILL)
        connection.close()
    with Server(folder, port=port) as again:
        assert again.port == port
        assert again.text(**body(1))
        with pytest.raises(
            AssertionError, match=rf"error: 127\.0\.0\.1:{port}: Address already in use; choose another"
        ):
            Server(folder, port=port)
        assert again.stop(signal.SIGINT) == 0


def test_an_answer_that_takes_too_long_is_cut_and_draining_has_an_end(folder):
    with Server(folder, limits__answer_s=0.2, limits__drain_s=1.0, stream_steps=1) as server:
        began = time.monotonic()
        status, headers, content = server.request("POST", PATH, body(1, max_tokens=220, n=8))
        assert time.monotonic() - began < 30
        if status == 200:
            answers = json.loads(content)
            assert any(choice["finish_reason"] == "length" for choice in answers["choices"])
            assert answers["usage"]["completion_tokens"] < 8 * 220
        else:  # one of them had no token yet
            assert (status, headers["retry-after"]) == (503, "5")
        # A client that never sends its body keeps the server waiting, but not for ever.
        with socket.create_connection((server.host, server.port)) as slow, contextlib.suppress(ConnectionError):
            slow.sendall(
                b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n{"
                % PATH.encode()
            )
            time.sleep(0.2)
            assert server.stop() == 0


def test_the_documented_client_runs(server, capsys):
    """Against this server, with its model's name."""
    page = (ROOT / "docs/SERVING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(code.replace("http://127.0.0.1:8000", server.url).replace("smollm2_135m_pasta", "talkative"), {})
    assert capsys.readouterr().out
