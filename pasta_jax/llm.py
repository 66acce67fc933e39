"""Asks a language model over HTTP, OpenAI's form or Gemini's: retried, paced, counted, every answer kept on disk.

The cache is the memory of a run: one JSON line an answer, keyed by a hash of the model and the messages. A killed run
that asks the same again is answered from it. The API key comes from the environment and goes into a header only.
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

from pasta_jax.errors import PastaError

Messages = tuple[tuple[str, str], ...]  # (role, text): system, user, assistant

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
HOPELESS = frozenset({401, 403, 404})  # no other request would fare better
_MAX_BODY = 16 << 20


class LLMError(PastaError):
    """This request got no answer; `reason` is one of a few words, for counting."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Hopeless(PastaError):
    """No request will get an answer: a wrong key, address or model name."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where and how to ask."""

    kind: str  # "openai": POST {url}/chat/completions; "gemini": POST {url}/models/{model}:generateContent
    url: str
    model: str
    key_variable: str  # the environment variable with the API key; empty: none is sent
    temperature: float
    max_tokens: int  # of an answer
    timeout_s: float  # for a whole answer
    requests_per_minute: float
    retries: int  # after the first try
    backoff_s: float  # before the first retry; doubled for each further one
    max_backoff_s: float  # also the longest that a server's Retry-After is obeyed
    dollars_per_million_in: float
    dollars_per_million_out: float


@dataclasses.dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None  # None: really, until the client is stopped


@dataclasses.dataclass
class Usage:
    """What a run has used so far; answers from the cache cost nothing."""

    asked: int = 0
    cached: int = 0
    retried: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float = 0.0


class Cache:
    """Answers on disk, append-only. A last line that a kill tore off is cut away."""

    def __init__(self, path: Path):
        self._path, self._lock = path, threading.Lock()
        self._answers: dict[str, str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            *whole, torn = (path.read_bytes() if path.exists() else b"").split(b"\n")
            for number, line in enumerate(whole, 1):
                self._remember(number, line)
            self._file = path.open("ab")
            if torn:
                self._file.truncate(sum(len(line) + 1 for line in whole))
        except OSError as error:
            raise PastaError(f"{path}: {error.strerror}; give a cache file in a folder that you may write") from None

    def _remember(self, number: int, line: bytes) -> None:
        try:
            record = json.loads(line)
            self._answers[record["key"]] = record["text"]
        except (ValueError, KeyError, TypeError):
            raise PastaError(f"{self._path}: line {number} is no cached answer; delete that line") from None

    def get(self, key: str) -> str | None:
        with self._lock:
            return self._answers.get(key)

    def put(self, record: dict) -> None:
        line = json.dumps(record, ensure_ascii=True, sort_keys=True) + "\n"
        with self._lock:
            self._file.write(line.encode())
            self._file.flush()
            self._answers[record["key"]] = record["text"]

    def close(self) -> None:
        self._file.close()


class Client:
    """Any number of threads may ask at a time."""

    def __init__(self, endpoint: Endpoint, cache_path: Path, clock: Clock | None = None):
        if endpoint.kind not in ("openai", "gemini"):
            raise PastaError(f"endpoint kind {endpoint.kind!r}: there is none of this name; choose openai or gemini")
        if urllib.parse.urlsplit(endpoint.url).scheme not in ("http", "https"):
            raise PastaError(f"endpoint url {endpoint.url!r}: it must begin with https:// or http://")
        self._endpoint, self._clock = endpoint, clock or Clock()
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
        """Nothing is asked any more: whoever waits for another try gives up."""
        self._stopped.set()

    def chat(self, messages: Messages) -> str:
        """The answer to a conversation; an LLMError when it can't be had."""
        e = self._endpoint
        key = hashlib.sha256(
            json.dumps([e.kind, e.model, e.temperature, e.max_tokens, messages], ensure_ascii=True).encode()
        ).hexdigest()
        kept = self._cache.get(key)
        if kept is not None:
            with self._lock:
                self.usage.cached += 1
            return kept
        body, headers, url = _request(e, messages, self._key)
        for attempt in range(e.retries + 1):
            self._wait_for_turn()
            try:
                text, tokens_in, tokens_out = _answer(e, self._post(url, body, headers))
                break
            except _Retry as error:
                if attempt == e.retries:
                    raise LLMError(error.reason, self._safe(f"{error.detail}, {attempt + 1} times")) from None
                self._hold_back(attempt, error)
        dollars = (tokens_in * e.dollars_per_million_in + tokens_out * e.dollars_per_million_out) / 1e6
        with self._lock:
            self.usage.asked += 1
            self.usage.tokens_in += tokens_in
            self.usage.tokens_out += tokens_out
            self.usage.dollars += dollars
        self._cache.put({"key": key, "text": text, "tokens_in": tokens_in, "tokens_out": tokens_out})
        return text

    def _wait_for_turn(self) -> None:
        """Starts are spread evenly over each minute."""
        with self._lock:
            start = max(self._next_start, self._clock.now())
            self._next_start = start + 60 / self._endpoint.requests_per_minute
        self._sleep_until(start)

    def _hold_back(self, attempt: int, error: "_Retry") -> None:
        e = self._endpoint
        pause = min(e.backoff_s * 2**attempt if error.after is None else error.after, e.max_backoff_s)
        resume = self._clock.now() + pause
        with self._lock:
            self.usage.retried += 1
            if error.after is not None:  # the server speaks to all of us
                self._next_start = max(self._next_start, resume)
        self._sleep_until(resume)

    def _sleep_until(self, when: float) -> None:
        if (wait := when - self._clock.now()) > 0:
            (self._clock.sleep or self._stopped.wait)(wait)
        if self._stopped.is_set():
            raise LLMError("stopped", "the run has ended")

    def _post(self, url: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The body of a good answer."""
        deadline = self._clock.now() + self._endpoint.timeout_s
        request = urllib.request.Request(url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._endpoint.timeout_s) as response:
                pieces, size = [], 0
                while piece := response.read1(1 << 16):
                    pieces.append(piece)
                    size += len(piece)
                    if self._clock.now() > deadline or size > _MAX_BODY:
                        raise _Retry("timeout", f"no whole answer within {self._endpoint.timeout_s:g} s")
                wanted = response.headers.get("Content-Length")
                if wanted is not None and wanted.isdigit() and size < int(wanted):
                    raise _Retry("cut off", f"{size} of {wanted} bytes came")
                return b"".join(pieces)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except TimeoutError:
            raise _Retry("timeout", f"no whole answer within {self._endpoint.timeout_s:g} s") from None
        except http.client.HTTPException as error:
            raise _Retry("cut off", type(error).__name__) from None
        except OSError as error:  # URLError too: it wraps what the socket said
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise _Retry("timeout", f"no answer within {self._endpoint.timeout_s:g} s") from None
            raise _Retry("no connection", self._safe(str(cause))) from None

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        """What an HTTP status asks for: another try, giving up this request, or giving up."""
        with error:
            try:
                said = error.read(2000).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                said = ""
        detail = self._safe(f"status {error.code} {' '.join(said.split())[:200]}".rstrip())
        if error.code in RETRIED:
            return _Retry(f"status {error.code}", detail, _retry_after(error.headers.get("Retry-After")))
        if error.code in HOPELESS or 300 <= error.code < 400:
            address = self._endpoint.url
            return Hopeless(f"{address}: {detail}; check its url, the model's name and {self._endpoint.key_variable}")
        return LLMError(f"status {error.code}", detail)

    def _safe(self, text: str) -> str:
        """Servers like to repeat a key that they don't accept."""
        return text.replace(self._key, "[key]") if self._key else text


class _Retry(Exception):
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
        raise PastaError(f"{endpoint.key_variable}: holds characters that no API key has; set it again")
    return key


def _retry_after(said: str | None) -> float | None:
    try:
        return max(float(said), 0.0) if said is not None else None
    except ValueError:  # a date: rare, and the back-off does as well
        return None


def _request(endpoint: Endpoint, messages: Messages, key: str) -> tuple[bytes, dict[str, str], str]:
    """Body, headers and address of one question."""
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
    """Text, ids read and ids written, out of a response."""
    try:
        response = json.loads(body)
    except ValueError:
        raise _Retry("invalid JSON", f"{len(body)} bytes that are no JSON") from None
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
        raise _Retry("unknown form", f"no answer in {body[:100]!a}") from None
    if ended in ("length", "MAX_TOKENS"):
        raise LLMError("too long", f"the answer did not end within {endpoint.max_tokens} tokens")
    if not isinstance(text, str) or not text:
        raise LLMError("declined", f"an empty answer (finished: {ended})")
    return text, *(count if isinstance(count, int) else 0 for count in counts)
