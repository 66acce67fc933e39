"""Annotates responses by a language model behind an HTTP endpoint; what it answers is trusted in nothing.

The answer's tags are laid over the source, whose characters are kept: an answer that changed a word is refused, one
that only changed blanks is not. A refused answer is asked for again, with the reason, as often as the settings say.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

from pasta_jax.annotate.prompt import again, question
from pasta_jax.errors import PastaError
from pasta_jax.lang.error import LangError, quoted
from pasta_jax.lang.lexer import ANNOTATION, lex
from pasta_jax.lang.tags import escape
from pasta_jax.llm import Client, Clock, Endpoint, LLMError, Usage


@dataclasses.dataclass(frozen=True)
class Settings:
    """An endpoint, and how it is used."""

    endpoint: Endpoint
    concurrency: int
    asks: int  # how often a record is asked for before its last refusal stands


@dataclasses.dataclass(frozen=True)
class Failure:
    """No annotation: `reason` is one of a few, for counting; `detail` tells the case."""

    reason: str
    detail: str


class Rewritten(PastaError):
    """The answer's text isn't the source's."""


def annotate_all(
    pairs: Iterable[tuple[str, str]],
    settings: Settings,
    cache_path: Path,
    check: Callable[[str], object],
    usage: Callable[[Usage], None] = lambda usage: None,
    clock: Clock | None = None,
) -> Iterator[tuple[int, str | Failure]]:
    """(index, annotation or failure) as they come in. `check` raises a LangError for an annotation against the rules.

    Answers are cached at `cache_path`; `usage` is told the counts after each record. A hopeless error ends the run.
    """
    with Client(settings.endpoint, cache_path, clock) as client, ThreadPoolExecutor(settings.concurrency) as threads:
        waiting = enumerate(pairs)
        running = {}
        try:
            while True:
                for index, (instruction, response) in islice(waiting, 2 * settings.concurrency - len(running)):
                    running[threads.submit(_annotate, client, settings, instruction, response, check)] = index
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    index = running.pop(done)
                    found = done.result()
                    usage(client.usage)
                    yield index, found
        finally:  # an error or an impatient user: don't sit out pauses
            client.stop()
            threads.shutdown(wait=True, cancel_futures=True)


def _annotate(
    client: Client, settings: Settings, instruction: str, response: str, check: Callable[[str], object]
) -> str | Failure:
    messages = question(instruction, escape(response, ANNOTATION))
    failure = Failure("never asked", "asks is 0; raise it")
    for _ in range(settings.asks):
        try:
            answer = client.chat(messages)
        except LLMError as error:
            return Failure(error.reason, str(error))
        try:
            annotation = overlay(answer, response)
            check(annotation)
            return annotation
        except Rewritten as error:
            failure = Failure("rewritten", str(error))
        except LangError as error:
            failure = Failure(error.rule, str(error))
        messages = again(messages, answer, failure.detail)
    return failure


def overlay(answer: str, source: str) -> str:
    """The source, escaped, with the answer's tags where they stand between the same characters, blanks aside."""
    pieces: list[str] = []
    done = at = 0  # source up to `done` is written; up to `at` it agrees with the answer
    for form, piece in lex(answer, ANNOTATION):
        if form and piece[1] != "\\":
            pieces += [escape(source[done:at], ANNOTATION), piece]
            done = at
            continue
        for character in "<" + piece[2:] if form else piece:
            if character.isspace():
                at += at < len(source) and source[at].isspace()
                continue
            while at < len(source) and source[at].isspace():
                at += 1
            if at == len(source) or source[at] != character:
                said, was = quoted(character + "…"), quoted(source[at : at + 20] or "its end")
                raise Rewritten(f"character {at + 1} of the response: the answer has {said} where it has {was}")
            at += 1
    if source[at:].strip():
        raise Rewritten(f"character {at + 1} of the response: the answer ends before {quoted(source[at : at + 20])}")
    return "".join([*pieces, escape(source[done:], ANNOTATION)])
