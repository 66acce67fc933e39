"""Several processes of one command, as real processes of this machine: they train together, stop together, resume."""

import contextlib
import json
import signal
import socket
import time
import unittest.mock
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from configs import annotate as annotate_config
from pasta_jax.annotate import pipeline as annotate
from pasta_jax.errors import PastaError
from pasta_jax.models import sharding
from pasta_jax.models.settings import TrainingMeshSettings
from pasta_jax.runs import processes as hosts
from pasta_jax.runs.settings import changed
from pasta_jax.weights.load import export_model
from tests.helpers.forked import Forked, command
from tests.helpers.models import BABBLING, babbler

STEPS = 16
FLAGS = [
    *("--config=configs/sft.py:tiny", f"--config.train.steps={STEPS}", "--config.every.save=4"),
    *("--config.every.held_out=6", "--config.every.probe=0", "--config.fresh.layers=1"),
]


def start(workdir: Path, processes: int) -> list[Forked]:
    """The processes of a training run."""
    return start_all(workdir.parent, "sft", [*FLAGS, f"--workdir={workdir}"], processes)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start_all(folder: Path, script: str, flags: list[str], processes: int) -> list[Forked]:
    """The processes of a command; each has one device."""
    together = [f"--coordinator={free_address()}", f"--processes={processes}"] if processes > 1 else []
    return [
        command(folder, script, *flags, *together, *([f"--process={number}"] if together else []))
        for number in range(processes)
    ]


def hear(address: str, number: int) -> None:
    """One of three processes, which hear what the first one says; it is far ahead of them."""
    jax.distributed.initialize(address, 3, number, cluster_detection_method="deactivate")
    client = hosts._client()
    if number:
        client.blocking_key_value_get(f"{hosts._TOLD}/11", 60_000)
    said = [hosts.told(f"{n} of {number}", str) for n in range(12)]
    assert said == [f"{n} of 0" for n in range(12)]
    client.wait_at_barrier("heard", 60_000)
    assert client.key_value_dir_get(hosts._TOLD) == []


def gather(address: str, number: int) -> None:
    """One of two processes, which passes its rows of an array and gets all of them, one at a time."""
    jax.distributed.initialize(address, 2, number, cluster_detection_method="deactivate")
    sharding.GATHERED = 1
    whole = np.arange(24.0, dtype=np.float32).reshape(4, 3, 2)
    mesh = sharding.training_mesh(TrainingMeshSettings(0, 1, True))
    divided = sharding.shard_rows({"x": whole[2 * number : 2 * number + 2]}, mesh)
    assert divided["x"].shape == whole.shape
    gather_part = multihost_utils.process_allgather
    with unittest.mock.patch.object(multihost_utils, "process_allgather", wraps=gather_part) as asked:
        np.testing.assert_array_equal(sharding.gathered(divided)["x"], whole)
    assert asked.call_count == len(whole)


def start_preference(workdir: Path, model: Path, processes: int) -> list[Forked]:
    """The processes of a preference run from a model that forks, closes and stops often."""
    changes = BABBLING | {"model.path": model, "baseline.path": model, "sample.block": 4, "mesh.data": processes}
    # DPO does not multiply the rounding of log-probabilities of hundreds of nats.
    changes |= {"train.learning_rate": 1e-3, "loss.loss": "dpo"}
    flags = ["--config=configs/preference.py:tiny", *(f"--config.{name}={value}" for name, value in changes.items())]
    return start_all(workdir.parent, "preference", [*flags, f"--workdir={workdir}"], processes)


def end(process: Forked, code: int = 0) -> str:
    """What a process printed, which must end with this exit code."""
    return process.finish(code) + process.errors()


def losses(workdir: Path) -> dict[int, list[float]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: [line[name] for name in ("loss", "held_out/loss") if name in line] for line in lines}


def wait_for_step(process: Forked, workdir: Path, step: int) -> None:
    """Until the file of metrics has a step."""
    wait_for_lines(process, workdir, "metrics.jsonl", step + 1)


def wait_for_lines(process: Forked, folder: Path, pattern: str, lines: int) -> None:
    """Until a file has so many lines."""
    process.wait(lambda: any(path.read_text().count("\n") >= lines for path in folder.glob(pattern)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The finished training run of one process."""
    workdir = tmp_path_factory.mktemp("hosts") / "one"
    [process] = start(workdir, 1)
    end(process)
    return workdir


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("asked") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"birds crow {n}"}) + "\n" for n in range(2, 7)))
    return path


@pytest.mark.slow
def test_two_processes_stop_together_end_when_one_is_killed_and_compute_what_one_computes(alone, tmp_path):
    workdir = tmp_path / "two"
    first, second = start(workdir, 2)
    wait_for_step(first, workdir, 2)
    second.send_signal(signal.SIGTERM)
    texts = [end(process, 128 + signal.SIGTERM) for process in (first, second)]
    assert "process 1 of 2" in texts[1]
    stopped = [next(line for line in text.splitlines() if "stopped at step" in line) for text in texts]
    assert stopped[0] == stopped[1]

    first, second = start(workdir, 2)
    wait_for_step(first, workdir, 9)
    second.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    undisturbed = start(tmp_path / "undisturbed", 2)  # while the first one waits for signs of life
    text = end(first, hosts.EXIT_LOST)
    assert time.monotonic() - killed < 60
    assert "error: process 1 is lost" in text
    assert "Traceback" not in text
    end(second, -signal.SIGKILL)

    texts = [end(process) for process in start(workdir, 2)]
    assert "resuming from step" in texts[0]
    assert f"step {STEPS}/" in texts[0]
    assert f"step {STEPS}/" not in texts[1]  # the first one prints and writes
    for process in undisturbed:
        end(process)
    weights = [path / "model/model.safetensors" for path in (workdir, tmp_path / "undisturbed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    two, one = losses(workdir), losses(alone)
    assert len(two) == len(one) == STEPS
    for step, values in one.items():
        np.testing.assert_allclose(two[step], values, atol=1e-5, rtol=0)


def test_what_two_processes_divide_is_gathered_in_parts(tmp_path):
    address = free_address()
    for process in [Forked(tmp_path, gather, address, number) for number in range(2)]:
        end(process)


@pytest.mark.slow
def test_two_processes_share_the_prompts_and_write_what_one_writes(alone, prompts, tmp_path):
    answers = {}
    for processes in (1, 2):
        output = tmp_path / f"{processes}.jsonl"
        flags = ["--config=configs/decode.py:local", f"--config.model.path={alone / 'model'}", "--rows=2"]
        flags += [f"--prompts_file={prompts}", f"--output={output}", "--config.request.max_tokens=16"]
        for process in start_all(tmp_path, "decode", [*flags, "--config.decoding.widths=()"], processes):
            end(process)
        lines = map(json.loads, output.read_text().splitlines())
        answers[processes] = [{name: one[name] for name in one if not name.endswith("_ms")} for one in lines]
    assert [one["index"] for one in answers[1]] == list(range(5))
    assert answers[2] == answers[1]

    workdir = tmp_path / "evaluated"
    flags = ["--config=configs/evaluate.py:smollm2", f"--workdir={workdir}", "--config.decoding.widths=()"]
    flags += [f"--config.model.path={alone / 'model'}", "--config.model.preset=", "--config.model.adapter="]
    flags += [f"--config.baseline.path={alone / 'model'}", "--config.baseline.preset=", "--config.baseline.adapter="]
    flags += [
        "--config.systems=('model','baseline')",
        "--config.judges=('repetition','checked')",
        "--config.prompts.alpaca_eval=0",
        "--config.prompts.no_fork=0",
    ]
    flags += ["--config.checked.checks.weights.fluency=0.0", "--config.checked.checks.weights.fit=0.0"]
    flags += [f"--config.prompts.file={prompts}", "--config.unmasked=0"]
    flags += ["--config.request.max_tokens=16", "--config.decoding.lanes=1", "--config.decoding.rows=2"]
    texts = [end(process) for process in start_all(tmp_path, "evaluate", flags, 2)]
    assert ["fork rate" in text for text in texts] == [True, False]  # the first one reports
    assert len(json.loads((workdir / "report.json").read_text())["sets"]["file"]["model"]["judged"]) == 4
    records = [json.loads(line) for line in (workdir / "answers-model.jsonl").read_text().splitlines()[1:]]
    texts = {record["number"]: record["text"] for record in records}
    assert len(records) == 5
    assert texts == {one["index"]: one["text"] for one in answers[1]}
    report = (workdir / "report.json").read_text()
    [process] = start_all(tmp_path, "evaluate", flags, 1)  # reports on the same answers
    end(process)
    assert (workdir / "report.json").read_text() == report


@pytest.mark.extended  # without: a killed training run of two processes, and one process's preference run
def test_two_processes_share_a_preference_run_that_resumes_after_one_is_killed(tmp_path):
    model, workdir = tmp_path / "model", tmp_path / "two"
    export_model(babbler(), model)
    first, second = start_preference(workdir, model, 2)
    wait_for_lines(first, workdir / "artifacts", "sample-*", 2)  # its inputs, and the answers to a prompt
    second.send_signal(signal.SIGKILL)
    [alone] = start_preference(tmp_path / "one", model, 1)  # while the first one waits for signs of life
    assert "error: process 1 is lost" in end(first, hosts.EXIT_LOST)
    end(second, -signal.SIGKILL)
    texts = [end(process) for process in (alone, *start_preference(workdir, model, 2))]
    assert '"quality_weight"' in texts[1]
    assert '"quality_weight"' not in texts[2]  # the first one reports

    one, two = ({path.name: path for path in (tmp_path / run / "artifacts").iterdir()} for run in ("one", "two"))
    names = [name for name in one if name.startswith(("baseline", "sample", "score", "pair", "reference"))]
    assert len(names) == 6  # two sets of prompts have baselines
    for name in names:
        assert two[name].read_bytes() == one[name].read_bytes(), name
    assert (tmp_path / "two/report.json").exists()
    [trained] = [name for name in one if name.startswith("train")]
    losses_of_one, losses_of_two = losses(one[trained]), losses(two[trained])
    assert list(losses_of_one) == list(losses_of_two)
    np.testing.assert_allclose([*losses_of_two.values()], [*losses_of_one.values()], atol=1e-5, rtol=0)


def test_what_all_have_heard_is_kept_no_longer(tmp_path):
    address = free_address()
    for process in [Forked(tmp_path, hear, address, number) for number in range(3)]:
        end(process)


@pytest.mark.slow
def test_two_processes_share_annotation_by_likelihood(tmp_path):
    export_model(babbler(), tmp_path / "model")
    annotate.run(changed(annotate_config.toy(), dataset=False, max_pairs=3), tmp_path / "toy")
    flags = ["--config=configs/annotate.py:likelihood", f"--config.records={tmp_path / 'toy/records.jsonl'}"]
    flags += [f"--config.model.path={tmp_path / 'model'}", "--config.model.preset=", "--config.weighing.lengths=(256,)"]
    written = {}
    for processes in (2, 1):
        output = tmp_path / f"weighed{processes}"
        every = start_all(tmp_path, "annotate", [*flags, "--config.dataset=False", f"--output={output}"], processes)
        texts = [end(process) for process in every]
        assert ["records" in text for text in texts] == [True, False][:processes]  # the first one reports
        written[processes] = {path.name: sorted(path.read_bytes().splitlines()) for path in output.iterdir()}
    assert len(written[1]["progress.jsonl"]) == 1 + 3
    assert written[2] == written[1]


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


@pytest.mark.parametrize("tasks", [True, False])
def test_tasks_that_do_not_find_each_other_are_not_independent_runs(monkeypatch, tasks):
    """They would train in the same workdir. A TPU without a cluster is a notebook's."""

    def initialize(**_):
        raise ValueError("coordinator_address should be defined.")

    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"} if tasks else {}
    monkeypatch.setattr(hosts, "_arguments", lambda: None)
    monkeypatch.setattr(hosts, "has_tpu", lambda: True)
    monkeypatch.setattr(hosts.os, "environ", environment)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with contextlib.ExitStack() as stack:
        if tasks:
            stack.enter_context(pytest.raises(PastaError, match=r"defined\.\); pip install kubernetes, or for one pod"))
        with hosts.joined("sft"):
            assert not tasks


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, False),  # a batch script itself
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a[1-2]"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "a1"}, False),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a[1-2]", "JAX_PLATFORMS": "cpu"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a pod by itself
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_processes_of_a_cluster_are_recognised(monkeypatch, environment, found):
    monkeypatch.setattr(hosts, "has_tpu", lambda: False)
    assert hosts.is_started_by_a_cluster(environment) == found
