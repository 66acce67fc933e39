"""A real server process on loopback, with the model of tests/toy/test_ablation.py."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from pasta_jax.lang.structure import PREDICTED
from pasta_jax.weights import adapter as lora
from pasta_jax.weights.load import export_model
from tests.helpers.forked import FORKS, as_command, launch
from tests.helpers.loading import load_model
from tests.helpers.models import trained
from tests.toy.test_ablation import talkative

LANES, QUEUE, SLOTS = 4, 12, 256
DECODING = {
    "lanes": LANES,
    "rows": 4,
    "slots": SLOTS,
    "widths": "()",
    "packed": "(4,8)",
    "prefill_chunk": 16,
    "forks": "eager",
}
OPTIONS = {"warm_up": False, "limits.queue": QUEUE, "request.max_tokens": 60, "name": "talkative"}


KEY = "a key that nobody guesses"
OTHER_PAGE = "http://localhost:3000"


def export(path: Path) -> Path:
    """The folder of a model that forks often."""
    export_model(dataclasses.replace(talkative(), positions=PREDICTED), path)
    return path


def saved_adapters(model: Path, folder: Path, first: int = 0) -> dict[str, Path]:
    """Two adapters of an exported model, by name; others with another first seed."""
    base, saved = load_model("", str(model), stacked=False), {}
    for seed, name in enumerate(("one", "two"), first):
        settings = lora.AdapterSettings(rank=2, alpha=2.0)
        fresh = lora.new_adapter(base.params, settings, base.tokenizer.tags, seed)
        saved[name] = folder / name
        lora.save_adapter(saved[name], trained(fresh, seed, 0.03), base, lora.describe(base, settings, PREDICTED))
    return saved


def pieces(content: bytes) -> list[dict]:
    """The events of a stream, which must be whole."""
    *events, done, nothing = content.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(content: bytes) -> str:
    """The text of a stream's one answer."""
    return "".join(part["choices"][0]["delta"].get("content", "") for part in pieces(content))


def serve(stderr: Connection, environment: dict[str, str], arguments: list[str]) -> None:
    """The command in a fork."""
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    os.environ.update(environment)
    as_command(launch, "serve", *arguments)


class Server:
    """`python -m launch.serve` in a fork; `changes` are config keys. Its stderr is read to the end."""

    def __init__(
        self, model: Path, key: str | None = None, adapters: Mapping[str, Path] | None = None, **changes: object
    ):
        values = {f"decoding.{name}": value for name, value in DECODING.items()} | OPTIONS
        values["adapters"] = repr(tuple(f"{name}={path}" for name, path in (adapters or {}).items()))
        values |= {name.replace("__", "."): value for name, value in changes.items()}
        arguments = ["--config=configs/serve.py:local", "--config.port=0", f"--config.model.path={model}"]
        arguments += [f"--config.{name}={value}" for name, value in values.items()]
        environment = {}
        if key is not None:
            environment["SERVER_KEY"] = key
            arguments.append("--config.key_variable=SERVER_KEY")
        self.key = key
        self._errors, stderr = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=serve, args=(stderr, environment, arguments))
        self.process.start()
        stderr.close()
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(600)
        found = re.search(r"^serving .* at http://([\d.]+):(\d+)", "".join(self.lines), re.MULTILINE)
        if found is None:
            self.__exit__()
            raise AssertionError("the server did not start:\n" + "".join(self.lines))
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"

    def _read(self) -> None:
        with open(self._errors.fileno(), closefd=False) as stderr:
            for line in stderr:
                self.lines.append(line)
                if line.startswith("serving "):
                    self._ready.set()
        self._ready.set()

    @property
    def memory(self) -> int:
        """Bytes that its process has."""
        return psutil.Process(self.process.pid).memory_info().rss

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        key: str | None = "",
        seconds: float = 60,
    ) -> http.client.HTTPConnection:
        """A connection that has sent a request; a body that is no string is sent as JSON. Key "": the server's own."""
        key = self.key if key == "" else key
        given = {} if key is None else {"Authorization": f"Bearer {key}"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        content = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"} | given | (headers or {}))
        return connection

    def request(self, *sent: object, **options: object) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the answer to what `send` takes."""
        with contextlib.closing(self.send(*sent, **options)) as connection:
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def ask(self, path: str = "/v1/chat/completions", /, **body: object) -> dict:
        """The answer to a request that is accepted."""
        status, _, content = self.request("POST", path, body)
        assert status == 200, content
        return json.loads(content)

    def text(self, **body: object) -> str:
        """The text of what `ask` returns, or of the first of several answers."""
        return self.ask(**body)["choices"][0]["message"]["content"]

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        text = self.request("GET", "/metrics")[2].decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    def wait_until(self, name: str, value: float, seconds: float = 20) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.01)

    def hang_up(self, said: str) -> str:
        """Send SIGHUP, and wait for the line that begins so."""
        before, deadline = len(self.lines), time.monotonic() + 300
        self.send_signal(signal.SIGHUP)
        while not (found := [line for line in self.lines[before:] if line.startswith(said)]):
            assert time.monotonic() < deadline, self.lines[before:]
            time.sleep(0.01)
        return found[0]

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, when it has ended."""
        self.process.join(60)
        self._reader.join(10)
        return self.process.exitcode

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._reader.join(10)
        self._errors.close()
