"""A client for language models over HTTP, OpenAI's API or Gemini's: retries, pacing, usage, answers cached on disk.

The cache holds one JSON line per answer, keyed by a hash of the model and the messages; a resumed run is answered from
it. A failure that may pass is no answer: it is never stored, and many in a row end the run. The API key comes from the
environment and goes into a header only.
"""

import dataclasses
import hashlib
import http.client
import itertools
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, AtLeastZero, Positive
from pasta_jax.llm.cache import Cache, CachedAnswer, Prices, Usage, cost_of, total_cost
from pasta_jax.progress import say
from pasta_jax.runs import processes

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Messages = tuple[tuple[str, str], ...]  # (role, text): system, user, assistant

RETRY_STATUS = frozenset({408, 409, 425, 429, *range(500, 600)})
FATAL_STATUS = frozenset({401, 402, 403, 404})  # every other request would fail the same way
IN_A_ROW = 10  # requests without an answer, each after all its retries, that end the run
_MAX_BODY = 16 << 20  # bytes
_OTHER_LIMIT = "max_completion_tokens"


class LLMError(PastaError):
    """A request without a usable answer; `reason` is one of a few phrases, for counting."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Unavailable(LLMError):
    """No answer for a reason that may pass, after all retries: no connection, a timeout, a busy server."""


class _LimitRefused(LLMError):
    """The endpoint rejects the name of the parameter that limits an answer."""


class EndpointError(PastaError):
    """No request can succeed: the key, address or model name is wrong."""


class EndpointDown(PastaError):
    """The endpoint does not answer now; the same run may succeed later."""

    exit_code = 3


@dataclasses.dataclass(frozen=True)
class Endpoint(Prices):
    """A language model behind an API, its prices, and how to send requests to it."""

    # "openai": POST {url}/chat/completions; "gemini": POST {url}/models/{model}:generateContent
    kind: Literal["openai", "gemini"]
    url: str
    model: str
    key_variable: str  # environment variable that holds the API key; empty: no key is sent
    temperature: AtLeastZero
    max_tokens: Positive  # of an answer
    timeout_s: Seconds  # for a complete answer
    requests_per_minute: AboveZero
    retries: Annotated[int, Meta(ge=0, le=100)]  # after the first try
    backoff_s: Seconds  # before the first retry; doubled for each further one
    max_backoff_s: Seconds  # also the upper limit for a server's Retry-After


@dataclasses.dataclass(frozen=True)
class TimeSource:
    """A source of time that tests replace."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None  # None: real time, until the client is stopped


class Client:
    """A connection to an endpoint; any number of threads may use it at a time."""

    def __init__(self, endpoint: Endpoint, cache: Path, clock: TimeSource | None = None):
        if endpoint.kind not in ("openai", "gemini"):
            raise PastaError(f"endpoint kind {endpoint.kind!r}: unknown; choose openai or gemini")
        if urllib.parse.urlsplit(endpoint.url).scheme not in ("http", "https"):
            raise PastaError(f"endpoint url {endpoint.url!r}: must begin with https:// or http://")
        self._endpoint, self._clock = endpoint, clock or TimeSource()
        self._key = _key(endpoint)
        self._cache = Cache(cache)
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._next_start = 0.0
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._limit_name = "max_tokens"  # of the parameter; newer models of OpenAI know max_completion_tokens only
        self._failed_in_a_row = 0
        self._outage = ""  # why the run ended
        self.usage = Usage(dollars=endpoint.dollars(0, 0))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self._cache.close()

    def stop(self) -> None:
        """Send no more requests; threads that are waiting for a retry give up."""
        self._stopped.set()

    def chat(self, messages: Messages) -> str:
        """The answer, or LLMError; Unavailable if it may come later, EndpointDown after many of those in a row."""
        e = self._endpoint
        key = hashlib.sha256(
            json.dumps([e.kind, e.model, e.temperature, e.max_tokens, messages], ensure_ascii=True).encode()
        ).hexdigest()
        if (cached := self._cache.get(key)) is not None:
            with self._lock:
                self.usage.cache_hits += 1
            return cached
        try:
            text, tokens_in, tokens_out = self._send(messages)
        except LLMError as error:
            with self._lock:
                self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(error, Unavailable) else 0
                down = self._failed_in_a_row >= IN_A_ROW
            raise (self.give_up(error) if down else error) from None
        answer = CachedAnswer(key, text, tokens_in, tokens_out)
        with self._lock:
            self._failed_in_a_row = 0
            self.usage.add(cost_of([answer], e), e)
        self._cache.put(answer)
        return text

    def give_up(self, error: Unavailable) -> EndpointDown:
        """Stop all threads. The error to raise, which names the first cause in whichever thread it is raised."""
        with self._lock:
            self._outage = self._outage or f"{self._endpoint.url}: {error}; rerun the command to resume"
        self.stop()
        return EndpointDown(self._outage)

    def total_usage(self) -> Usage:
        """The usage of this run, with the requests, tokens and cost of all answers in the cache."""
        usage = dataclasses.replace(self.usage, requests=0, tokens_in=0, tokens_out=0)
        usage.add(total_cost(self._cache.path, self._endpoint), self._endpoint)
        return usage

    def _send(self, messages: Messages) -> tuple[str, int, int]:
        """(text, tokens in, tokens out) of an answer, under whichever name the endpoint accepts for its limit."""
        try:
            return self._send_as(messages, name := self._limit_name)
        except _LimitRefused as error:
            if name == _OTHER_LIMIT:
                raise
            refusal = error
        try:
            answer = self._send_as(messages, _OTHER_LIMIT)
        except LLMError as error:
            raise (refusal if error.reason in ("status 400", "status 422") else error) from None
        self._limit_name = _OTHER_LIMIT
        return answer

    def _send_as(self, messages: Messages, limit: str) -> tuple[str, int, int]:
        """(text, tokens in, tokens out) of an answer, after up to `retries` retries."""
        e = self._endpoint
        body, headers, url = _request(e, messages, self._key, limit)
        for attempt in itertools.count():
            self._wait_for_turn()
            try:
                return _answer(e, self._post(url, body, headers))
            except _Retry as error:
                if attempt == e.retries:
                    raise Unavailable(error.reason, self._redact(f"{error.detail}, {attempt + 1} times")) from None
                self._back_off(attempt, error)

    def _wait_for_turn(self) -> None:
        """Spread requests evenly over each minute, with those of other processes."""
        with self._lock:
            start = max(self._next_start, self._clock.now())
            self._next_start = start + 60 * processes.count() / self._endpoint.requests_per_minute
        self._sleep_until(start)

    def _back_off(self, attempt: int, error: "_Retry") -> None:
        """Wait before the next attempt."""
        e = self._endpoint
        pause = min(e.backoff_s * 2**attempt if error.after is None else error.after, e.max_backoff_s)
        resume = self._clock.now() + pause
        with self._lock:
            first = self.usage.retries == 0
            self.usage.retries += 1
            if error.after is not None:  # the server means all threads
                self._next_start = max(self._next_start, resume)
        if first:  # a long run of retries would be silent otherwise
            say(f"{e.url}: {error.reason}: {self._redact(error.detail)}; retrying up to {e.retries} times")
        self._sleep_until(resume)

    def _sleep_until(self, when: float) -> None:
        if (wait := when - self._clock.now()) > 0:
            (self._clock.sleep or self._stopped.wait)(wait)
        if self._stopped.is_set():
            raise Unavailable("stopped", "the run has ended")

    def _post(self, url: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The body of a successful response."""
        deadline = self._clock.now() + self._endpoint.timeout_s
        request = urllib.request.Request(url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._endpoint.timeout_s) as response:
                pieces, size = [], 0
                while piece := response.read1(1 << 16):
                    pieces.append(piece)
                    size += len(piece)
                    if self._clock.now() > deadline or size > _MAX_BODY:
                        raise _Retry("timeout", f"no complete answer within {self._endpoint.timeout_s:g} s")
                expected = response.headers.get("Content-Length")
                if expected is not None and expected.isdigit() and size < int(expected):
                    raise _Retry("cut off", f"received {size} of {expected} bytes")
                return b"".join(pieces)
        except urllib.error.HTTPError as error:
            self._raise_for(error)
        except http.client.HTTPException as error:
            raise _Retry("cut off", type(error).__name__) from None
        except OSError as error:  # includes URLError, which wraps the socket's error
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise _Retry("timeout", f"no complete answer within {self._endpoint.timeout_s:g} s") from None
            raise _Retry("no connection", self._redact(str(cause))) from None

    def _raise_for(self, error: urllib.error.HTTPError) -> NoReturn:
        """Raise what an HTTP status calls for: a retry, the end of this request, or the end of the run."""
        with error:
            try:
                body = error.read(2000).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                body = ""
        detail = self._redact(f"status {error.code} {' '.join(body.split())[:200]}".rstrip())
        if error.code in RETRY_STATUS:
            after = _retry_after(error.headers.get("Retry-After"))
            raise _Retry(f"status {error.code}", detail, after) from None
        if error.code in FATAL_STATUS or 300 <= error.code < 400:
            address, variable = self._endpoint.url, self._endpoint.key_variable
            raise EndpointError(f"{address}: {detail}; check the url, the model's name and {variable}") from None
        renamed = error.code == 400 and self._endpoint.kind == "openai" and "max_tokens" in body
        raise (_LimitRefused if renamed else LLMError)(f"status {error.code}", detail) from None

    def _redact(self, text: str) -> str:
        """Servers tend to echo a key that they reject."""
        return text.replace(self._key, "[key]") if self._key else text


class _Retry(Exception):
    """A failure that may pass; `after` is the pause in seconds that the server asked for."""

    def __init__(self, reason: str, detail: str, after: float | None = None):
        self.reason, self.detail, self.after = reason, detail, after


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_):
        return None


def _key(endpoint: Endpoint) -> str:
    if not endpoint.key_variable:
        return ""
    key = os.environ.get(endpoint.key_variable, "").strip()
    if not key:
        raise PastaError(f"no API key: set the environment variable {endpoint.key_variable}")
    if not re.fullmatch(r"[!-~]+", key):
        raise PastaError(f"{endpoint.key_variable}: contains characters that no API key has; set it again")
    return key


def _retry_after(header: str | None) -> float | None:
    """Seconds, or None."""
    try:
        return max(float(header), 0.0) if header is not None else None
    except ValueError:  # a date: rare, and the usual back-off does as well
        return None


def _request(endpoint: Endpoint, messages: Messages, key: str, limit: str) -> tuple[bytes, dict[str, str], str]:
    """Body, headers and URL of a request; `limit` is what OpenAI's API calls the limit of an answer."""
    url, headers = endpoint.url.rstrip("/"), {"Content-Type": "application/json"}
    if endpoint.kind == "openai":
        url += "/chat/completions"
        body = {
            "model": endpoint.model,
            "messages": [{"role": role, "content": text} for role, text in messages],
            "temperature": endpoint.temperature,
            limit: endpoint.max_tokens,
        }
        if key:
            headers["Authorization"] = f"Bearer {key}"
    else:
        url += f"/models/{urllib.parse.quote(endpoint.model, safe='')}:generateContent"
        roles = {"user": "user", "assistant": "model"}
        body = {
            "contents": [
                {"role": roles[role], "parts": [{"text": text}]} for role, text in messages if role != "system"
            ],
            "generationConfig": {"temperature": endpoint.temperature, "maxOutputTokens": endpoint.max_tokens},
        }
        if system := [{"text": text} for role, text in messages if role == "system"]:
            body["systemInstruction"] = {"parts": system}
        if key:
            headers["x-goog-api-key"] = key
    return json.dumps(body).encode(), headers, url


def _answer(endpoint: Endpoint, body: bytes) -> tuple[str, int, int]:
    """(text, tokens in, tokens out) of a response."""
    try:
        response = json.loads(body)
    except (ValueError, RecursionError):
        raise _Retry("invalid JSON", f"{len(body)} bytes that are not JSON") from None
    try:
        if endpoint.kind == "openai":
            choice, usage = response["choices"][0], response.get("usage") or {}
            text, ended = choice["message"].get("content"), choice.get("finish_reason")
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        else:
            usage = response.get("usageMetadata") or {}
            if blocked := (response.get("promptFeedback") or {}).get("blockReason"):
                raise LLMError("declined", f"the question was blocked ({blocked})")
            choice = response["candidates"][0]
            parts = (choice.get("content") or {}).get("parts") or []
            text, ended = "".join(part.get("text", "") for part in parts), choice.get("finishReason")
            counts = usage.get("promptTokenCount"), usage.get("candidatesTokenCount")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Retry("unknown format", f"no answer in {body[:100]!a}") from None
    if ended in ("length", "MAX_TOKENS"):
        raise LLMError("too long", f"the answer did not end within {endpoint.max_tokens} tokens")
    if not isinstance(text, str) or not text:
        raise LLMError("declined", f"an empty answer (finished: {ended})")
    return text, *(count if isinstance(count, int) else 0 for count in counts)
