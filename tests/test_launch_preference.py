"""The preference stage as a user runs it: all steps, killed in each of them, the dial turned, a sweep."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from configs import preference as preference_config
from configs import sweep as sweep_config
from launch import sweep
from launch.preference import run
from launch.preference_evaluate import realised
from launch.preference_stage import request_of, stage_of
from pasta_jax.data.toy_tokenizer import toy_tokenizer
from pasta_jax.decode import generate
from pasta_jax.errors import PastaError
from pasta_jax.models.config import PRESETS
from pasta_jax.models.weights import Model, export_model
from pasta_jax.pipelines import trainable
from tests.models import random_params

ROOT = Path(__file__).parents[1]
STEPS = ("sample", "score", "pair", "train", "evaluate")

# A run of its own process that ends itself by SIGKILL in the middle of a step.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from ml_collections import ConfigDict
from launch import preference, steps
from pasta_jax import metrics

config, workdir, where = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "train":
    write = metrics.Metrics.write
    metrics.Metrics.write = lambda self, step, values: die() if step == 2 else write(self, step, values)
elif where:
    add = steps.Progress.add
    steps.Progress.add = lambda self, n: die() if self.step == where and self.done + n > 2 else add(self, n)
preference.run(ConfigDict(config), Path(workdir))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("preference")


@pytest.fixture(scope="module")
def config(folder) -> ConfigDict:
    """The tiny variant, from a random model that forks, closes and stops often."""
    tokenizer = toy_tokenizer()
    shape = dataclasses.replace(PRESETS["toy"], vocab=tokenizer.model_vocab, layers=2, global_every=2, tied_head=False)
    params = random_params(shape, 5)
    tags = tokenizer.tags
    for ids, factor in (([tags.promise], 10), ([tags.end_async, tags.sync], 7), ([tokenizer.end_of_turn], 6)):
        params["head"][ids] *= factor
    export_model(Model("babbler", shape, jax.tree.map(jnp.asarray, params), tokenizer), folder / "model")
    config = preference_config.tiny()
    config.model.path = config.baseline.path = str(folder / "model")
    config.train.learning_rate = 1e-2
    config.decoding.update(lanes=2, rows=2)
    config.evaluate.temperatures = (1.0,)  # greedily it says nothing, before and after
    config.request.update(max_tokens=60, max_chunk_tokens=12)
    config.score.efficiency = "parallelism"  # its baseline says nothing at all, so there is no speedup over it
    return config


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """Meshes have tests of their own; here they would only make everything slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainable, "place", lambda tree, mesh: tree)
        yield


@pytest.fixture(scope="module")
def whole(config, folder) -> dict:
    """An undisturbed run."""
    return run(config, folder / "whole")


def weights(workdir: Path) -> bytes:
    return (workdir / "model/model.safetensors").read_bytes()


def test_a_run_leaves_a_model_a_report_and_a_file_for_each_step(whole, folder):
    names = [model["name"] for model in whole["models"]]
    assert names == ["Baseline-SFT", "Pasta-SFT", "round 1"]
    assert json.loads((folder / "whole/report.json").read_text()) == whole
    assert whole["models"][1]["fingerprint"] != whole["models"][2]["fingerprint"]
    assert weights(folder / "whole") != (folder / "model/model.safetensors").read_bytes()
    made = {path.name.rpartition("-")[0] for path in (folder / "whole/steps").iterdir()}
    assert made == {"baseline", "sample", "score", "pair", "reference", "train", "answer", "evaluate"}


def test_killed_in_each_step_it_ends_with_the_same_bits(config, whole, folder):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "XLA_FLAGS": ""}
    workdir = folder / "killed"
    for where in (*STEPS, ""):
        command = [sys.executable, "-c", DRIVER, config.to_json(), str(workdir), where]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if where else 0), done.stderr[-2000:]
    # Undisturbed and with one device, as those were.
    command = [sys.executable, "-c", DRIVER, config.to_json(), str(folder / "alone"), ""]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert weights(workdir) == weights(folder / "alone")
    for one in (folder / "alone/steps").glob("*.jsonl"):
        assert (workdir / "steps" / one.name).read_bytes() == one.read_bytes(), one.name


def test_turning_the_dial_samples_and_judges_nothing_again(config, whole, folder):
    other = ConfigDict(config.to_dict())
    other.steps = str(folder / "whole/steps")
    other.score.update(quality_weight=8.0, efficiency="arithmetic")
    before = {path.name for path in (folder / "whole/steps").iterdir()}
    run(other, folder / "turned")
    new = {path.name for path in (folder / "whole/steps").iterdir()} - before
    assert not any(name.startswith(("sample", "score", "baseline")) for name in new)
    assert {name.partition("-")[0] for name in new} >= {"pair", "train"}


def test_an_adapter_is_trained_beside_frozen_weights(config, folder):
    other = ConfigDict(config.to_dict())
    other.adapter.update(rank=2, alpha=4.0)
    other.rounds = 2
    other.steps = str(folder / "whole/steps")
    report = run(other, folder / "adapter")
    assert [model["name"] for model in report["models"][2:]] == ["round 1", "round 2"]
    assert (folder / "adapter/adapter.safetensors").exists()


def test_a_sweep_ends_in_a_table_and_a_plot(config, whole, folder, monkeypatch):
    swept = sweep_config.tiny()
    swept.base = ConfigDict(config.to_dict())
    swept.base.steps = str(folder / "whole/steps")
    swept.choices = ((2.0, 8.0),)
    monkeypatch.setattr(sweep, "WORKDIR", type("Flag", (), {"value": str(folder / "sweep")}))
    sweep.main(swept)
    rows = json.loads((folder / "sweep/results.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["Baseline-SFT", "Pasta-SFT", "quality_weight=2.0", "quality_weight=8.0"]
    plot = (folder / "sweep/pareto.svg").read_text()
    assert all(f"<title>{name}: " in plot for name in ("Pasta-SFT", "λ=2", "λ=8"))
    assert "quality_weight=8.0" in (folder / "sweep/results.md").read_text()
    assert "| Pasta-SFT |" in (folder / "sweep/results.md").read_text()


def test_realised_speedup_is_that_of_turns_not_of_the_machines_drift(config, folder, monkeypatch):
    """The model takes two fifths of the baseline's time, whatever the hour, and the first turn compiles."""
    other = ConfigDict(config.to_dict())
    other.evaluate.timed = 2
    calls = []

    def answered(model, requests, settings):
        assert settings.lanes == 1
        slowness = (100, 2, 5, 11)[len(calls) // 2]
        calls.append(requests[0].sequential)
        ms = slowness * (10.0 if requests[0].sequential else 4.0)
        return [SimpleNamespace(trace=SimpleNamespace(rounds=((0, 1.0), (9, ms * (n + 1))))) for n in range(2)]

    monkeypatch.setattr(generate, "generate", answered)
    stage = stage_of(other, folder / "timed")
    request = request_of(stage, 1.0, seed=0, sequential=False)
    assert realised(stage, stage.baseline, "answers", request) == 2.5
    assert calls == [True, False] * 4
    assert realised(stage, stage.baseline, "answers", request) == 2.5, "the file is found"
    assert len(calls) == 8


def test_points_are_a_grid_or_a_zip():
    config = sweep_config.toy_seeds()
    assert len(sweep.points(config)) == 15
    config.mode = "zip"
    with pytest.raises(PastaError, match="one length"):
        sweep.points(config)
    config.choices = ((0, 1), (1.0, 2.0))
    assert [list(point.values()) for point in sweep.points(config)] == [[0, 1.0], [1, 2.0]]
    made = sweep.config_of(config, sweep.points(config)[1], Path("w"))
    assert (made.sample.seed, made.train.seed, made.score.quality_weight) == (1, 1, 2.0)
    with pytest.raises(PastaError, match=r"score\.weight"):
        sweep.config_of(config, {"score.weight": 1}, Path("w"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"judge": {"kind": "oracle"}, "prompts": {"toy": "", "source": "alpaca_rows"}}, "'oracle'"),
        ({"judge": {"kind": "repetition"}}, "toy"),
        ({"prompts": {"source": "alpaca_rows"}}, "either toy"),
        ({"prompts": {"toy_seed": 0}}, "held out"),
        ({"model": {"path": ""}}, r"config\.model\.path"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sampled(config, folder, changes, said):
    other = ConfigDict(config.to_dict())
    for name, values in changes.items():
        other[name].update(values)
    with pytest.raises(PastaError, match=said):
        stage_of(other, folder / "refused")
