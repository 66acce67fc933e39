"""A command ends in one line and an exit code, whatever stopped it; the traceback of a defect is in a file."""

import errno
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pasta_jax.command.errors import explain
from pasta_jax.errors import PastaError, one_line


def ends(capsys, error: BaseException) -> tuple[int, str]:
    """The exit code and stderr of a command that raises the error."""

    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        explain(command)
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (PastaError("a\nb; fix it"), 2, "error: a\\nb; fix it\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (SystemExit(143), 143, ""),
        # A path that cannot be used is the user's mistake.
        (OSError(errno.ENAMETOOLONG, "File name too long", "y"), 2, "error: y: File name too long; use another path\n"),
        (OSError(errno.EISDIR, "Is a directory", "y"), 2, "error: y: Is a directory; use another path\n"),
        (OSError(errno.EACCES, "Permission denied", "a\nb"), 2, "error: a\\nb: Permission denied; use another path\n"),
    ],
)
def test_errors_have_an_exit_code_each(capsys, tmp_path, monkeypatch, error, code, text):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert ends(capsys, error) == (code, text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ZeroDivisionError("by\nzero"), "error: unexpected: ZeroDivisionError: by zero; its traceback is in "),
        (MemoryError(), "error: out of memory: MemoryError: ; its traceback is in "),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 GB"), "error: out of memory: RuntimeError: RESOURCE_EXHAUSTED: 9 GB; its"),
    ],
)
def test_a_defect_is_one_line_with_the_path_of_its_traceback(capsys, tmp_path, monkeypatch, error, line):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, text = ends(capsys, error)
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith(line)
    [written] = tmp_path.iterdir()
    assert text.endswith(f"{written}\n")
    assert re.search(r"Traceback .*in command\b", written.read_text(), re.DOTALL)


def test_a_traceback_that_cannot_be_written_is_still_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    assert ends(capsys, ValueError("x"))[1] == (
        "error: unexpected: ValueError: x; its traceback cannot be written (No such file or directory)\n"
    )


@pytest.mark.usefixtures("sigint")
def test_an_interrupt_within_a_garbage_collection_still_ends_the_command():
    code = (
        "import gc, signal, time\nfrom pasta_jax.command.errors import explain\n"
        "def interrupt(*_):\n    gc.callbacks.remove(interrupt)\n    signal.raise_signal(signal.SIGINT)\n"
        "def main():\n    gc.callbacks.append(interrupt)\n    gc.collect()\n    time.sleep(60)\n"
        "explain(main)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("work", ["print('x')", "print('x', flush=True)", "print('x'); sys.exit(0)"])
def test_a_full_disk_under_stdout_is_one_line(work):
    code = f"import sys\nfrom pasta_jax.command.errors import explain\ndef main():\n    {work}\nexplain(main)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    message = "error: stdout: the disk is full; free some space, or write to another disk\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("out", ["", "from rich.console import Console; print = Console().print\n"])
def test_a_closed_pipe_ends_in_silence(out):
    code = "from pasta_jax.command.errors import explain\nexplain(lambda: [print('x' * 70) for _ in range(4000)])"
    code = out + code
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_a_message_is_one_printable_line_of_bounded_length():
    assert str(PastaError("a\n\x1b[31m\u2028\ud800 數")) == "a\\n\\x1b[31m\\u2028\\ud800 數"
    assert len(one_line("x" * 10_000)) == 1003
    assert one_line("ab" * 1000).startswith("abab")
