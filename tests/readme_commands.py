"""Run README's commands top to bottom, in one fresh shell, in a fresh clone: exit codes, first lines, longest pauses.

    python3 tests/readme_commands.py [--full] [--cold] [--strict] [--here] [--log=FILE]

Needs no package. The commands are read from the bash blocks of README and then docs/TOY.md. Long ones run in the short
form that SHORT has for them, with --full as they are written. --cold begins with empty caches; --here uses this
checkout and its .venv instead of a clone. The exit code is 1 if a command fails. --strict also demands of each command
a line within 10 s and no pause of more than 15 s; use it on a quiet machine.
"""

import argparse
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs/TOY.md")  # the second needs what the first trains
FIRST_S, PAUSE_S = 10.0, 15.0  # what --strict allows
LIMIT_S = 3600.0  # of a command

# Part of a command as README has it, and what a short run has instead.
SHORT = (
    ("configs/sft.py:toy", "configs/sft.py:tiny"),
    ("configs/evaluate.py:toy", "configs/evaluate.py:tiny"),
    ("configs/preference.py:toy", "configs/preference.py:tiny"),
    ("launch/test.sh quick", "launch/test.sh quick tests/lang/test_clock.py"),
    ("--output=runs/structure", "--output=runs/structure --config.max_pairs=300"),
    (
        "--config.data.records=runs/structure",
        "--config.data.records=runs/structure --config.data.rows=1 '--config.data.lengths=(256,)' "
        "--config.data.held_out=0 --config.train.epochs=0 --config.train.steps=2 --config.train.warmup=1 "
        "--config.every.probe=0 --config.every.log=1",
    ),
)
PLACEHOLDERS = (("/models/Llama-3.2-1B", "runs/toy/model"),)  # a model of the reader's own


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    command: str
    code: int
    first: float  # seconds until its first output, or its end
    pause: float  # longest pause between two outputs, or an output and its end
    seconds: float

    @property
    def is_prompt(self) -> bool:
        """Whether it was never silent for too long."""
        return self.first <= FIRST_S and self.pause <= PAUSE_S


def commands(markdown: str, replaced: Sequence[tuple[str, str]] = ()) -> list[str]:
    """The commands of the bash blocks in order, lines that a backslash continues joined, with parts replaced."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE):
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            for part, other in replaced:
                line = line.replace(part, other)
            if line.strip():
                found.append(line)
    return found


def fresh_environment(variables: Mapping[str, str], cache: Path | None) -> dict[str, str]:
    """The environment without what an activated .venv, a test run or a user of JAX sets."""
    ours = re.compile(r"(JAX|XLA|TF|TPU|PASTA_JAX|PYTEST|PYTHON)\w*|VIRTUAL_ENV\w*|NPROC|HF_HUB_OFFLINE")
    env = {name: value for name, value in variables.items() if not ours.fullmatch(name)}
    env["PATH"] = ":".join(part for part in env["PATH"].split(":") if ".venv" not in part)
    return env | ({} if cache is None else {"PASTA_JAX_CACHE": str(cache)})


class Shell:
    """A bash process that runs one command after another, as a user's shell does."""

    def __init__(self, folder: Path, env: Mapping[str, str], log: BinaryIO):
        self.log = log
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str, limit: float = LIMIT_S) -> Outcome:
        """Run a command to its end; one that takes longer than the limit ends the shell, with code 124."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        mark = secrets.token_hex(8)
        self.log.write(f"$ {command}\n".encode())
        began = latest = time.monotonic()
        first, pause, output = None, 0.0, b""
        self._bash.stdin.write(f"{command} </dev/null\nprintf '\\n{mark}%d\\n' \"$?\"\n".encode())
        self._bash.stdin.flush()
        while not (ended := re.search(rf"\n{mark}(\d+)\n".encode(), output)):
            readable, _, _ = select.select([self._bash.stdout], [], [], max(0.0, began + limit - time.monotonic()))
            chunk = os.read(self._bash.stdout.fileno(), 1 << 16) if readable else b""
            now = time.monotonic()
            if now - latest > FIRST_S:
                self.log.write(f"[silent for {now - latest:.0f} s]\n".encode())
            self.log.write(chunk)
            self.log.flush()
            pause, latest = max(pause, now - latest), now
            if not chunk:  # too long, or the command ended the shell
                self.close()
                return Outcome(command, 124 if not readable else 1, first or now - began, pause, now - began)
            output += chunk
            if first is None:
                first = now - began
        return Outcome(command, int(ended[1]), first or 0.0, pause, latest - began)

    def close(self) -> None:
        """End the shell and what it runs."""
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


@contextmanager
def checkout(here: bool) -> Iterator[Path]:
    """The folder to run in: a clone of the last commit, deleted afterwards, or this checkout."""
    if here:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="readme_") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{folder}/clone"], check=True)
        yield Path(folder, "clone")


def run_all(lines: Sequence[str], folder: Path, env: Mapping[str, str], log: BinaryIO) -> list[Outcome]:
    """Run the commands in one shell, up to the first that fails, and print a line for each."""
    shell, outcomes = Shell(folder, env, log), []
    print(f"{'code':>4} {'first':>7} {'pause':>7} {'total':>7}  command", flush=True)
    try:
        for line in lines:
            outcome = shell.run(line)
            outcomes.append(outcome)
            times = " ".join(f"{seconds:>6.1f}s" for seconds in (outcome.first, outcome.pause, outcome.seconds))
            print(f"{outcome.code:>4} {times}  {line}", flush=True)
            if outcome.code:
                break
    finally:
        shell.close()
    return outcomes


def main() -> int:
    """Run the commands; 0 if all did as they should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("full", "cold", "strict", "here"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--log", type=Path, help="file for the commands' output")
    flags = parser.parse_args()
    replaced = PLACEHOLDERS if flags.full else (*SHORT, *PLACEHOLDERS)
    lines = commands("".join(page.read_text(encoding="utf-8") for page in PAGES), replaced)
    with (
        tempfile.TemporaryDirectory(prefix="readme_cache_") as cache,
        checkout(flags.here) as folder,
        open(flags.log or os.devnull, "wb") as log,
    ):
        env = fresh_environment(os.environ, Path(cache) if flags.cold else None)
        outcomes = run_all(lines, folder, env, log)
    failed = [outcome.command for outcome in outcomes if outcome.code]
    silent = [outcome.command for outcome in outcomes if not outcome.is_prompt]
    for what, which in ((f"{len(failed)} failed", failed), (f"{len(silent)} were silent for too long", silent)):
        if which:
            print(f"{what}: {'; '.join(which)}")
    print(f"{len(outcomes)} of {len(lines)} commands run", flush=True)
    return int(bool(failed or len(outcomes) < len(lines) or (flags.strict and silent)))


if __name__ == "__main__":
    sys.exit(main())
