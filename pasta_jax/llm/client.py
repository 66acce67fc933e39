"""A client for language models behind OpenAI's API: pacing, retries, usage, answers cached on disk.

The `openai` package sends the requests. It neither waits between them nor caches, and its retries can't be stopped or
counted, so these are ours. The cache holds one JSON line per answer, keyed by a hash of the model and the messages (and
of the address of one's own server); a resumed run is answered from it. A failure that may pass is no answer: it is
never stored, and many in a row end the run. A refusal is one request's own if the endpoint answers a plain question,
else it ends the run. The API key comes from the environment and goes into a header only.
"""

import dataclasses
import hashlib
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, AtLeastZero, Positive
from pasta_jax.llm.cache import Cache, CachedAnswer, Prices, Usage, cost_of, total_cost
from pasta_jax.progress import say
from pasta_jax.runs import processes

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Messages = tuple[tuple[str, str], ...]  # (role, text): system, user, assistant

RETRY_STATUS = frozenset({408, 409, 425, 429, *range(500, 600)})
FATAL_STATUS = frozenset({*range(300, 400), 401, 402, 403, 404})  # every other request would fail the same way
INVALID_KEY = ("API key not valid", "API_KEY_INVALID")  # Gemini's status is 400 then
PLAIN = (("user", "Reply with one word: yes"),)  # what any endpoint answers
REFUSED = 2  # retries of a connection that is refused before any was accepted: no server is there
IN_A_ROW = 10  # requests without an answer, each after all its retries, that end the run


class LLMError(PastaError):
    """A request without a usable answer; `reason` is one of a few phrases, for counting."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Refused(LLMError):
    """A status that says no request like this one can succeed."""


class Unavailable(LLMError):
    """No answer for a reason that may pass: no connection, a timeout, a busy server."""

    def __init__(self, reason: str, detail: str, after: float | None = None, refused: bool = False):
        super().__init__(reason, detail)
        self.after = after  # the pause in seconds that the server asked for
        self.refused = refused  # nothing listens at the address


class EndpointError(PastaError):
    """No request can succeed: the key, address or model name is wrong."""


class EndpointDown(PastaError):
    """The endpoint does not answer now; the same run may succeed later."""

    exit_code = 3


@dataclasses.dataclass(frozen=True)
class Endpoint(Prices):
    """A language model behind an API, its prices, and how to send requests to it."""

    url: str = "https://api.openai.com/v1"  # requests go to {url}/chat/completions
    model: str = "gpt-4o-mini"
    key_variable: str = "OPENAI_API_KEY"  # environment variable that holds the key; empty: no key is sent
    temperature: AtLeastZero = 0.0
    max_tokens: Positive = 4096  # of an answer, its reasoning included
    # Of a model that reasons first, as Gemini's do unless told otherwise; empty: the provider decides.
    reasoning_effort: Literal["", "none", "minimal", "low", "medium", "high"] = ""
    timeout_s: Seconds = 120.0  # without a byte from the endpoint
    requests_per_minute: AboveZero = 300.0
    retries: Annotated[int, Meta(ge=0, le=100)] = 6  # after the first try
    backoff_s: Seconds = 2.0  # before the first retry; doubled for each further one
    max_backoff_s: Seconds = 60.0  # also the upper limit for a server's Retry-After

    def identity(self) -> dict[str, object]:
        """What answers depend on. Of the url neither a password nor parameters, which may hold a key."""
        names = ("model", "temperature", "max_tokens", "reasoning_effort")
        parts = urllib.parse.urlsplit(self.url)
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        return {"url": url} | {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class TimeSource:
    """A source of time that tests replace."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None  # None: real time, until the client is stopped


class Client:
    """A connection to an endpoint; any number of threads may use it at a time."""

    def __init__(self, endpoint: Endpoint, cache: Path, clock: TimeSource | None = None, run: int = 0):
        import openai  # it takes a second, and most commands ask no model behind an API

        if urllib.parse.urlsplit(endpoint.url).scheme not in ("http", "https"):
            raise PastaError(f"endpoint url {endpoint.url!r}: must begin with https:// or http://")
        self._endpoint, self._clock, self._sdk = endpoint, clock or TimeSource(), openai
        self._key = _key(endpoint)
        self._api = openai.OpenAI(
            base_url=endpoint.url,
            api_key=self._key or "none",
            timeout=endpoint.timeout_s,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),  # the endpoint's host, and no other
        )
        # The package would read the first two from the environment.
        unsent = ["OpenAI-Organization", "OpenAI-Project", *([] if self._key else ["Authorization"])]
        self._headers = dict.fromkeys(unsent, openai.omit)
        self._cache = Cache(cache, run)
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._next_start = 0.0
        self._limit_name = "max_tokens"  # of the parameter; newer models of OpenAI know max_completion_tokens only
        self._failed_in_a_row = 0
        self._reached = False  # whether anything has listened at the address
        self._outage = ""  # why the run ended
        self.usage = Usage(dollars=endpoint.dollars(0, 0))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self._api.close()
        self._cache.close()

    def stop(self) -> None:
        """Send no more requests; threads that are waiting for a retry give up."""
        self._stopped.set()

    def chat(self, messages: Messages) -> str:
        """The answer, or LLMError; Unavailable if it may come later, EndpointDown after many of those in a row."""
        if (cached := self._cache.get(self._key_of(messages))) is not None:
            with self._lock:
                self.usage.cache_hits += 1
            return cached
        try:
            text = self._answer(messages)
        except LLMError as error:
            with self._lock:
                self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(error, Unavailable) else 0
                down = self._failed_in_a_row >= IN_A_ROW
            raise (self.give_up(error) if down else error) from None
        with self._lock:
            self._failed_in_a_row, self._reached = 0, True
        return text

    def give_up(self, error: Unavailable, first: str = "") -> EndpointDown:
        """Stop all threads. The error to raise, which names the first cause in whichever thread it is raised."""
        with self._lock:
            self._outage = self._outage or f"{self._endpoint.url}: {error}; {first}rerun the command to resume"
        self.stop()
        return EndpointDown(self._outage)

    def total_usage(self) -> Usage:
        """The usage of this run, with the requests, tokens and cost of all answers in the cache."""
        usage = dataclasses.replace(self.usage, requests=0, tokens_in=0, tokens_out=0)
        usage.add(total_cost(self._cache.path, self._endpoint), self._endpoint)
        return usage

    def _key_of(self, messages: Messages) -> str:
        """Of a question in the cache."""
        e = self._endpoint
        # "openai" once was a choice of the API; with it, answers that were paid for are still found.
        asked = ["openai", e.model, e.temperature, e.max_tokens, messages, *filter(None, [e.reasoning_effort])]
        if urllib.parse.urlsplit(e.url).scheme == "http":  # one's own server, whose name for a model says nothing of it
            asked.append(e.identity()["url"])
        return hashlib.sha256(json.dumps(asked, ensure_ascii=True).encode()).hexdigest()

    def _answer(self, messages: Messages) -> str:
        """The text of an answer; EndpointError if the endpoint refuses a plain question as well."""
        try:
            return self._ask(messages)
        except Refused as refused:
            try:
                self._ask(PLAIN)
            except Refused as error:
                raise self._wrong(f"{error.detail}, to a plain question too") from None
            except Unavailable:
                raise
            except LLMError:  # the endpoint answers, if with nothing usable
                pass
            raise refused from None

    def _ask(self, messages: Messages) -> str:
        """The text of an answer, after up to `retries` retries."""
        attempt = 0
        while True:
            self._wait_for_turn()
            limit = self._limit_name
            try:
                return self._request(messages)
            except Unavailable as error:
                if self._limit_name != limit:  # the endpoint knows the other name: no failed attempt
                    continue
                if attempt == self._endpoint.retries:
                    raise Unavailable(error.reason, f"{error.detail}, {attempt + 1} times") from None
                self._reached |= not error.refused
                if attempt == REFUSED and not self._reached:
                    raise self.give_up(error, "start the server or set the endpoint's url, and ") from None
                self._back_off(attempt, error)
                attempt += 1

    def _wait_for_turn(self) -> None:
        """Spread requests evenly over each minute, with those of other processes."""
        with self._lock:
            start = max(self._next_start, self._clock.now())
            self._next_start = start + 60 * processes.count() / self._endpoint.requests_per_minute
        self._sleep_until(start)

    def _back_off(self, attempt: int, error: Unavailable) -> None:
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
            say(f"{e.url}: {error.reason}: {error.detail}; retrying up to {e.retries} times")
        self._sleep_until(resume)

    def _sleep_until(self, when: float) -> None:
        if (wait := when - self._clock.now()) > 0:
            (self._clock.sleep or self._stopped.wait)(wait)
        if self._stopped.is_set():
            raise Unavailable("stopped", "the run has ended")

    def _request(self, messages: Messages) -> str:
        """The text of an answer, which is counted and stored."""
        e, sdk, limit = self._endpoint, self._sdk, self._limit_name  # which another thread may change meanwhile
        try:
            response = self._api.chat.completions.create(
                model=e.model,
                messages=[{"role": role, "content": text} for role, text in messages],
                temperature=e.temperature,
                reasoning_effort=e.reasoning_effort or sdk.omit,
                extra_headers=self._headers,
                **{limit: e.max_tokens},
            )
        except sdk.APITimeoutError:
            raise Unavailable("timeout", f"no answer within {e.timeout_s:g} s") from None
        except sdk.APIConnectionError as error:
            detail = self._redacted(str(error.__cause__ or error))
            raise Unavailable("no connection", detail, refused="refused" in detail.lower()) from None
        except sdk.APIStatusError as error:
            self._reached = True
            raise self._failure(error.status_code, error.response, limit) from None
        except (ValueError, RecursionError):
            raise Unavailable("invalid JSON", "the response is not JSON") from None
        try:  # the package checks no types
            choice, usage = response.choices[0], response.usage
            text, ended = choice.message.content, choice.finish_reason
        except (AttributeError, IndexError, TypeError):
            raise Unavailable("unknown format", "the response is no completion of OpenAI's API") from None
        complete = isinstance(text, str) and text != "" and ended != "length"
        self._keep(CachedAnswer(self._key_of(messages), text if complete else "", *_tokens(usage), complete))
        if ended == "length":
            raise LLMError("too long", f"the answer did not end within {e.max_tokens} tokens")
        if not complete:
            raise LLMError("declined", f"an empty answer (finished: {ended})")
        return text

    def _keep(self, answer: CachedAnswer) -> None:
        with self._lock:
            self.usage.add(cost_of([answer], self._endpoint), self._endpoint)
        self._cache.put(answer)

    def _failure(self, status: int, response: object, limit: str) -> Exception:
        """What an HTTP status calls for: a retry, the end of this request, or the end of the run."""
        detail = self._redacted(f"status {status} {' '.join(response.text.split())[:200]}".rstrip())
        if status in RETRY_STATUS:
            return Unavailable(f"status {status}", detail, _seconds(response.headers.get("Retry-After")))
        if status in FATAL_STATUS or any(phrase in response.text for phrase in INVALID_KEY):
            return self._wrong(detail)
        if status == 400 and limit == "max_tokens" and "max_completion_tokens" in response.text:
            self._limit_name = "max_completion_tokens"
            return Unavailable("status 400", detail, after=0)
        return Refused(f"status {status}", detail)

    def _wrong(self, detail: str) -> EndpointError:
        e = self._endpoint
        return EndpointError(f"{e.url}: {detail}; check the url, the model's name, its settings and {e.key_variable}")

    def _redacted(self, text: str) -> str:
        """Servers tend to echo a key that they reject."""
        return text.replace(self._key, "[key]") if self._key else text


def _key(endpoint: Endpoint) -> str:
    if not endpoint.key_variable:
        return ""
    key = os.environ.get(endpoint.key_variable, "").strip()
    if not key:
        raise PastaError(f"no API key: set the environment variable {endpoint.key_variable}")
    if not re.fullmatch(r"[!-~]+", key):
        raise PastaError(f"{endpoint.key_variable}: contains characters that no API key has; set it again")
    return key


def _tokens(usage: object) -> tuple[int, int]:
    """Of what was asked and of what was answered."""
    counts = (getattr(usage, f"{name}_tokens", 0) for name in ("prompt", "completion", "total"))
    tokens_in, tokens_out, total = (count if isinstance(count, int) else 0 for count in counts)
    return tokens_in, max(tokens_out, total - tokens_in)  # Gemini counts reasoning in the total alone


def _seconds(header: str | None) -> float | None:
    """The seconds of a Retry-After header, if any."""
    try:
        return max(float(header), 0.0) if header is not None else None
    except ValueError:  # a date: rare, and the usual back-off does as well
        return None
