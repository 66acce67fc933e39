"""Annotate responses with a language model behind an HTTP endpoint; nothing in its answers is trusted.

The answer's tags are laid over the source, whose characters are kept: an answer that changes a word is refused, one
that only changes whitespace is not. After a refusal the model is asked again with the reason, for some attempts.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

from pasta_jax.annotate.prompt import question, retry_question
from pasta_jax.annotate.run import Annotation, Unanswered
from pasta_jax.annotate.settings import EndpointSettings
from pasta_jax.errors import PastaError
from pasta_jax.lang.error import LangError, quoted
from pasta_jax.lang.lexer import ANNOTATION, lex
from pasta_jax.lang.tags import escape
from pasta_jax.llm.cache import Usage
from pasta_jax.llm.client import Client, LLMError, TimeSource, Unavailable


class TextChanged(PastaError):
    """The answer's text differs from the source."""


def annotate_all(
    pairs: Iterable[tuple[str, str]],
    settings: EndpointSettings,
    cache: Path,
    check: Callable[[str], object],
    clock: TimeSource | None = None,
) -> Iterator[tuple[int, Annotation | Unanswered, Usage]]:
    """(index, answer, usage so far) as the answers arrive.

    `check` raises a LangError for an annotation that breaks the rules. Answers are cached in the file `cache`. An error
    that no other request can avoid ends the run, as do many requests in a row without an answer.
    """
    with Client(settings.endpoint, cache, clock) as client, ThreadPoolExecutor(settings.concurrency) as threads:
        waiting = enumerate(pairs)
        running: dict[Future[Annotation | Unanswered], int] = {}
        try:
            while True:
                for index, (instruction, response) in islice(waiting, 2 * settings.concurrency - len(running)):
                    running[threads.submit(_annotate, client, settings.attempts, instruction, response, check)] = index
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index = running.pop(future)
                    yield index, future.result(), client.usage
        finally:  # an error or an interrupt: don't sit out pauses
            client.stop()
            threads.shutdown(wait=True, cancel_futures=True)


def _annotate(
    client: Client, attempts: int, instruction: str, response: str, check: Callable[[str], object]
) -> Annotation | Unanswered:
    messages = question(instruction, escape(response, ANNOTATION))
    failure: Annotation = {}
    for _ in range(attempts):
        try:
            answer = client.chat(messages)
        except Unavailable as error:
            return Unanswered(error.reason, str(error))
        except LLMError as error:
            return {"failure": error.reason, "detail": str(error)}
        try:
            annotation = overlay(answer, response)
            check(annotation)
            return {"text": annotation}
        except TextChanged as error:
            failure = {"failure": "rewritten", "detail": str(error), "refused": answer}
        except LangError as error:
            failure = {"failure": error.rule, "detail": str(error), "refused": answer}
        except PastaError:  # the tokenizer has no ids for the source: no other marks help, and `verify` says so
            return {"text": annotation}
        messages = retry_question(messages, answer, failure["detail"])
    return failure


def overlay(answer: str, source: str) -> str:
    """The source, escaped, with the answer's tags between the same characters, whitespace aside."""
    pieces: list[str] = []
    written = at = 0  # the source up to `written` is in `pieces`; up to `at` it agrees with the answer
    for form, piece in lex(answer, ANNOTATION):
        if form and piece[1] != "\\":
            pieces += [escape(source[written:at], ANNOTATION), piece]
            written = at
            continue
        for character in "<" + piece[2:] if form else piece:
            if character.isspace():
                at += at < len(source) and source[at].isspace()
                continue
            while at < len(source) and source[at].isspace():
                at += 1
            if at == len(source) or source[at] != character:
                actual, expected = quoted(character + "…"), quoted(source[at : at + 20] or "its end")
                raise TextChanged(f"character {at + 1} of the response: the answer has {actual} instead of {expected}")
            at += 1
    if source[at:].strip():
        raise TextChanged(f"character {at + 1} of the response: the answer ends before {quoted(source[at : at + 20])}")
    return "".join([*pieces, escape(source[written:], ANNOTATION)])
