"""A client for language models over HTTP, OpenAI's API or Gemini's: retries, pacing, usage, answers cached on disk.

The cache holds one JSON line per answer, keyed by a hash of the model and the messages; a resumed run is answered from
it. The API key comes from the environment and goes into a header only.
"""

import dataclasses
import hashlib
import http.client
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
from typing import Literal, NoReturn

from pasta_jax.errors import PastaError
from pasta_jax.files import JsonLines

Messages = tuple[tuple[str, str], ...]  # (role, text): system, user, assistant

RETRY_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
FATAL_STATUS = frozenset({401, 403, 404})  # every other request would fail the same way
_MAX_BODY = 16 << 20  # bytes


class LLMError(PastaError):
    """A request without a usable answer; `reason` is one of a few phrases, for counting."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class EndpointError(PastaError):
    """No request can succeed: the key, address or model name is wrong."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A language model behind an API, and how to send requests to it."""

    # "openai": POST {url}/chat/completions; "gemini": POST {url}/models/{model}:generateContent
    kind: Literal["openai", "gemini"]
    url: str
    model: str
    key_variable: str  # environment variable that holds the API key; empty: no key is sent
    temperature: float
    max_tokens: int  # of an answer
    timeout_s: float  # for a complete answer
    requests_per_minute: float
    retries: int  # after the first try
    backoff_s: float  # before the first retry; doubled for each further one
    max_backoff_s: float  # also the upper limit for a server's Retry-After
    dollars_per_million_in: float
    dollars_per_million_out: float


@dataclasses.dataclass(frozen=True)
class TimeSource:
    """A source of time that tests replace."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None  # None: real time, until the client is stopped


@dataclasses.dataclass
class Usage:
    """Requests, tokens and cost so far; answers from the cache cost nothing."""

    requests: int = 0
    cache_hits: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float = 0.0

    def text(self) -> str:
        """On one line."""
        return (
            f"{self.requests:,} requests, {self.cache_hits:,} answers cached, {self.retries:,} retries; "
            f"{self.tokens_in:,} tokens in, {self.tokens_out:,} out; ${self.dollars:.2f}"
        )


class Cache:
    """Answers on disk, one JSON line each."""

    def __init__(self, path: Path):
        self._lock = threading.Lock()
        self._file = JsonLines(path)
        self._answers: dict[str, str] = {}
        for number, line in enumerate(self._file.lines, 1):
            try:
                record = json.loads(line)
                self._answers[record["key"]] = record["text"]
            except (ValueError, KeyError, TypeError):
                self._file.close()
                raise PastaError(f"{path}: line {number} is not a cached answer; delete that line") from None

    def get(self, key: str) -> str | None:
        """The answer, or None."""
        with self._lock:
            return self._answers.get(key)

    def put(self, key: str, text: str, tokens_in: int, tokens_out: int) -> None:
        """Store an answer."""
        with self._lock:
            self._file.append({"key": key, "text": text, "tokens_in": tokens_in, "tokens_out": tokens_out})
            self._answers[key] = text

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Client:
    """A connection to an endpoint; any number of threads may use it at a time."""

    def __init__(self, endpoint: Endpoint, cache_path: Path, clock: TimeSource | None = None):
        if endpoint.kind not in ("openai", "gemini"):
            raise PastaError(f"endpoint kind {endpoint.kind!r}: unknown; choose openai or gemini")
        if urllib.parse.urlsplit(endpoint.url).scheme not in ("http", "https"):
            raise PastaError(f"endpoint url {endpoint.url!r}: must begin with https:// or http://")
        self._endpoint, self._clock = endpoint, clock or TimeSource()
        self._key = _key(endpoint)
        self._cache = Cache(cache_path)
        self._lock = threading.Lock()
        self._next_start = 0.0
        self._stopped = threading.Event()
        self._opener = urllib.request.build_opener(_NoRedirect)
        self.usage = Usage()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self._cache.close()

    def stop(self) -> None:
        """Send no more requests; threads that are waiting for a retry give up."""
        self._stopped.set()

    def chat(self, messages: Messages) -> str:
        """The answer to a conversation; raises LLMError if there is none."""
        e = self._endpoint
        key = hashlib.sha256(
            json.dumps([e.kind, e.model, e.temperature, e.max_tokens, messages], ensure_ascii=True).encode()
        ).hexdigest()
        cached = self._cache.get(key)
        if cached is not None:
            with self._lock:
                self.usage.cache_hits += 1
            return cached
        body, headers, url = _request(e, messages, self._key)
        for attempt in range(e.retries + 1):
            self._wait_for_turn()
            try:
                text, tokens_in, tokens_out = _answer(e, self._post(url, body, headers))
                break
            except _Retry as error:
                if attempt == e.retries:
                    raise LLMError(error.reason, self._redact(f"{error.detail}, {attempt + 1} times")) from None
                self._back_off(attempt, error)
        dollars = (tokens_in * e.dollars_per_million_in + tokens_out * e.dollars_per_million_out) / 1e6
        with self._lock:
            self.usage.requests += 1
            self.usage.tokens_in += tokens_in
            self.usage.tokens_out += tokens_out
            self.usage.dollars += dollars
        self._cache.put(key, text, tokens_in, tokens_out)
        return text

    def _wait_for_turn(self) -> None:
        """Spread requests evenly over each minute."""
        with self._lock:
            start = max(self._next_start, self._clock.now())
            self._next_start = start + 60 / self._endpoint.requests_per_minute
        self._sleep_until(start)

    def _back_off(self, attempt: int, error: "_Retry") -> None:
        """Wait before the next attempt."""
        e = self._endpoint
        pause = min(e.backoff_s * 2**attempt if error.after is None else error.after, e.max_backoff_s)
        resume = self._clock.now() + pause
        with self._lock:
            self.usage.retries += 1
            if error.after is not None:  # the server means all threads
                self._next_start = max(self._next_start, resume)
        self._sleep_until(resume)

    def _sleep_until(self, when: float) -> None:
        if (wait := when - self._clock.now()) > 0:
            (self._clock.sleep or self._stopped.wait)(wait)
        if self._stopped.is_set():
            raise LLMError("stopped", "the run has ended")

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
        except TimeoutError:
            raise _Retry("timeout", f"no complete answer within {self._endpoint.timeout_s:g} s") from None
        except http.client.HTTPException as error:
            raise _Retry("cut off", type(error).__name__) from None
        except OSError as error:  # includes URLError, which wraps the socket's error
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise _Retry("timeout", f"no answer within {self._endpoint.timeout_s:g} s") from None
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
        raise LLMError(f"status {error.code}", detail) from None

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


def _request(endpoint: Endpoint, messages: Messages, key: str) -> tuple[bytes, dict[str, str], str]:
    """Body, headers and URL of a request."""
    url, headers = endpoint.url.rstrip("/"), {"Content-Type": "application/json"}
    if endpoint.kind == "openai":
        url += "/chat/completions"
        body = {
            "model": endpoint.model,
            "messages": [{"role": role, "content": text} for role, text in messages],
            "temperature": endpoint.temperature,
            "max_tokens": endpoint.max_tokens,
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
    except ValueError:
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
