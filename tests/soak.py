"""A server under mixed load for long: `python -m tests.soak --minutes=120` runs one of a tiny model with two adapters.

Clients ask in threads, sequentially, whole and as streams, by the model and by its adapters, and every fourth leaves
in the middle of its answer. Meanwhile one adapter changes between two versions, and every fourth time its file is
damaged. Equal requests must have equal answers, whatever runs beside them; of the adapter that changes, those of one
version, also while it is read again. The last line states the server's memory after a tenth of the time and at the end.
"""

import argparse
import contextlib
import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pasta_jax.weights.adapter import WEIGHTS
from tests.helpers.serving import LANES, Server, export, saved_adapters

PATH = "/v1/chat/completions"
CHANGES = "talkative:one"
QUESTIONS, SEEDS = ("birds crow 7", "two birds", "name a fish"), 6


class Load:
    """What the clients have seen so far."""

    def __init__(self, server: Server, names: tuple[str, ...], until: float):
        self.counts, self._server, self._names, self._until = Counter(), server, names, until
        self._texts: dict[tuple[str, int], str] = {}  # by request and version
        self._either: list[tuple[str, str]] = []  # requests and texts from while the adapter was read again
        self._lock = threading.Lock()
        self.changes = 0  # odd: the adapter is being read again

    @property
    def _version(self) -> int:
        return self.changes // 2 % 2

    def client(self, seed: int) -> None:
        """Ask until the time is over."""
        by = random.Random(seed)
        while time.monotonic() < self._until:
            body = {
                "model": by.choice(self._names),
                "messages": [{"role": "user", "content": by.choice(QUESTIONS)}],
                "seed": by.randrange(SEEDS),
                "temperature": by.choice((0.0, 1.0)),
                "max_tokens": 60,
                "pasta": {"sequential": by.random() < 0.2, "fork_bias": by.choice((0.0, -2.0, 2.0))},
            }
            if by.random() < 0.25:
                self._leave(body, by.randrange(1, 2000))
            else:
                self._compare(body)

    def _ask(self, body: dict, read: int | None = None) -> tuple[int, bytes]:
        """Status and content, or the first bytes of it."""
        sent = self._server.send("POST", PATH, body, seconds=600)  # it may compile
        with contextlib.closing(sent) as connection:
            response = connection.getresponse()
            return response.status, response.read(read)

    def _leave(self, body: dict, read: int) -> None:
        status, _ = self._ask(body | {"stream": True}, read)
        self._count("left" if status == 200 else f"status {status}")

    def _compare(self, body: dict) -> None:
        before, version = self.changes, self._version if body["model"] == CHANGES else 0
        status, content = self._ask(body)
        if status != 200:
            self._count(f"status {status}")
            return
        text, key = json.loads(content)["choices"][0]["message"]["content"], json.dumps(body)
        if body["model"] == CHANGES and (before % 2 or before != self.changes):
            with self._lock:
                self._either.append((key, text))
            return
        with self._lock:
            equal = self._texts.setdefault((key, version), text) == text
        self._count("equal" if equal else "differs")

    def finish(self) -> None:
        """Compare the answers from while the adapter was read again with those of both versions."""
        for key, text in self._either:
            both = [self._texts.get((key, version)) for version in (0, 1)]
            self._count("equal to one" if text in both else "not compared" if None in both else "differs from both")

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


class Changes:
    """The adapter that changes: its two versions, and a damaged file."""

    def __init__(self, server: Server, load: Load, file: Path, other: Path):
        self._server, self._load, self._file = server, load, file
        self._versions, self._number = (file.read_bytes(), other.read_bytes()), itertools.count(1)

    def next(self) -> None:
        """Change it and wait until the server has read it again."""
        if next(self._number) % 4 == 0:
            self._file.write_bytes(self._file.read_bytes()[:-100])
            self._server.hang_up("one stays as it was: ")
            return
        self._file.write_bytes(self._versions[(self._load.changes // 2 + 1) % 2])
        self._load.changes += 1
        self._server.hang_up("read again: one")
        self._load.changes += 1


def main() -> None:
    """See above; the exit code is 1 if answers differed or were refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=2 * LANES)
    parser.add_argument("--reload", type=float, default=5, help="seconds between two reloads")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = export(Path(folder) / "model")
        adapters, others = (saved_adapters(model, Path(folder) / str(first), first) for first in (0, 10))
        names = ("talkative", *(f"talkative:{name}" for name in adapters))
        with Server(model, adapters=adapters, log=False, warm_up=True) as server:
            began, first = time.monotonic(), None
            load = Load(server, names, began + 60 * given.minutes)
            clients = [threading.Thread(target=load.client, args=(seed,)) for seed in range(given.clients)]
            for client in clients:
                client.start()
            changes, said = Changes(server, load, *(each["one"] / WEIGHTS for each in (adapters, others))), began
            while any(client.is_alive() for client in clients):
                time.sleep(given.reload)
                changes.next()
                memory, minutes = server.memory / 2**20, (time.monotonic() - began) / 60
                first = memory if first is None and minutes >= given.minutes / 10 else first
                if time.monotonic() - said >= min(30.0, 6 * given.minutes):
                    said = time.monotonic()
                    print(f"{minutes:.1f} min: {memory:.0f} MiB, {dict(load.counts)}", flush=True)
            server.wait_until("pasta_lanes_in_use", 0)
    load.finish()
    print(f"memory {first:.0f} to {memory:.0f} MiB; adapter changed {load.changes // 2} times; {dict(load.counts)}")
    if load.counts.keys() - {"equal", "equal to one", "not compared", "left"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
