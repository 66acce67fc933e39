"""The training command, as a user runs it: killed, stopped, gone on, refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from configs.sft import get_config
from launch.sft import sft
from pasta_jax.errors import PastaError

ROOT = Path(__file__).parents[1]
TINY = "--config=configs/sft.py:tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sft")


@pytest.fixture(scope="module")
def environment(folder):
    """One device, and programs compiled once for all these runs."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }


def start(environment, workdir, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "launch.sft", TINY, f"--workdir={workdir}", *flags]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen, code: int = 0) -> str:
    _, said = process.communicate(timeout=300)
    assert process.returncode == code, said
    return said


def lines(workdir) -> list[dict]:
    """The figures but for the times."""
    path = workdir / "metrics.jsonl"
    read = [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return [{key: value for key, value in line.items() if key not in ("s_per_step", "tokens_per_s")} for line in read]


def wait_for_step(process: subprocess.Popen, workdir, step: int) -> None:
    while process.poll() is None and not any(line["step"] >= step for line in lines(workdir)):
        time.sleep(0.01)
    assert process.poll() is None, "it was over before it could be stopped"


@pytest.fixture(scope="module")
def whole(folder, environment):
    """A run that nothing disturbed."""
    finish(start(environment, folder / "whole"))
    return folder / "whole"


def test_a_run_leaves_what_it_says(whole):
    said = lines(whole)
    losses = [line for line in said if "loss" in line]
    assert [line["step"] for line in losses] == list(range(1, 13))
    assert losses[-1]["loss"] < losses[0]["loss"] - 1
    assert {f"loss_{kind}" for kind in ("main", "topic", "length", "chunk", "sync")} <= set().union(*losses)
    assert any("held_out/loss" in line for line in said)
    looked = [line for line in said if "probe/fork_rate" in line]
    assert [line["step"] for line in looked] == [12]
    assert 0 <= looked[0]["probe/well_formed"] <= 1
    about = json.loads((whole / "checkpoints/12/about/metadata").read_text())
    assert about["config"]["train"]["steps"] == 12
    assert json.loads((whole / "config.json").read_text()) == about["config"]


def test_killed_anywhere_and_gone_on_equals_undisturbed(folder, environment, whole):
    """Killed at a step drawn at random, it loses nothing but the steps since the last checkpoint."""
    workdir = folder / "killed"
    step = random.SystemRandom().randrange(2, 11)
    process = start(environment, workdir)
    wait_for_step(process, workdir, step)
    process.kill()
    process.communicate()
    assert not (workdir / "model").exists()
    finish(start(environment, workdir))
    assert lines(workdir) == lines(whole), f"killed at step {step}"
    ours, theirs = (load_file(path / "model/model.safetensors") for path in (workdir, whole))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{name}, killed at step {step}")


def test_sigterm_saves_and_ends_well(folder, environment, whole):
    workdir = folder / "stopped"
    process = start(environment, workdir, "--config.every.save=0")
    wait_for_step(process, workdir, 3)
    process.send_signal(signal.SIGTERM)
    said = finish(process)
    assert "saved; rerun the command to resume" in said
    assert lines(workdir)[-1]["step"] < 12
    assert "resuming from step" in finish(start(environment, workdir, "--config.every.save=0"))
    assert lines(workdir) == lines(whole)


def test_the_result_decodes(environment, whole):
    command = [sys.executable, "-m", "launch.decode", "--config=configs/decode.py:local", "--json", "--nosequential"]
    command += [f"--config.model.path={whole / 'model'}", "--prompt=birds owl 4", "--config.request.max_tokens=8"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)  # trained for twelve steps, it may well end at once
    assert said["finish_reason"] == ("length" if said["tokens"] == 8 else "stop")


def test_an_unknown_key_is_refused_in_one_line(environment, folder):
    said = finish(start(environment, folder / "unknown", "--config.train.learning_rte=1"), code=2)
    assert said.splitlines()[-1].startswith("error: ")
    assert "learning_rte" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not (folder / "unknown").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.learning_rate": 0.5}, "was begun with train"),
        ({"strip_tags": True}, "was begun with strip_tags False, now it is True"),
        ({"train.steps": 24}, "give another workdir, or the first command again"),
    ],
)
def test_another_training_in_the_same_folder_is_refused(whole, changes, message):
    config = get_config("tiny")
    config.update_from_flattened_dict(changes)
    with pytest.raises(PastaError, match=message):
        sft(config, whole, lambda: False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.epochs": 3}, "give either steps or epochs"),
        ({"data.toy": ""}, "give either records="),
        ({"data.lengths": (8,)}, "fits into 8 tokens"),
        ({"positions.policy": "late"}, "position policy 'late'"),
        ({"mesh.model": 3}, "mesh .*choose data and model whose product is that"),
        ({"adapter.rank": 2, "adapter.targets": ("qvk",)}, "adapter target 'qvk'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, message):
    config = get_config("tiny")
    config.update_from_flattened_dict(changes)
    with pytest.raises(PastaError, match=message):
        sft(config, tmp_path, lambda: False)


def test_an_adapter_is_trained_saved_and_merged(folder, environment, whole):
    """LoRA over the model of another run, stripped of tags: the baseline's way."""
    workdir = folder / "adapter"
    flags = ["--config.fresh.layers=0", f"--config.model.path={whole / 'model'}", "--config.adapter.rank=2"]
    flags += ["--config.adapter.alpha=4.0", "--config.train.steps=4", "--config.strip_tags=True"]
    finish(start(environment, workdir, *flags))
    losses = [line for line in lines(workdir) if "loss" in line]
    assert losses[-1]["loss"] < losses[0]["loss"]
    assert "loss_chunk" not in losses[0]
    base, merged = (load_file(path / "model/model.safetensors") for path in (whole, workdir))
    assert any(np.any(base[name] != merged[name]) for name in base)
    pairs = load_file(workdir / "adapter.safetensors")
    assert "layers.qkv.lora_a" in pairs
