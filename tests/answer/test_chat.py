"""Chat on a terminal: history, stopped answers, commands; the model loads once."""

import dataclasses
import os
import queue
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from pasta_jax import progress
from pasta_jax.answer import chat
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.decode import engine
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.runs.settings import changed
from pasta_jax.view import trace_file
from pasta_jax.view.text import printable
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.forked import Forked, launch
from tests.helpers.serving import export
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
TOKENS = 24


def model() -> Model:
    return dataclasses.replace(tiny_model(), positions=PREDICTED)


@pytest.fixture
def converse(monkeypatch, capsys, tmp_path):
    """Chat with these lines, in an empty folder; (stdout, stderr). An exception in place of a line is raised."""
    loads = []
    monkeypatch.setattr(chat, "load", lambda source, only_decoding, mesh: loads.append(source) or model())
    monkeypatch.chdir(tmp_path)

    def run(*lines: str | BaseException, **changes: object) -> tuple[str, str]:
        short = RequestSettings(max_tokens=TOKENS, temperature=1.0)
        settings = DecodeSettings(decoding=DecodeConfig(lanes=1, rows=3, slots=256), request=short)
        rest = iter(lines)

        def line(_: str) -> str:
            if isinstance(item := next(rest, EOFError()), BaseException):
                raise item
            return item

        chat.run(changed(settings, **changes), line)
        assert len(loads) == 1
        assert next(rest, None) is None
        return capsys.readouterr()

    return run


def answer_to(*messages: tuple[str, str], sequential: bool = False) -> str:
    """What `generate` answers to a conversation."""
    ids = tuple(model().tokenizer.chat(list(messages)))
    request = Request(ids, TOKENS, sequential=sequential, rules=Rules(temperature=1.0))
    return generate(model(), [request], DecodeConfig(lanes=1, rows=3, slots=256))[0].text


@pytest.mark.slow
def test_answers_know_the_conversation_until_it_is_forgotten_and_may_have_no_threads(converse):
    Path("new").mkdir()
    ask, trace = ["why?", "", "and how?", "/trace new/a.json", "/new"], ["/sequential", "why?", "/trace b.json", "/new"]
    out, err = converse(*ask, *trace, "/sequential", "why?", "/help", "/quit")
    first, sequential = answer_to(("user", "why?")), answer_to(("user", "why?"), sequential=True)
    messages = [("user", "why?"), ("assistant", first), ("user", "and how?")]
    assert out == f"{first}\n{answer_to(*messages)}\n{sequential}\n{first}\n"
    assert list(trace_file.load(Path("new/a.json")).prompt_ids) == model().tokenizer.chat(messages)
    assert trace_file.load(Path("b.json")).prompt == "why?"
    assert err.count("tokens of text in") == 4
    assert err.index("without threads\n") < err.index("wrote b.json\n") < err.index("in threads\n")
    assert "tiny: ask, or /help\n" in err
    assert "/trace FILE   write" in err


@pytest.mark.slow
def test_mistakes_are_one_line_and_the_chat_goes_on(converse):
    Path("file").touch()
    wrong, unusable = ["/trace a", "/nothing", "/quit now", "x" * 300], ["file/a", ".", "a\0b", "y" * 300, "absent/a"]
    out, err = converse(*wrong, "why?", *(f"/trace {name}" for name in unusable))
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert errors[0] == "error: /trace: no answer yet; ask something first"
    assert errors[1] == "error: /nothing: unknown command, or not its arguments; /help lists them"
    assert errors[2] == "error: /quit: unknown command, or not its arguments; /help lists them"
    assert errors[3].startswith("error: the conversation: 307 tokens, but the pool of 256 must also hold the answer;")
    assert errors[3].endswith("or begin again with /new")
    assert errors[4].startswith("error: /trace file/a: ")
    assert [error.startswith("error: /trace ") for error in errors[5:]] == [True] * 4
    assert out == f"{answer_to(('user', 'why?'))}\n"


def test_a_line_that_is_not_utf8_is_dropped_and_the_chat_goes_on(converse):
    """As input() raises on a terminal, and as Python reads it in a C locale."""
    out, err = converse(UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), "caf\udce9?", "why?", "/quit")
    assert out == f"{answer_to(('user', 'why?'))}\n"
    assert err.count("error: this line is not UTF-8; ") == 2


def test_on_a_dumb_terminal_the_text_is_streamed(converse, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(chat, "show_threads", Mock(side_effect=AssertionError))
    out, _ = converse("why?", "/quit")
    assert out == f"{printable(answer_to(('user', 'why?')))}\n"


def test_programs_are_compiled_while_the_first_question_is_typed(converse, monkeypatch):
    typed, waited = threading.Event(), []

    class Late(engine.DeviceLoop):
        def __init__(self, *arguments, **options):
            assert typed.wait(20), "the chat asked nothing before its programs were compiled"
            super().__init__(*arguments, **options)

    class Named(progress.Progress):
        def __enter__(self):
            waited.append(self.what)
            return self

    monkeypatch.setattr(engine, "DeviceLoop", Late)
    monkeypatch.setattr(engine, "PREFILL_CHUNKS", (16,))
    monkeypatch.setattr(chat, "doing", Named)
    monkeypatch.setattr(chat, "quiet", lambda: typed.set() or progress.quiet())
    out, _ = converse("why?")
    assert out == f"{answer_to(('user', 'why?'))}\n"
    assert waited == ["reading the prompt"]


def test_what_kept_programs_from_being_compiled_ends_the_chat(converse, monkeypatch):
    """It was known before the first question, and no other one would be answered."""

    def ended(*arguments, **options):
        opened = engine.open_engine(*arguments, **options)
        opened._thread.join(20)
        return opened

    monkeypatch.setattr(engine, "DeviceLoop", Mock(side_effect=MemoryError("no room")))
    monkeypatch.setattr(chat, "open_engine", ended)
    with pytest.raises(MemoryError, match="no room"):
        converse("why?")


def test_ctrl_c_stops_the_answer_and_not_the_chat(converse, monkeypatch):
    """At the prompt, before the first token, and in the middle."""
    gets = []

    class Interrupted(queue.Queue):
        def get(self, *arguments, **options):
            gets.append(1)
            if len(gets) == interrupted:
                raise KeyboardInterrupt
            return super().get(*arguments, **options)

    monkeypatch.setattr(chat.queue, "Queue", Interrupted)
    interrupted = 3
    out, err = converse(KeyboardInterrupt(), "why?", "/trace a.json", "/new", "why?", round_steps=1)
    whole = answer_to(("user", "why?"))
    stopped = out.split("\n", 2)[1]
    assert stopped
    assert out.endswith(whole + "\n")
    assert out.count(stopped) >= 2
    assert whole.startswith(stopped)
    assert stopped != whole
    assert "cut off]" in err
    assert len(trace_file.load(Path("a.json")).token) < TOKENS


def test_ctrl_c_while_the_end_of_an_answer_is_shown_stops_nothing_else(converse, monkeypatch):
    shown = []

    def interrupted(items, tags):
        shown.extend(items)
        if len(shown) < 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_show", interrupted)
    _, err = converse("why?", "/trace a.json", "and how?", round_steps=TOKENS + 10)
    assert err.count("tokens of text in") == 2
    assert len(trace_file.load(Path("a.json")).token) == TOKENS


def test_ctrl_c_before_an_answer_begins_leaves_the_chat_running(converse, monkeypatch):
    request = chat.Chat.request
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(self, question):
        if error := next(interrupts, None):
            raise error
        return request(self, question)

    monkeypatch.setattr(chat.Chat, "request", interrupted)
    out, err = converse("why?", "why?")
    assert (out, err.count("stopped")) == (answer_to(("user", "why?")) + "\n", 1)


def test_a_model_without_a_chat_template_is_refused(converse):
    with pytest.raises(PastaError, match=r"^config\.chat: False; a chat needs a model with a chat template"):
        converse(chat=False)


def test_one_row_decodes_no_threads(converse, monkeypatch):
    one = {"decoding.rows": 1}
    monkeypatch.setattr(chat, "open_engine", Mock())
    _, err = converse("/sequential", **one, **{"request.sequential": True, "model.adapter": "pasta"})
    assert err.startswith("tiny with the adapter pasta: ask, or /help\n")
    assert "error: rows 1: chunks need a row besides main's" in err
    with pytest.raises(PastaError, match=r"^rows 1: chunks need a row"):
        converse(**one)


def piped(lines: Path, *flags: str) -> None:
    """The command, with these lines as its stdin."""
    with lines.open() as sys.stdin:
        os.dup2(sys.stdin.fileno(), 0)
        launch("chat", *flags)


@pytest.mark.slow
def test_the_command_reads_a_pipe(tmp_path):
    flags = ["--config=configs/decode.py:local", f"--config.model.path={export(tmp_path / 'model')}"]
    flags += ["--config.request.max_tokens=8", "--config.decoding.slots=256", "--config.decoding.rows=4"]
    (tmp_path / "lines").write_bytes(b"caf\xe9\n" + f"birds crow 7\n/trace {tmp_path / 'a.json'}\n/quit\n".encode())
    Forked(tmp_path, piped, tmp_path / "lines", *flags).finish()
    assert trace_file.load(tmp_path / "a.json").prompt == "birds crow 7"
