"""The benchmark of servers, on servers of fixed answers: all clients ask, figures are counted, processes end."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import configs.benchmark
from pasta_jax.benchmark import clients, serving
from pasta_jax.benchmark.clients import Streamed, Together, ask
from pasta_jax.benchmark.run import as_json
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed
from pasta_jax.serve.settings import ServeSettings

CLIENTS, ROUNDS = (1, 3), 2


class Fixed(BaseHTTPRequestHandler):
    """Answers each question by streaming its length in tokens, as our server or as another one."""

    ours: bool

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (body["temperature"], body["stream"]) == (0, True)
        question = body["messages"][0]["content"]
        self.send_response(400 if question == "refused" else 200)
        self.end_headers()
        last = {"delta": {}} | ({"pasta": {"text_tokens": len(question)}} if self.ours else {})
        usage = {"completion_tokens": len(question) + (5 if self.ours else 0)}  # ours counts tags
        for event in (
            {"choices": [{"delta": {"content": ""}}]},
            {"choices": [{"delta": {"content": "text"}}]},
            {"choices": [last]},
            {"choices": [], "usage": usage},
        ):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")


def fixed(ours: bool, port: int) -> None:
    """Serve at a port, until the process is ended."""
    handler = type("Handler", (Fixed,), {"ours": ours})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


def small() -> BenchmarkSettings:
    return changed(configs.benchmark.smollm2_135m(), serve={"clients": CLIENTS, "rounds": ROUNDS})


@pytest.mark.extended
def test_every_server_gets_the_same_questions_in_turn(monkeypatch):
    names = {"admitted": True, "llama_cpp_default": False}
    monkeypatch.setattr(serving, "targets_of", lambda *_: {name: (fixed, (ours,)) for name, ours in names.items()})
    monkeypatch.setattr(serving, "questions_of", lambda _, count: ["a" * n for n in range(1, count + 1)])
    chosen = small()
    report = json.loads(as_json(serving.measure(chosen, with_peers=False)))
    assert report["packed"] == list(chosen.serve.server.decoding.packed)
    for number, tokens in (("1", 1 + 2), ("3", sum(range(3, 9)))):
        for figures in report["clients"][number].values():
            assert figures["tokens"] == tokens
            assert figures["tokens_per_s"] > 0
    assert multiprocessing.active_children() == []


def test_each_round_and_rate_begins_with_another_server_and_the_seed_is_stated(monkeypatch):
    names, asked, by_port = ["off", "eager", "admitted"], [], {}

    def answered(port, questions, max_tokens, times=()):
        asked.append(port)
        by_port.setdefault(port, []).extend(questions)
        return Together((Streamed(0.1, 0.2, 1),), 1.0)

    monkeypatch.setattr(serving, "targets_of", lambda *_: dict.fromkeys(names))
    monkeypatch.setattr(serving, "started", lambda _: contextlib.nullcontext({name: name for name in names}))
    monkeypatch.setattr(serving, "questions_of", lambda _, count: [*range(count)])
    monkeypatch.setattr(serving, "ask_together", answered)
    chosen = changed(small(), serve={"clients": (1,), "rounds": 3}, load={"rates": (1.0, 2.0, 4.0), "seed": 7})
    serving.measure(chosen, with_peers=False)
    report = serving.measure_load(chosen, with_peers=False)
    in_turn = [*names, *names[1:], *names[:1], *names[2:], *names[:2]]
    assert asked == 2 * in_turn
    assert [list(by_server) for by_server in report["rates"].values()] == 3 * [names]
    assert report["seed"] == 7
    assert by_port["off"] == by_port["eager"] == [*range(3), *range(3 * chosen.load.requests)]


def test_a_server_ends_with_a_benchmark_that_is_told_to_stop():
    with contextlib.suppress(KeyboardInterrupt), serving.server(fixed, (True,)) as (_, process):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it goes on")
    assert not process.is_alive()


def test_servers_start_one_after_another(monkeypatch):
    """One that measures what its steps cost would measure what the next one compiles."""
    seen = []

    @contextlib.contextmanager
    def opened(name):
        seen.append(f"start {name}")
        yield name, SimpleNamespace(is_alive=lambda: True)

    monkeypatch.setattr(serving, "server", opened)
    monkeypatch.setattr(serving, "wait_until_ready", lambda port, *_: seen.append(f"ready {port}"))
    monkeypatch.setattr(serving, "ask", lambda *_: None)
    with serving.started({"a": ("a",), "b": ("b",)}) as ports:
        assert ports == {"a": "a", "b": "b"}
    assert seen == ["start a", "ready a", "start b", "ready b"]


def test_threads_of_another_model_than_the_one_that_is_named_are_refused():
    chosen = changed(small(), model={"preset": "qwen2_5_coder_1_5b"})
    with pytest.raises(PastaError, match=r"config\.serve\.threads\.preset: is another model"):
        serving.measure(chosen, with_peers=False)


def test_what_our_server_refuses_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(serving.serve, "run", Mock(side_effect=PastaError("no such adapter; name another")))
    with pytest.raises(SystemExit) as ended:
        serving._serve(ServeSettings(), 0)
    assert ended.value.code == 2
    assert "no such adapter; name another" in capsys.readouterr().err


def test_a_server_that_refuses_or_never_starts_is_named():
    with serving.server(fixed, (True,)) as (port, process):
        serving.wait_until_ready(port, process.is_alive, 60)
        assert ask(port, "four", 9).tokens == 4
        with pytest.raises(PastaError, match=f"the server at port {port}: status 400"):
            ask(port, "refused", 9)
    for is_alive, message in ((False, "has ended"), (True, "was not ready within 0 s")):
        with pytest.raises(PastaError, match=f"the server at port {port} {message}"):
            serving.wait_until_ready(port, lambda alive=is_alive: alive, 0)


def test_figures_are_medians_of_answers_and_of_rounds():
    rounds = [
        Together((Streamed(0.1, 1.0, 10), Streamed(0.3, 2.0, 30)), 2.0),
        Together((Streamed(0.2, 3.0, 10), Streamed(9.0, 9.5, 10)), 10.0),
        Together((Streamed(0.2, 4.0, 20), Streamed(0.2, 4.0, 20)), 4.0),
    ]
    figures = serving.figures_of(rounds)
    assert (figures["first_token_ms"], figures["tokens_per_s"], figures["tokens"]) == (200, 10.0, 100)
    assert figures["answer_s"] == 3.5
    loaded = serving.loaded_figures(rounds[1], target_s=5)
    assert (loaded["answer_s"], loaded["tokens_per_s"], loaded["goodput"]) == (6.25, 2.0, 1.0)
    assert loaded["first_token_ms_p95"] == round(200 + 0.95 * 8800)


def test_requests_arrive_at_their_times_and_are_answered_side_by_side(monkeypatch):
    at, all_three = {}, threading.Barrier(3, timeout=60)

    def arrive(port, question, most):
        at[question] = time.perf_counter() - began
        all_three.wait()
        return Streamed(0.1, 0.2, 1)

    monkeypatch.setattr(clients, "ask", arrive)
    began, times = time.perf_counter(), {"a": 0.0, "b": 0.02, "c": 0.03}
    assert len(clients.ask_together(0, list(times), 9, list(times.values())).answers) == 3
    assert all(at[question] >= second for question, second in times.items())


def test_the_servers_differ_in_how_they_fork_only():
    chosen = small()
    ours = serving.targets_of(chosen.model, chosen.serve, 3, with_peers=False)
    off, eager, admitted = (arguments[0] for _, arguments in ours.values())
    assert list(ours) == ["off", "eager", "admitted"]
    assert (off.decoding.lanes, off.decoding.rows, off.request.sequential) == (3, 1, True)
    assert off.model == eager.model == admitted.model == chosen.serve.threads
    assert dataclasses.replace(eager, decoding=admitted.decoding) == admitted
    assert (eager.decoding.forks, admitted.decoding.forks) == ("eager", "admitted")
    assert dataclasses.replace(off, decoding=eager.decoding, request=eager.request) == eager
    without = dataclasses.replace(chosen.serve, threads=type(chosen.serve.threads)())
    assert list(serving.targets_of(chosen.model, without, 3, with_peers=False)) == ["off"]


def test_too_few_questions_are_refused(monkeypatch):
    monkeypatch.setattr(serving, "read", lambda _: [])
    with pytest.raises(PastaError, match=r"^alpaca_rows: 0 questions with long answers, but 6 are needed$"):
        serving.questions_of(small().serve, 6)
