"""Clients of a server of OpenAI's API that stream answers at the same time: time to first token, tokens per second."""

import dataclasses
import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pasta_jax.errors import PastaError

PATH = "/v1/chat/completions"
ANSWER_S = 600.0  # the longest that a server may say nothing


@dataclasses.dataclass(frozen=True)
class Streamed:
    """One answer as its client saw it."""

    first_s: float  # from the request to the first text
    seconds: float  # to the end
    tokens: int  # of text, without tags


@dataclasses.dataclass(frozen=True)
class Together:
    """Answers that were streamed at the same time."""

    answers: tuple[Streamed, ...]
    seconds: float  # until the last one ended

    @property
    def tokens_per_s(self) -> float:
        """Of all answers."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


def wait_until_ready(port: int, is_alive: Callable[[], bool], seconds: float) -> None:
    """Wait until the server at a port of this machine says that it is healthy."""
    deadline = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        if not is_alive():
            raise PastaError(f"the server at port {port} has ended; see its lines above")
        if time.monotonic() > deadline:
            raise PastaError(f"the server at port {port} was not ready within {seconds:g} s; see its lines above")
        time.sleep(0.2)


def ask_together(port: int, questions: Sequence[str], max_tokens: int, times: Sequence[float] = ()) -> Together:
    """Ask the questions, greedily, and read the answers to their ends: all at the same time, or each at its second."""
    began = time.perf_counter()

    def at(question: str, second: float) -> Streamed:
        time.sleep(max(0.0, began + second - time.perf_counter()))
        return ask(port, question, max_tokens)

    with ThreadPoolExecutor(len(questions)) as pool:
        answers = tuple(pool.map(at, questions, times or [0.0] * len(questions)))
    return Together(answers, time.perf_counter() - began)


def ask(port: int, question: str, max_tokens: int) -> Streamed:
    """Stream the answer to one question."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        began = time.perf_counter()
        connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise PastaError(f"the server at port {port}: status {response.status}: {response.read(300)!r}")
        first, tokens, is_of_text = None, 0, False
        for event in events(response):
            for choice in event["choices"]:
                if first is None and choice["delta"].get("content"):
                    first = time.perf_counter() - began
                if "pasta" in choice:  # ours states the tokens of text at the end
                    tokens, is_of_text = choice["pasta"]["text_tokens"], True
            if event.get("usage") and not is_of_text:
                tokens = event["usage"]["completion_tokens"]
    finally:
        connection.close()
    seconds = time.perf_counter() - began
    return Streamed(seconds if first is None else first, seconds, tokens)


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))
