"""One answer: its files are written whoever reads stdout, and a terminal obeys nothing that a model wrote."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from pasta_jax.view.trace_file import load
from tests.helpers.traces import PROGRAM

SURFACE = PROGRAM.render()
pytestmark = pytest.mark.usefixtures("few_programs")


class Closed(io.StringIO):
    """A pipe whose reader exits after the first bytes, as `| head` does."""

    def write(self, text: str) -> int:
        if self.tell() > 9:
            raise BrokenPipeError
        return super().write(text)


@pytest.mark.parametrize("shown", [{"live": "no"}, {"live": "yes"}, {"json": True}], ids=str)
def test_files_are_written_though_the_reader_of_stdout_has_exited(answer, monkeypatch, shown):
    Path("program.txt").write_text(SURFACE)
    monkeypatch.setattr(sys, "stdout", Closed())
    with contextlib.suppress(BrokenPipeError):  # for the end of the command
        answer(prompt="why?", program="program.txt", trace="t.json", html="h.html", output="o.jsonl", **shown)
    assert load(Path("t.json")).program() == PROGRAM
    assert Path("h.html").exists()
    assert json.loads(Path("o.jsonl").read_text())["text"] == PROGRAM.strip()


def test_nothing_is_decoded_for_nobody(answer, monkeypatch):
    Path("program.txt").write_text(SURFACE)
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        answer(prompt="why?", program="program.txt")


OBEYED = "a\x7f\x9b31m\u202eb\u2066"


def test_a_terminal_gets_the_controls_of_json_escaped_and_a_file_as_they_are(answer, monkeypatch):
    Path("program.txt").write_text(SURFACE.replace("first", OBEYED, 1))
    out, _ = answer(prompt=OBEYED, program="program.txt", json=True)
    assert OBEYED in out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out, _ = answer(prompt=OBEYED, program="program.txt", json=True)
    assert "a\\u007f\\u009b31m\\u202eb\\u2066" in out
    assert not set(OBEYED[1:]) & set(out) - set("31mb")
    assert json.loads(out)["prompt"] == OBEYED
