"""Fuzz every door, or those that are named: python -m tests.fuzz [DOOR …] [--count=N] [--seed=S] [--long] [--log=FILE].

Mutation n of a door depends on the seed, the door and n alone. They run in batches, each in a process of its own, so
that a crash or a hang in a library is a finding too, with the number of its mutation. With --log, tallies of batches
are appended to a file, and batches that it already has are not repeated. --long goes on until Ctrl-C.
"""

import argparse
import dataclasses
import faulthandler
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu would take over SIGPROF, which limits a mutation's time

from tests.fuzz.doors import DOORS
from tests.fuzz.run import LIMIT_S, Tally, fuzz

BATCH = 2500


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz what reads files and values from outside.", prog="tests.fuzz")
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"{', '.join(DOORS)}; all by default")
    parser.add_argument("--count", type=int, default=200, help="mutations of each door")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--long", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--log", type=Path, help="append the tally of each batch; batches it has are not repeated")
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)  # a batch: where it writes the number it is at
    options = parser.parse_args()
    if unknown := set(options.doors) - set(DOORS):
        parser.error(f"unknown door {unknown.pop()}; choose from {', '.join(DOORS)}")
    names = options.doors or list(DOORS)
    if options.at is not None:
        print(json.dumps(dataclasses.asdict(work(names[0], options))))
        return
    earlier = [json.loads(line) for line in options.log.read_text().splitlines()] if exists(options.log) else []
    tallies = {name: Tally(name) for name in names}
    for name, numbers in batches(names, options):
        key = {"seed": options.seed, "first": numbers.start, "count": len(numbers)}
        stored = [row for row in earlier if row["door"] == name and row["batch"] == key]
        tally = Tally(**{k: v for k, v in stored[0].items() if k != "batch"}) if stored else run(name, numbers, options)
        if options.log and not stored:
            with options.log.open("a") as file:
                print(json.dumps(dataclasses.asdict(tally) | {"batch": key}), file=file)
        for failure in tally.failures:
            print(failure, flush=True)
        tallies[name].add(tally)
        print(tallies[name].text(), flush=True)
    total = Tally("all")
    for tally in tallies.values():
        total.add(tally)
    print(total.text())
    sys.exit(bool(total.failures))


def exists(log: Path | None) -> bool:
    return log is not None and log.exists()


def batches(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, range]]:
    """Doors and numbers of their mutations."""
    end = options.first + options.count
    for start in itertools.count(options.first, BATCH):
        if start >= end and not options.long:
            return
        for name in names:
            yield name, range(start, start + BATCH if options.long else min(start + BATCH, end))


def run(name: str, numbers: range, options: argparse.Namespace) -> Tally:
    """A batch in a process of its own; it goes on after a mutation that ended the process."""
    tally = Tally(name)
    while numbers:
        with NamedTemporaryFile() as at:
            words = [name, f"--seed={options.seed}", f"--first={numbers.start}", f"--count={len(numbers)}"]
            command = [sys.executable, "-m", "tests.fuzz", *words, f"--at={at.name}"]
            child = subprocess.run(command, capture_output=True, text=True)
            if child.returncode == 0:
                tally.add(Tally(**json.loads(child.stdout)))
                return tally
            stopped = int(Path(at.name).read_text() or numbers.start)
        tally.mutations += stopped + 1 - numbers.start
        tally.failures.append(f"{options.seed}/{name}/{stopped}: exit {child.returncode}: {child.stderr[-1000:]}")
        numbers = range(stopped + 1, numbers.stop)
    return tally


def work(name: str, options: argparse.Namespace) -> Tally:
    """A batch in this process, which ends if a library hangs."""
    stderr = os.fdopen(os.dup(2), "w")
    with options.at.open("w") as file:

        def begin(number: int) -> None:
            os.pwrite(file.fileno(), f"{number:<12}".encode(), 0)
            faulthandler.dump_traceback_later(60 * LIMIT_S, exit=True, file=stderr)

        tally = fuzz(name, DOORS[name], options.seed, range(options.first, options.first + options.count), begin)
        faulthandler.cancel_dump_traceback_later()
    return tally


if __name__ == "__main__":
    main()
