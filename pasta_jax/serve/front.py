"""One address for several replicas of a server: it passes each request to one, and to another if that one is lost.

A prompt goes where prompts with the same beginning went, since the prefix cache there has it, unless a batch more
requests run there than elsewhere. A prompt shorter than what caches hold goes to the replica with the fewest requests.
A request is sent again as long as no byte of its answer has reached the client: a whole answer until it has arrived, a
stream until its first event.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote

import httpx2
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import parse_json
from pasta_jax.progress import say
from pasta_jax.serve.app import HANDLERS, content_of
from pasta_jax.serve.delivery import CLIENT_LEFT, as_json, event, wait_until_gone
from pasta_jax.serve.log import record
from pasta_jax.serve.metrics import responses
from pasta_jax.serve.protocol import Refusal
from pasta_jax.serve.responses import error_event
from pasta_jax.serve.settings import ServeSettings

BEGINNING = ("model", "instructions", "messages", "prompt", "input")  # fields of a body, as a prompt has them in order
CHUNK, CHARACTERS = 64, 4  # tokens of a prefill chunk on a CPU; characters of a token, about
HEALTH_S, TRIES, PAUSE_S = 10.0, 3, 0.1  # for an answer to /health; without one so many times, it is lost
METRICS_S = 3.0  # for a replica's metrics; without them, the others' are there
# Of each of the two connections.
OWN_HEADERS = {b"connection", b"content-length", b"date", b"transfer-encoding", b"x-request-id"}
PASSED_ON = ("accept", "content-type", "traceparent", "tracestate")
MOST_LOST = 3  # replicas for one request, which may be what ends them
LOST = "the server that wrote this answer was lost; ask again"


class Replica:
    """One server behind the front."""

    def __init__(self, number: int, settings: ServeSettings, key: str):
        self.number, self._key, self._limits = number, key, settings.limits
        self.client: httpx2.AsyncClient | None = None  # None: it doesn't run
        self.is_wanted = number < settings.replicas  # otherwise, it ends when it has answered its requests
        self.has_failed = False  # to start; it is tried again
        self.requests = 0  # of this front's that it answers now
        self.load = {"waiting": 0, "running": 0, "lanes": settings.decoding.lanes}

    def enter(self, url: str, process: int) -> None:
        """From now on, it gets requests."""
        say(f"replica {self.number}: process {process} at {url}")
        self.has_failed = False
        self.client = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {self._key}"},
            # An idle connection that the server closes just now would look like a lost server: none is kept.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx2.Timeout(HEALTH_S, read=self._limits.answer_s + HEALTH_S),
            trust_env=False,
        )

    async def leave(self) -> None:
        """It gets no more requests, and those that it answers end as if it had ended."""
        client, self.client = self.client, None
        self.load |= {"waiting": 0, "running": 0}
        await client.aclose()

    async def is_healthy(self) -> bool:
        """Whether it answers, and can decode."""
        for _ in range(TRIES):
            try:
                response = await self.client.get("/health", timeout=HEALTH_S)
            except httpx2.TransportError:
                await asyncio.sleep(PAUSE_S)
                continue
            if response.status_code == 200:
                self.load = {name: response.json()[name] for name in self.load}
            return response.status_code == 200
        return False


class Front:
    """The application. `replicas`, as many as there may be, enter and leave (replicas.py)."""

    def __init__(self, settings: ServeSettings, key: str, name: str):
        self._settings, self._name = settings, name
        self.replicas = [Replica(number, settings, key) for number in range(settings.most_replicas)]
        self._characters = CHARACTERS * (settings.decoding.prefill_chunk or CHUNK)
        self._registry = CollectorRegistry()
        self.responses = responses(self._registry)
        self._again = Counter("pasta_sent_again", "Requests whose replica was lost", registry=self._registry)
        here = Gauge("pasta_replicas", "Replicas that get requests", registry=self._registry)
        here.set_function(lambda: len(self._here()))
        routes = [Route("/health", self._health), Route("/metrics", self._metrics), Mount("/", self._answer)]
        self.app = Starlette(routes=routes, exception_handlers=HANDLERS)

    def _running(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.client is not None]

    def _here(self) -> list[Replica]:
        return [replica for replica in self._running() if replica.is_wanted]

    async def _health(self, _: Request) -> Response:
        here = self._here()
        fields = {"status": "ok" if here else "failed", "model": self._name, "replicas": len(here)}
        load = {name: sum(replica.load[name] for replica in here) for name in self.replicas[0].load}
        return as_json(fields | load, 200 if here else 503)

    async def _metrics(self, _: Request) -> Response:
        running = self._running()
        asked = (one.client.get("/metrics", timeout=METRICS_S) for one in running)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        texts = {
            str(replica.number): answer.text
            for replica, answer in zip(running, answers, strict=True)
            if isinstance(answer, httpx2.Response)
        }
        text = generate_latest(self._registry) + generate_latest(Labelled(texts))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        request = Request(scope, receive)
        content = await content_of(request, self._settings.limits) if request.method == "POST" else b""
        work = asyncio.create_task(self._pass_on(request, content, send))
        gone = asyncio.create_task(wait_until_gone(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                await send({"type": "http.response.start", "status": CLIENT_LEFT, "headers": []})
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait({work})  # its connection is closed, which tells the replica

    async def _pass_on(self, request: Request, content: bytes, send: Send) -> None:
        """Ask one replica after the other. A request that had one and lost it waits for a place at another."""
        beginning = beginning_of(content, self._characters)
        # A shorter prompt finds little in caches, or nothing if they hold whole chunks.
        margin = self._settings.decoding.lanes if len(beginning) == self._characters else 0
        full, lost, began = None, 0, time.monotonic()
        while True:
            tried = set[Replica]()
            while lost < MOST_LOST and (replica := choice(set(self._here()) - tried, beginning, margin)):
                tried.add(replica)
                replica.requests += 1
                try:
                    full = await self._ask(replica, request, content, send)
                except (httpx2.ConnectError, httpx2.ConnectTimeout):  # it hasn't seen the request
                    continue
                except httpx2.TransportError:
                    lost += 1
                    self._again.inc()
                    continue
                finally:
                    replica.requests -= 1
                if full is None:
                    return
            if not 0 < lost < MOST_LOST or time.monotonic() - began > self._settings.limits.answer_s:
                break
            await asyncio.sleep(PAUSE_S)
        if lost:
            raise Refusal(LOST, 503, "replica_lost", retry_s=5)
        if full is None:
            raise Refusal("no replica answers now; try again later", 503, "no_replica", retry_s=5)
        await _send_whole(full, send)

    async def _ask(self, replica: Replica, request: Request, content: bytes, send: Send) -> httpx2.Response | None:
        """Have a replica answer the client; what it says instead if it has no room."""
        # Never as a text that is parsed with the address: `//other.example/` would name another host.
        url = replica.client.base_url.copy_with(raw_path=quote(request.scope["path"]).encode())
        headers = {name: value for name in PASSED_ON if (value := request.headers.get(name))}
        headers["x-request-id"] = record().id
        asked = replica.client.stream(request.method, url, content=content, headers=headers)
        async with asked as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await _send_events(response, send, request.scope["path"])
                return None
            await response.aread()
        if response.status_code == 429 or (response.status_code == 503 and b'"stopping"' in response.content):
            return response
        await _send_whole(response, send)
        return None


class Labelled:
    """The metrics of replicas as one registry, each with the label `replica`. Responses are counted by the front."""

    def __init__(self, texts: Mapping[str, str]):
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        merged: dict[str, Metric] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                own = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                own.samples += [one._replace(labels=one.labels | {"replica": number}) for one in family.samples]
        return [family for name, family in merged.items() if not name.startswith("pasta_requests")]


def beginning_of(content: bytes, characters: int) -> str:
    """The beginning of a body's prompt, about a prefill chunk, and its model. Of a body that is refused, anything."""
    try:
        body = parse_json(content, "the body", "")
    except PastaError:
        return ""
    fields = [body.get(name) for name in BEGINNING] if isinstance(body, dict) else []
    return json.dumps(fields)[:characters]


def choice(replicas: Collection[Replica], beginning: str, margin: int) -> Replica | None:
    """The replica for a prompt: the same for the same beginning as long as it is there (rendezvous hashing), or the
    one with the fewest requests if the first has more than a margin more."""
    if not replicas:
        return None
    own = max(replicas, key=lambda one: hashlib.blake2b(f"{one.number} {beginning}".encode()).digest())
    least = min(replicas, key=lambda one: (one.requests, one.number))
    return least if own.requests > least.requests + margin else own


def _head(response: httpx2.Response, *more: tuple[bytes, bytes]) -> Message:
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in OWN_HEADERS]
    return {"type": "http.response.start", "status": response.status_code, "headers": [*headers, *more]}


async def _send_whole(response: httpx2.Response, send: Send) -> None:
    await send(_head(response, (b"content-length", str(len(response.content)).encode())))
    await send({"type": "http.response.body", "body": response.content})


async def _send_events(response: httpx2.Response, send: Send, path: str) -> None:
    """Pass events on as they arrive, each whole. If their source is lost after the first, an error is the last one."""
    sent, rest = 0, b""
    try:
        async for part in response.aiter_raw():
            events, end, rest = (rest + part).rpartition(b"\n\n")
            if not end:
                continue
            if not sent:
                await send(_head(response))
            sent += (b"\n" + events).count(b"\ndata: ")  # the rest are comments
            await send({"type": "http.response.body", "body": events + end, "more_body": True})
        last = b""
    except httpx2.TransportError:
        if not sent:
            raise
        refusal = Refusal(LOST, 503, "replica_lost")
        last = error_event(refusal, sent) if path == "/v1/responses" else event(refusal.body())
    await send({"type": "http.response.body", "body": last})
