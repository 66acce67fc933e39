"""Chat with a model on a terminal: the history of the conversation, answers that can be stopped, and a few commands."""

import dataclasses
import itertools
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.answer.show import show_text, show_threads
from pasta_jax.decode.engine import Cancelled, Engine, EngineClosed, Item, open_engine
from pasta_jax.decode.generate import require_rows, slots_for
from pasta_jax.decode.request import Event, Request, Result, template
from pasta_jax.decode.settings import refuse_idle_drafter
from pasta_jax.decode.topics import limits_topics
from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import check_file
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.progress import doing, quiet, say, stdout_can_be_drawn_on
from pasta_jax.view import trace_file
from pasta_jax.view.live import following
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import load

SLOTS = 2048  # of a conversation, unless config.decoding.slots states it
PROMPT = "> "
HELP = """\
/sequential   decode without threads from now on; again: with threads
/trace FILE   write the trace of the last answer (docs/API.md)
/new          forget the conversation
/quit         leave; so does Ctrl-D. Ctrl-C stops an answer"""


@dataclasses.dataclass
class Chat:
    """A conversation, and how its next answer is decoded."""

    model: Model
    engine: Engine
    settings: DecodeSettings
    template: Request
    messages: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    last: Result | None = None

    def request(self, question: str) -> Request:
        """The request for the conversation with another question."""
        system = [("system", self.settings.system)] if self.settings.system else []
        ids = tuple(self.model.tokenizer.chat([*system, *self.messages, ("user", question)]))
        request = dataclasses.replace(self.template, prompt_ids=ids, text=question, name="the conversation")
        try:
            slots_for(self.model, [request], self.settings.decoding)
        except PastaError as error:
            raise PastaError(f"{error}, or begin again with /new") from None
        return request


def run(settings: DecodeSettings, lines: Callable[[str], str]) -> None:
    """Load the model once and answer until the end of the input; `lines` reads one, and raises EOFError at the end.

    Programs are compiled while the first question is typed; the answer says so if it must wait for them.
    """
    if not settings.chat:
        raise PastaError("config.chat: False; a chat needs a model with a chat template: choose another config")
    refuse_idle_drafter(settings.model.drafter, settings.decoding)
    model = load(settings.model, only_decoding=True, mesh=decoding_mesh(settings.mesh))
    slots = settings.decoding.slots or min(SLOTS, model.config.context)
    settings = dataclasses.replace(settings, decoding=dataclasses.replace(settings.decoding, lanes=1, slots=slots))
    sequential = model.positions is None if settings.request.sequential is None else settings.request.sequential
    require_rows(settings.decoding, sequential)
    unasked = template(settings.request, model.defaults, sequential)
    topics = limits_topics(unasked.rules)
    engine = open_engine(model, settings.decoding, most_waiting=0, topics=topics, warm_up=True, wait=False)
    chat = Chat(model, engine, settings, unasked)
    adapter = f" with the adapter {settings.model.adapter}" if settings.model.adapter else ""
    say(f"{model.name}{adapter}: ask, or /help")
    try:
        _converse(chat, lines)
    finally:
        engine.close(drain=False)


def _converse(chat: Chat, lines: Callable[[str], str]) -> None:
    while True:
        try:
            with quiet():  # a prompt that waits for the user must not be disturbed
                line = lines(PROMPT).strip()
            line.encode()  # a lone surrogate stands for a byte that was not decoded
        except UnicodeError:
            say("error: this line is not UTF-8; type it again, or convert the text to UTF-8")
            continue
        except KeyboardInterrupt:  # at the prompt: drop the line, as shells do
            print()
            continue
        except EOFError:
            return
        if line == "/quit":
            return
        try:
            if line.startswith("/"):
                _command(chat, line)
            elif line:
                answer(chat, line)
        except PastaError as error:
            say(f"error: {error}")
        except KeyboardInterrupt:  # before an answer began, or after it ended
            say("stopped")


def _command(chat: Chat, line: str) -> None:
    word, _, argument = line.partition(" ")
    match word, argument.strip():
        case "/sequential", "":
            sequential = not chat.template.sequential
            require_rows(chat.settings.decoding, sequential)
            chat.template = dataclasses.replace(chat.template, sequential=sequential)
            say("without threads" if chat.template.sequential else "in threads")
        case "/new", "":
            chat.messages, chat.last = [], None
            say("the conversation is forgotten")
        case "/trace", file if file:
            if chat.last is None:
                raise PastaError("/trace: no answer yet; ask something first")
            path = Path(os.path.expanduser(file))
            check_file(path, f"/trace {path}")
            trace_file.save(chat.last.trace, path)
            say(f"wrote {path}")
        case "/help", "":
            say(HELP)
        case _:
            raise PastaError(f"{word}: unknown command, or not its arguments; /help lists them")


def answer(chat: Chat, question: str) -> None:
    """Ask, show the answer while it is decoded, and remember both. Ctrl-C stops it; what was written is kept."""
    items: queue.Queue[Sequence[Item]] = queue.Queue()
    try:
        number = chat.engine.submit(chat.request(question), chat.settings.round_steps, items.put)
    except EngineClosed:
        chat.engine.wait()  # raises what ended it
        raise
    result: Item | None = None  # the latest item; no event once the answer has ended

    def received() -> Iterator[Item]:
        nonlocal result
        while result is None or isinstance(result, Event):
            try:
                batch = items.get()
            except KeyboardInterrupt:
                chat.engine.cancel(number)
                continue
            result = batch[-1]  # kept before it is shown, which Ctrl-C may interrupt
            yield from batch

    try:
        answered = received()
        with doing("reading the prompt"):  # once the programs are compiled
            chat.engine.wait()
            first = next(answered)
        with quiet():
            _show(itertools.chain([first], answered), chat.model.tokenizer.tags)
    except KeyboardInterrupt:  # before the first token, or while something was printed
        chat.engine.cancel(number)
        for _ in received():
            pass
    if isinstance(result, Cancelled):
        say("stopped")
        return
    if isinstance(result, PastaError):
        raise result
    chat.last = result
    if result.text.strip():
        chat.messages += [("user", question), ("assistant", result.text)]
    trace = result.trace
    ms = trace.prefill_ms + trace.decode_ms
    counts = f"{_count(trace.text_tokens, 'token')} of text in {_count(trace.steps, 'step')}"
    say(f"[{counts}, {ms / 1000:.2f} s, {_ended(result)}]")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _ended(result: Result) -> str:
    chunks = len(result.trace.closed) - 1
    threads = f"main and {_count(chunks, 'chunk')}" if chunks else "one thread"
    return threads if result.finish_reason == "stop" else f"{threads}, cut off"


def _show(items: Iterator[Item], tags: TagIds) -> None:
    if stdout_can_be_drawn_on():
        show_threads(items, tags, following())
    else:
        show_text(items, tags)
