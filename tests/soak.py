"""A server under mixed load for long: `python -m tests.soak --minutes=120` runs one of a tiny model with two adapters.

Clients ask in threads, sequentially, whole and as streams, by the model and by its adapters, and every fourth leaves
in the middle of its answer. Equal requests must have equal answers, whatever runs beside them, and the last line
states the server's memory after a tenth of the time and at the end.
"""

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.helpers.serving import LANES, Server, export, saved_adapters

PATH = "/v1/chat/completions"
QUESTIONS, SEEDS = ("birds crow 7", "two birds", "name a fish"), 6


def resident_mib(pid: int) -> float:
    """The memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


class Load:
    """What the clients have seen so far."""

    def __init__(self, server: Server, names: tuple[str, ...], until: float):
        self.counts, self._server, self._names, self._until = Counter(), server, names, until
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

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
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=600)  # it may compile
        try:
            connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(read)
        finally:
            connection.close()

    def _leave(self, body: dict, read: int) -> None:
        status, _ = self._ask(body | {"stream": True}, read)
        self._count("left" if status == 200 else f"status {status}")

    def _compare(self, body: dict) -> None:
        status, content = self._ask(body)
        if status != 200:
            self._count(f"status {status}")
            return
        text = json.loads(content)["choices"][0]["message"]["content"]
        with self._lock:
            equal = self._texts.setdefault(json.dumps(body), text) == text
        self._count("equal" if equal else "differs")

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


def main() -> None:
    """See above; the exit code is 1 if answers differed or were refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=2 * LANES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = export(Path(folder) / "model")
        adapters = saved_adapters(model, Path(folder))
        names = ("talkative", *(f"talkative:{name}" for name in adapters))
        named = tuple(f"{name}={path}" for name, path in adapters.items())
        with Server(model, adapters=repr(named), log=False, warm_up=True) as server:
            began, first = time.monotonic(), None
            load = Load(server, names, began + 60 * given.minutes)
            clients = [threading.Thread(target=load.client, args=(seed,)) for seed in range(given.clients)]
            for client in clients:
                client.start()
            while any(client.is_alive() for client in clients):
                time.sleep(min(30.0, 6 * given.minutes))
                memory, minutes = resident_mib(server.process.pid), (time.monotonic() - began) / 60
                first = memory if first is None and minutes >= given.minutes / 10 else first
                print(f"{minutes:.1f} min: {memory:.0f} MiB, {dict(load.counts)}", flush=True)
            server.wait_until("pasta_lanes_in_use", 0)
    print(f"memory {first:.0f} to {memory:.0f} MiB; {dict(load.counts)}")
    if load.counts.keys() - {"equal", "left"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
