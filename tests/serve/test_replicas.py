"""Two real replicas on Ray behind one address: a killed one costs only the streams that had begun, and comes back."""

import contextlib
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.helpers.loading import load_model
from tests.helpers.requires import requires_ray
from tests.helpers.serving import LANES, Server

pytestmark = [pytest.mark.extended, requires_ray]
PATH = "/v1/chat/completions"
QUEUE = 16  # with the lanes, room for all requests of a test at one replica
WHOLE, STREAMED = range(10), range(10, 18)  # requests, by their numbers


@pytest.fixture(scope="module")
def body(folder):
    """A request, by its number, whose answer takes long."""
    ends = load_model("", str(folder), stacked=False).tokenizer.stop_ids

    def of(number: int, **changes: object) -> dict:
        messages = [{"role": "user", "content": f"birds crow {number}"}]
        own = {"messages": messages, "seed": number, "temperature": 1.0, "max_tokens": 220}
        return own | {"logit_bias": {str(end): -100 for end in ends}} | changes

    return of


@pytest.fixture(scope="module")
def alone(folder, body) -> list[str]:
    """The single server's answers."""
    with Server(folder) as server, ThreadPoolExecutor(LANES) as pool:
        return list(pool.map(lambda number: server.text(**body(number)), [*WHOLE, *STREAMED]))


@pytest.fixture(scope="module")
def server(folder, alone) -> Iterator[Server]:
    with Server(folder, replicas=2, limits__queue=QUEUE, limits__choices=LANES + QUEUE, key="a key") as server:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        yield server
        processes += psutil.Process(server.process.pid).children(recursive=True)
        assert server.stop() == 0
        assert server.lines[-1] == "stopped\n"
        assert psutil.wait_procs(set(processes), timeout=20)[1] == []


def of_replicas(server: Server, name: str) -> dict[int, float]:
    """A metric by replica; its other labels are summed."""
    text, values = server.request("GET", "/metrics")[2].decode(), {0: 0.0, 1: 0.0}
    for replica, value in re.findall(rf'^{name}\{{.*replica="(\d)"\}} (\S+)$', text, re.MULTILINE):
        values[int(replica)] += float(value)
    return values


def processes_of(server: Server) -> list[int]:
    """The processes of the replicas."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if " ".join(child.cmdline()).startswith("ray::Server"):
                found.append(child.pid)
    return found


@contextlib.contextmanager
def stream(server: Server, fields: dict) -> Iterator[http.client.HTTPResponse]:
    """A stream whose first event has begun to come."""
    with contextlib.closing(server.send("POST", PATH, fields | {"stream": True}, seconds=600)) as connection:
        response = connection.getresponse()
        assert (response.status, response.headers["content-type"][:17]) == (200, "text/event-stream")
        assert response.peek(6).startswith(b"data: ")
        yield response


def test_each_prompt_has_a_replica_whose_prefix_cache_has_it(server):
    texts = [f"birds crow {number} {'and so on ' * 3}" for number in range(6)]
    asked = [{"messages": [{"role": "user", "content": text}], "max_tokens": 1} for text in texts for _ in range(2)]
    copied = [server.ask(**fields)["usage"]["prompt_tokens_details"]["cached_tokens"] for fields in asked]
    assert all(second > first for first, second in zip(copied[::2], copied[1::2], strict=True))
    niceness = {psutil.Process(pid).nice() for pid in [server.process.pid, *processes_of(server)]}
    assert len(niceness) == 1
    answered = of_replicas(server, "pasta_answers_total")
    assert all(count and count % 2 == 0 for count in answered.values())


def test_a_key_is_required_and_refusals_are_the_servers_own(server):
    assert server.request("GET", "/v1/models", key=None)[0] == 401
    assert json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"] == "talkative"
    assert json.loads(server.request("GET", "/health", key=None)[2])["lanes"] == 2 * LANES
    assert b"<html" in server.request("GET", "/", key=None)[2]
    status, _, content = server.request("POST", PATH, {"messages": [], "seed": 1})
    assert (status, json.loads(content)["error"]["param"]) == (400, "messages")
    assert server.request("PUT", PATH, {})[0] == 405


def test_a_full_queue_is_429(server, body):
    with ThreadPoolExecutor(3) as pool:
        fields = body(0, n=LANES + QUEUE, max_tokens=100)
        answers = list(pool.map(lambda _: server.request("POST", PATH, fields), range(3)))
    assert sorted(status for status, *_ in answers) == [200, 200, 429]
    ((_, headers, content),) = [answer for answer in answers if answer[0] == 429]
    assert (headers["retry-after"], json.loads(content)["error"]["code"]) == ("1", "queue_full")
    assert set(of_replicas(server, "pasta_lanes_in_use").values()) == {0}


def test_a_client_that_leaves_frees_its_lane(server, body):
    with stream(server, body(1, n=2)), contextlib.closing(server.send("POST", PATH, body(2, n=2))):
        while sum(of_replicas(server, "pasta_lanes_in_use").values()) < 4:
            pass
    while sum(of_replicas(server, "pasta_lanes_in_use").values()):
        pass
    assert sum(of_replicas(server, "pasta_vanished_total").values()) == 2


def test_a_killed_replica_costs_only_the_streams_that_had_begun(server, body, alone):
    with contextlib.ExitStack() as streams, ThreadPoolExecutor(len(WHOLE)) as pool:
        begun = [streams.enter_context(stream(server, body(number))) for number in STREAMED]
        whole = [pool.submit(server.text, **body(number)) for number in WHOLE]
        deadline = time.monotonic() + 60
        while min(of_replicas(server, "pasta_queue").values()) == 0:  # both run streams, and whole answers wait
            assert time.monotonic() < deadline
        first, second = processes_of(server)
        os.kill(first, signal.SIGKILL)
        server.wait_until("pasta_replicas", 1)
        rests = [response.read() for response in begun]
        answers = [each.result() for each in whole]
    assert answers == [alone[number] for number in WHOLE]
    lost = 0
    for number, rest in zip(STREAMED, rests, strict=True):
        *events, last, _ = rest.decode().split("\n\n")
        texts = [json.loads(event.removeprefix("data: ")) for event in events if event]
        text = "".join(part["choices"][0]["delta"].get("content", "") for part in texts)
        if last == "data: [DONE]":
            assert text == alone[number]
        else:
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"
            assert alone[number].startswith(text)
            lost += 1
    assert 0 < lost < len(STREAMED)
    assert server.metric("pasta_sent_again_total") > 0

    server.wait_until("pasta_replicas", 2, 240)
    assert first not in processes_of(server)
    assert second in processes_of(server)
    before = of_replicas(server, "pasta_answers_total")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda number: server.text(**body(number)), WHOLE))
    assert answers == [alone[number] for number in WHOLE]
    assert all(of_replicas(server, "pasta_answers_total")[number] > before[number] for number in before)


def test_replicas_follow_the_requests(folder, body, alone):
    changes = {"replicas": 1, "scaling__most": 2, "scaling__grow_s": 1, "scaling__shrink_s": 3, "limits__queue": QUEUE}
    with Server(folder, **changes) as server, ThreadPoolExecutor(len(WHOLE) + 2) as pool:
        (first,) = processes_of(server)
        running = [pool.submit(server.ask, **body(number)) for number in WHOLE]
        deadline = time.monotonic() + 240
        while server.metric("pasta_replicas") < 2:  # as many requests as in the beginning, while the second starts
            assert time.monotonic() < deadline
            running = [one for one in running if not one.done()]
            running += [pool.submit(server.ask, **body(number)) for number in WHOLE[: len(WHOLE) - len(running)]]
            time.sleep(0.05)
        answers = list(pool.map(lambda number: server.text(**body(number)), WHOLE))
        assert answers == [alone[number] for number in WHOLE]
        assert all(of_replicas(server, "pasta_answers_total").values())
        server.wait_until("pasta_replicas", 1, 60)
        deadline = time.monotonic() + 20
        while processes_of(server) != [first]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.text(**body(0)) == alone[0]
        assert server.stop() == 0
