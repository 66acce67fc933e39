"""A run that keeps records under a lock, then writes its result, and kills itself on the way: python FOLDER WHERE."""

import operator
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pasta_jax.files.atomic import replacing
from pasta_jax.files.jsonl import JsonLines, json_line
from pasta_jax.files.workdir import claim
from pasta_jax.runs import records

TOTAL = 6


def die() -> None:
    """No handler runs, and no file is closed."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, where: str) -> None:
    """`where`: computing or writing a record, writing the result, waiting for a line of stdin, or empty."""
    append = JsonLines.append

    def append_half(self: JsonLines, value: object) -> bytes:
        if where == "record" and len(done.known) % 3 == 2:
            self._file.write(json_line(value)[:-5])
            self._file.flush()
            die()
        return append(self, value)

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
        for count, number in enumerate(numbers):
            if where == "computing" and count == 2:
                die()
            print(f"computed {number}", flush=True)
            yield number, f"square of {number}"

    JsonLines.append = append_half
    with (
        claim(folder),
        records.opened(folder / "records.jsonl", {"seed": 1}, tuple[int, str], operator.itemgetter(0), "") as done,
    ):
        for _ in done.fill(done.missing(range(TOTAL)), compute):
            pass
        print("waiting", flush=True)
        if where == "waiting":
            sys.stdin.readline()
        with replacing(folder / "result") as part:
            part.write_text("half of it")
            if where == "result":
                die()
            part.write_text("".join(text + "\n" for _, text in sorted(done.known.values())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
