"""Several processes of one command, as real processes of this machine: they train together, stop together, resume."""

import json
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from pasta_jax import hosts
from pasta_jax.errors import PastaError
from tests.forked import Forked, command

STEPS = 12
FLAGS = [
    *("--config=configs/sft.py:tiny", f"--config.train.steps={STEPS}", "--config.every.save=4"),
    *("--config.every.held_out=6", "--config.every.probe=0", "--config.fresh.layers=1"),
]


def start(workdir: Path, processes: int) -> list[Forked]:
    """The processes of a training run."""
    return start_all(workdir.parent, "sft", [*FLAGS, f"--workdir={workdir}"], processes)


def start_all(folder: Path, script: str, flags: list[str], processes: int) -> list[Forked]:
    """The processes of a command; each has one device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    together = [f"--coordinator={address}", f"--processes={processes}"] if processes > 1 else []
    return [
        command(folder, script, *flags, *together, *([f"--process={number}"] if together else []))
        for number in range(processes)
    ]


def end(process: Forked, code: int = 0) -> str:
    """What a process printed, which must end with this exit code."""
    return process.finish(code) + process.errors()


def losses(workdir: Path) -> dict[int, list[float]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: [line[name] for name in ("loss", "held_out/loss") if name in line] for line in lines}


def wait_for_step(workdir: Path, step: int) -> None:
    """Until the file of metrics has a step."""
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        path = workdir / "metrics.jsonl"
        if path.exists() and path.read_text().count("\n") > step:
            return
        time.sleep(0.02)
    raise AssertionError("no step was written")


def weights(workdir: Path) -> bytes:
    return (workdir / "model/model.safetensors").read_bytes()


@pytest.mark.slow
def test_two_processes_work_as_one_and_resume_after_one_is_killed(tmp_path):
    both, alone = start(tmp_path / "two", 2), start(tmp_path / "one", 1)
    texts = [end(process) for process in (*both, *alone)]
    assert "process 1 of 2" in texts[1]
    assert "step 10/" in texts[0]
    assert "step 10/" not in texts[1]  # the first one prints and writes
    two, one = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert len(two) == len(one) == STEPS
    for step, values in one.items():
        np.testing.assert_allclose(two[step], values, atol=1e-5, rtol=0)

    first, second = start(tmp_path / "killed", 2)
    wait_for_step(tmp_path / "killed", 5)
    second.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    text = end(first, hosts.EXIT_LOST)
    assert time.monotonic() - killed < 60
    assert "error: process 1 is lost" in text
    assert "Traceback" not in text
    end(second, -signal.SIGKILL)
    resumed = [end(process) for process in start(tmp_path / "killed", 2)]
    assert "resuming from step" in resumed[0]
    assert weights(tmp_path / "killed") == weights(tmp_path / "two")

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"birds crow {n}"}) + "\n" for n in range(2, 7)))
    answers = {}
    for processes in (1, 2):
        output = tmp_path / f"{processes}.jsonl"
        flags = ["--config=configs/decode.py:local", f"--config.model.path={tmp_path / 'two/model'}", "--rows=2"]
        flags += [f"--prompts_file={prompts}", f"--output={output}", "--config.request.max_tokens=16"]
        for process in start_all(tmp_path, "decode", [*flags, "--config.decoding.widths=()"], processes):
            end(process)
        lines = map(json.loads, output.read_text().splitlines())
        answers[processes] = [{name: one[name] for name in one if not name.endswith("_ms")} for one in lines]
    assert [one["index"] for one in answers[1]] == list(range(5))
    assert answers[2] == answers[1]

    evaluated = {}
    for processes in (1, 2):
        workdir = tmp_path / f"evaluated{processes}"
        flags = ["--config=configs/evaluate.py:smollm2", f"--workdir={workdir}", "--config.decoding.widths=()"]
        flags += [f"--config.model.path={tmp_path / 'two/model'}", "--config.model.preset=", "--config.model.adapter="]
        flags += ["--config.systems=('model',)", "--config.prompts.alpaca_eval=0", "--config.prompts.no_fork=0"]
        flags += ["--config.prompts.file=5", f"--config.prompts_file={prompts}", "--config.unmasked=0"]
        flags += ["--config.request.max_tokens=16", "--config.decoding.rows=2", "--config.decoding.packed=()"]
        texts = [end(process) for process in start_all(tmp_path, "evaluate", flags, processes)]
        evaluated[processes] = json.loads((workdir / "report.json").read_text())
        records = [json.loads(line) for line in (workdir / "answers-model.jsonl").read_text().splitlines()[1:]]
        assert sorted(record["number"] for record in records) == list(range(5))
    assert "model" in texts[0]
    assert "answers" not in texts[1]  # the first one reports
    assert evaluated[2] == evaluated[1]


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both_before_the_same_step(tmp_path):
    first, second = start(tmp_path / "run", 2)
    wait_for_step(tmp_path / "run", 3)
    second.send_signal(signal.SIGTERM)
    texts = [end(first), end(second, 128 + signal.SIGTERM)]
    stopped = [next(line for line in text.splitlines() if "stopped at step" in line) for text in texts]
    assert stopped[0] == stopped[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"coordinator": "here:1", "processes": 2}, "--process is missing"),
        ({"process": 1}, "--coordinator is missing"),
        ({"coordinator": "here:1", "processes": 2, "process": 2}, "--process=2: processes are numbered from 0 to 1"),
        ({"coordinator": "here", "processes": 2, "process": 1}, "--coordinator=here: needs a port, as here:8476"),
    ],
)
def test_flags_that_name_no_place_to_meet_are_refused(monkeypatch, flags, message):
    for name in ("coordinator", "processes", "process"):
        monkeypatch.setattr(hosts, name.upper(), type("Flag", (), {"value": flags.get(name)}))
    with pytest.raises(PastaError, match=message), hosts.joined("sft"):
        pass


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "4"}, False),  # a batch script itself
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "JAX_PLATFORMS": "cpu"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a pod by itself
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_processes_of_a_cluster_are_recognised(monkeypatch, environment, found):
    monkeypatch.setattr(hosts, "has_tpu", lambda: False)
    assert hosts.is_started_by_a_cluster(environment) == found
