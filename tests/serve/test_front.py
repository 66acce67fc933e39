"""The front of several replicas: where requests go, when they are sent again, what clients get. Without processes."""

import asyncio
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from unittest.mock import AsyncMock, Mock

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.serve import front, log, replicas
from pasta_jax.serve.demand import Demand
from pasta_jax.serve.front import Front, Labelled, Replica, beginning_of, choice
from pasta_jax.serve.guard import Guard
from pasta_jax.serve.settings import Scaling, ServeSettings

LANES = 4
SETTINGS = ServeSettings(replicas=3, decoding=DecodeConfig(lanes=LANES, rows=4, slots=256, prefill_chunk=16), port=0)
BODY = {"messages": [{"role": "user", "content": "birds"}]}
Handler = Callable[[int, httpx2.Request], httpx2.Response]


def ask(
    handler: Handler, *requests: tuple[str, str, object], unwanted: int | None = None, **headers: str
) -> list[httpx2.Response]:
    """What clients get for (method, path, body), one after another, where replicas answer as the handler does."""

    async def answers() -> list[httpx2.Response]:
        app = Front(SETTINGS, "key", "model")
        for one in app.replicas:
            transport = httpx2.MockTransport(lambda request, number=one.number: handler(number, request))
            one.client = httpx2.AsyncClient(base_url=f"http://replica{one.number}:80", transport=transport)
            one.is_wanted = one.number != unwanted
        own = {"Authorization": "Bearer of the client"} | headers
        guard = Guard(app.app, app.responses, None, False, SETTINGS)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard), headers=own) as client:
            front_url = httpx2.URL("http://front")
            return [
                await client.request(method, front_url.copy_with(raw_path=path.encode()), json=body)
                for method, path, body in requests
            ]

    return asyncio.run(answers())


def test_a_prompt_has_its_replica_unless_that_has_a_batch_more_to_do():
    here = [Replica(number, SETTINGS, "key") for number in range(3)]
    prompts = [f"prompt {number}" for number in range(300)]
    before = {prompt: choice(here, prompt, LANES).number for prompt in prompts}
    assert all(60 < count < 140 for count in Counter(before.values()).values())
    without = {prompt: choice(here[:2], prompt, LANES).number for prompt in prompts}
    assert all(without[prompt] == before[prompt] for prompt in prompts if before[prompt] < 2)  # others keep theirs
    own = here[before["prompt 0"]]
    own.requests = LANES
    assert choice(here, "prompt 0", LANES) is own
    own.requests = LANES + 1
    assert choice(here, "prompt 0", LANES).requests == 0
    assert choice(here, "prompt 0", 0).requests == 0
    assert choice([], "prompt 0", LANES) is None


def test_prompts_begin_alike_if_their_first_chunks_do():
    def chat(system: str, user: str, **more: object) -> bytes:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return json.dumps({"messages": messages} | more).encode()

    long = "You answer questions about birds, with their names in Latin. " * 3
    assert beginning_of(chat(long, "crow", seed=1), 64) == beginning_of(chat(long, "owl", temperature=0), 64)
    assert beginning_of(chat("Short.", "crow"), 256) != beginning_of(chat("Short.", "owl"), 256)
    assert beginning_of(chat(long, "crow"), 64) != beginning_of(chat(long, "crow", model="base:other"), 64)
    assert beginning_of(b'{"prompt": [1, 2]}', 64) != beginning_of(b'{"input": "x"}', 64)
    assert {beginning_of(broken, 64) for broken in (b"", b"\xff", b"[" * 9999)} == {""}
    assert beginning_of(b"[1]", 64) == "[]"


def test_a_request_whose_replica_is_lost_is_sent_once_to_each_other():
    seen = []

    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        seen.append(number)
        if len(seen) < 3:
            raise httpx2.ReadError("")
        return httpx2.Response(200, json=json.loads(request.content))

    (answer,) = ask(handler, ("POST", "/v1/chat/completions", BODY))
    assert (answer.status_code, answer.json()) == (200, BODY)
    assert sorted(seen) == [0, 1, 2]

    lost = Mock(side_effect=httpx2.RemoteProtocolError(""))
    refused, silent = (Mock(side_effect=error("")) for error in (httpx2.ConnectError, httpx2.ConnectTimeout))
    for broken, code, count in ((lost, "replica_lost", 3), (refused, "no_replica", 0), (silent, "no_replica", 0)):
        answer, metrics = ask(broken, ("POST", "/v1/chat/completions", BODY), ("GET", "/metrics", None))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["retry-after"] == "5"
        assert f"pasta_sent_again_total {count}.0" in metrics.text


def test_a_request_that_has_lost_its_place_waits_for_another(monkeypatch):
    monkeypatch.setattr(front, "PAUSE_S", 0)
    seen = []

    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        seen.append(number)
        if len(seen) == 1:
            raise httpx2.ReadError("")
        return httpx2.Response(429 if len(seen) < 9 else 200, json={})

    (answer,) = ask(handler, ("POST", "/v1/chat/completions", BODY))
    assert (answer.status_code, len(seen)) == (200, 9)


def test_a_queue_is_full_when_all_are():
    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        free = json.loads(request.content)["prompt"]
        if number == free:
            return httpx2.Response(200, json={"number": number})
        return httpx2.Response(429, headers={"Retry-After": "1"}, json={"error": {"code": "queue_full"}})

    answers = ask(handler, *(("POST", "/v1/completions", {"prompt": free}) for free in range(4)))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.json()["number"] for answer in answers[:3]] == [0, 1, 2]
    assert answers[3].headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_that_had_begun_ends_with_an_error(path):
    def streamed(*parts: bytes) -> httpx2.Response:
        async def content() -> AsyncIterator[bytes]:
            for part in parts:
                yield part
            raise httpx2.ReadError("")

        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=content())

    # Half an event is none, and the request goes to another; then two whole ones, and the beginning of a third.
    seen = iter([streamed(b"data: 0"), streamed(b"data: 1\n", b"\n: on\n\ndata: 2\n\ndata:", b" 3")])
    (answer,) = ask(lambda number, request: next(seen), ("POST", path, BODY))
    first, comment, second, last, nothing = answer.text.split("\n\n")
    assert (answer.status_code, first, comment, second, nothing) == (200, "data: 1", ": on", "data: 2", "")
    error = json.loads(last.partition("data: ")[2])
    if path == "/v1/responses":
        assert last.startswith("event: error\n")
        assert (error["type"], error["sequence_number"], error["code"]) == ("error", 2, "replica_lost")
    else:
        assert error["error"]["code"] == "replica_lost"


def test_what_a_client_sends_names_no_other_host_and_carries_no_key():
    seen = []

    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(404, headers={"Connection": "close", "X-Own": "1"}, text="no such path")

    answer, _ = ask(handler, ("GET", "//other.example/%23%3F?x", None), ("PUT", "/v1/models", None))
    assert (answer.status_code, answer.headers["x-own"], answer.text) == (404, "1", "no such path")
    assert "connection" not in answer.headers
    assert [request.url.host[:-1] for request in seen] == ["replica", "replica"]
    assert [request.url.raw_path for request in seen] == [b"//other.example/%23%3F", b"/v1/models"]
    assert all(request.headers["host"].startswith("replica") for request in seen)
    assert not any("authorization" in request.headers for request in seen)


def test_a_slash_at_the_end_of_a_path_leads_to_no_redirect():
    """Which would name the replica's own address, that no client can use."""
    seen = []

    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.path)
        return httpx2.Response(200)

    asked = [("POST", "/v1/responses/", BODY), ("POST", "/v1/x/", BODY), ("GET", "/metrics/", None)]
    *_, metrics = ask(handler, *asked)
    assert seen[:2] == ["/v1/responses", "/v1/x/"]
    assert 'pasta_requests_total{path="/v1/responses",status="200"}' in metrics.text


def test_a_clients_trace_goes_on_in_the_replica():
    seen = []

    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["traceparent"])
        return httpx2.Response(200, json={})

    ask(handler, ("POST", "/v1/chat/completions", BODY), traceparent="00-0af7-b7ad-01")
    assert seen == ["00-0af7-b7ad-01"]


def test_a_replica_names_a_request_as_the_front_does():
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(log.record().id)

    async def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        log.begin()  # as its own guard does
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        await replicas.named_by_front(app)({"headers": headers}, None, None)
        return httpx2.Response(200, json={})

    (answer,) = ask(handler, ("POST", "/v1/chat/completions", BODY))
    assert seen == [answer.headers["x-request-id"]]


def test_metrics_are_those_of_all_replicas():
    text = "# TYPE pasta_queue gauge\npasta_queue 2.0\n# TYPE pasta_requests_total counter\npasta_requests_total 5.0\n"
    text += '# TYPE pasta_answers_total counter\npasta_answers_total{finish="stop"} 3.0\n'
    queue, answers = Labelled({"0": text, "1": text}).collect()
    assert [(one.labels, one.value) for one in queue.samples] == [({"replica": "0"}, 2.0), ({"replica": "1"}, 2.0)]
    assert answers.samples[1].labels == {"finish": "stop", "replica": "1"}


def test_replicas_are_as_many_as_requests_need_for_a_while():
    settings = dataclasses.replace(SETTINGS, replicas=1, scaling=Scaling(most=3, grow_s=5, shrink_s=60))
    here, now = [Replica(number, settings, "key") for number in range(3)], 0.0
    demand = Demand(settings, now)

    def changes(seconds: int, waiting: int, running: int) -> list[tuple[int, int]]:
        """When the number changes in so many seconds of this load, and to what."""
        nonlocal now
        found = []
        for second in range(1, seconds + 1):
            now += 1
            wanted = [one for one in here if one.is_wanted]
            for one in wanted:
                one.client, one.load = object(), {"waiting": 0, "running": 0, "lanes": LANES}
            wanted[0].load |= {"waiting": waiting, "running": running}
            if change := demand.change(now, wanted):
                (wanted[-1] if change < 0 else here[len(wanted)]).is_wanted = change > 0
                found.append((second, len(wanted) + change))
        return found

    assert changes(200, 0, LANES) == []  # all lanes of the least that there may be
    assert changes(4, 1, LANES) == []
    assert changes(1, 0, LANES) == []  # nobody waits any more
    assert changes(20, 1, LANES) == [(5, 2), (10, 3)]
    assert changes(200, 0, LANES + 1) == []
    assert changes(200, 0, LANES) == [(60, 2)]  # half of the lanes of two; of one it would be two
    assert changes(59, 0, 2) == []
    assert changes(1, 0, 3) == []
    assert changes(200, 0, 2) == [(60, 1)]
    here[1].is_wanted = True  # one that starts is waited for
    here[1].client = None
    here[0].load |= {"waiting": 9, "running": LANES}
    assert {demand.change(now + second, here[:2]) for second in range(30)} == {0}
    here[1].has_failed = True  # one that can't start is not
    assert demand.change(now + 34, here[:2]) == 1


def test_a_replica_counts_as_failed_from_its_first_start_that_fails_until_it_is_there(monkeypatch):
    class Lost(Exception):
        pass

    monkeypatch.setattr(replicas, "AGAIN_S", 0)
    actors = replicas.Actors(Mock(**{"exceptions.RayError": Lost}), SETTINGS, "key")
    actors.start = AsyncMock(side_effect=[Lost, replicas.Started("http://127.0.0.1:1", 1, "model")])
    replica, seen = Replica(0, SETTINGS, "key"), []

    async def starts() -> None:
        for _ in range(2):
            await actors._begin(replica)
            seen.append(replica.has_failed)

    asyncio.run(starts())
    assert seen == [True, False]


def test_a_replica_that_runs_is_not_dropped_for_one_that_is_lost(monkeypatch):
    here = [Replica(number, SETTINGS, "key") for number in range(3)]
    here[2].client = object()
    demand = Mock(change=Mock(side_effect=[-1, -1, asyncio.CancelledError]))
    monkeypatch.setattr(replicas, "Demand", lambda *_: demand)
    monkeypatch.setattr(replicas, "CHECK_S", 0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(replicas.Actors(Mock(), SETTINGS, "key").scale(here, SETTINGS))
    assert [one.is_wanted for one in here] == [False, False, True]


def test_a_replica_that_is_no_longer_wanted_gets_no_requests():
    def handler(number: int, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=str(number))

    asked = [("POST", "/v1/completions", {"prompt": f"{number} " * 60}) for number in range(30)]
    *answers, health = ask(handler, *asked, ("GET", "/health", None), unwanted=1)
    assert {answer.text for answer in answers} == {"0", "2"}
    assert health.json()["replicas"] == 2


def test_fewer_replicas_than_there_are_is_refused():
    with pytest.raises(PastaError, match=r"^config\.scaling\.most=2: fewer than config\.replicas=3$"):
        replicas.run(dataclasses.replace(SETTINGS, scaling=Scaling(most=2)))


def test_a_missing_ray_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PastaError, match=r"^config\.replicas=3: Ray is not installed; bash launch/setup.sh --ray$"):
        replicas.run(SETTINGS)
