"""Fuzz every door, or those that are named: python -m tests.fuzz [DOOR …] [--count=N] [--seed=S] [--long] [--log=FILE].

Mutation n of a door depends on the seed, the door and n alone. They run in batches, each in a process of its own, so
that a crash or a hang in a library is a finding too, with the number of its mutation. With --log, tallies of batches
are appended to a file, and batches that it already has are not repeated. --long goes on until Ctrl-C.
"""

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu would take over SIGPROF, which limits a mutation's time

from tests.fuzz.batches import run
from tests.fuzz.doors import DOORS
from tests.fuzz.run import Tally

BATCH = 2500


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz what reads files and values from outside.", prog="tests.fuzz")
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"{', '.join(DOORS)}; all by default")
    parser.add_argument("--count", type=int, default=200, help="mutations of each door")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--long", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--log", type=Path, help="append the tally of each batch; batches it has are not repeated")
    options = parser.parse_args()
    if unknown := set(options.doors) - set(DOORS):
        parser.error(f"unknown door {unknown.pop()}; choose from {', '.join(DOORS)}")
    stored = {}
    if options.log and options.log.exists():
        for line in options.log.read_text().splitlines():
            row = json.loads(line)
            batch = row.pop("batch")
            stored[row["door"], json.dumps(batch)] = Tally(**row)
    names = options.doors or list(DOORS)
    tallies = {name: Tally(name) for name in names}
    for name, numbers in batches(names, options):
        key = {"seed": options.seed, "first": numbers.start, "count": len(numbers)}
        if (tally := stored.get((name, json.dumps(key)))) is None:
            tally = run(name, options.seed, numbers)
            if options.log:
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


def batches(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, range]]:
    """Doors and numbers of their mutations."""
    end = options.first + options.count
    for start in itertools.count(options.first, BATCH):
        if start >= end and not options.long:
            return
        for name in names:
            yield name, range(start, start + BATCH if options.long else min(start + BATCH, end))


if __name__ == "__main__":
    main()
