"""Run README's commands top to bottom, in one fresh shell, in a fresh clone: exit codes, first lines, longest pauses.

    python3 tests/readme_commands.py [--full] [--strict] [--here] [--log=FILE]

Needs no package. The commands are read from the bash blocks of README and then docs/TOY.md. Long ones run in the short
form that SHORT has for them, with --full as they are written. --here uses this checkout and its .venv instead of a
clone. The exit code is 1 if a command fails. --strict also demands of each command a line within 10 s and no pause of
more than 15 s; use it on a quiet machine.
"""

import argparse
import itertools
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
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
)
PLACEHOLDERS = (("/models/Llama-3.2-1B-Instruct", "runs/toy/model"),)  # a model of the reader's own


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    command: str
    code: int
    first: float  # seconds until its first line, or its end
    pause: float  # longest pause between its start, its lines and its end
    seconds: float


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


def fresh_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without what an activated .venv, a test run or a user of JAX sets."""
    ours = re.compile(r"(JAX|XLA|TF|TPU|PASTA_JAX|PYTEST|PYTHON)\w*|VIRTUAL_ENV\w*|NPROC|HF_HUB_OFFLINE")
    env = {name: value for name, value in variables.items() if not ours.fullmatch(name)}
    return env | {"PATH": ":".join(part for part in env["PATH"].split(":") if ".venv" not in part)}


@contextmanager
def checkout(here: bool) -> Iterator[Path]:
    """The folder to run in: a clone of the last commit, deleted afterwards, or this checkout."""
    if here:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="readme_") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{folder}/clone"], check=True)
        yield Path(folder, "clone")


def run_all(
    lines: Sequence[str], folder: Path, env: Mapping[str, str], log: BinaryIO, limit: float = LIMIT_S
) -> list[Outcome]:
    """Run the commands in one shell, up to the first that fails, and print a line for each.

    One that takes longer than the limit fails; so does one that ends the shell.
    """
    mark = secrets.token_hex(8)  # printed before each command and after the last
    script = "".join(f"echo {mark}\n{line} </dev/null\n" for line in lines) + f"echo {mark}\n"
    shell = ["bash", "--noprofile", "--norc", "-ec", script]
    bash = subprocess.Popen(
        shell, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    print(f"{'code':>4} {'first':>7} {'pause':>7} {'total':>7}  command", flush=True)
    outcomes: list[Outcome] = []
    times: list[float] = []  # of the command's start and its lines

    def ended(code: int) -> None:
        pauses = [later - one for one, later in itertools.pairwise([*times, time.monotonic()])]
        outcome = Outcome(lines[len(outcomes)], code, pauses[0], max(pauses), sum(pauses))
        outcomes.append(outcome)
        shown = " ".join(f"{seconds:>6.1f}s" for seconds in (outcome.first, outcome.pause, outcome.seconds))
        print(f"{code:>4} {shown}  {outcome.command}", flush=True)

    def kill() -> None:
        os.killpg(bash.pid, signal.SIGKILL)

    clock = threading.Timer(limit, kill)
    for line in bash.stdout:
        output, is_mark, _ = line.partition(mark.encode())  # which follows a last line without a break
        if output:
            times.append(time.monotonic())
            log.write(output)
            log.flush()
        if not is_mark:
            continue
        clock.cancel()
        if times:
            ended(0)
        if len(outcomes) < len(lines):
            log.write(f"$ {lines[len(outcomes)]}\n".encode())
            times = [time.monotonic()]
            clock = threading.Timer(limit, kill)
            clock.start()
    clock.cancel()
    if len(outcomes) < len(lines):
        ended(bash.wait() or 1)
    bash.wait()
    bash.stdout.close()
    return outcomes


def main() -> int:
    """Run the commands; 0 if all did as they should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("full", "strict", "here"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--log", type=Path, help="file for the commands' output")
    flags = parser.parse_args()
    replaced = PLACEHOLDERS if flags.full else (*SHORT, *PLACEHOLDERS)
    lines = commands("".join(page.read_text(encoding="utf-8") for page in PAGES), replaced)
    with checkout(flags.here) as folder, open(flags.log or os.devnull, "wb") as log:
        outcomes = run_all(lines, folder, fresh_environment(os.environ), log)
    failed = [outcome.command for outcome in outcomes if outcome.code]
    silent = [one.command for one in outcomes if one.first > FIRST_S or one.pause > PAUSE_S]
    for what, which in ((f"{len(failed)} failed", failed), (f"{len(silent)} were silent for too long", silent)):
        if which:
            print(f"{what}: {'; '.join(which)}")
    print(f"{len(outcomes)} of {len(lines)} commands run", flush=True)
    return int(bool(failed or len(outcomes) < len(lines) or (flags.strict and silent)))


if __name__ == "__main__":
    sys.exit(main())
