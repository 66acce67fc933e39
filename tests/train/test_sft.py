"""Supervised training: the command as a user runs it, killed, stopped, resumed, refused; and the pipeline itself."""

import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

import configs.sft
from pasta_jax.errors import PastaError
from pasta_jax.files.workdir import claim
from pasta_jax.lang.structure import Positions
from pasta_jax.runs import settings as run_config
from pasta_jax.runs.settings import changed
from pasta_jax.train import sft
from pasta_jax.train.settings import SftSettings
from pasta_jax.weights import card
from pasta_jax.weights.adapter import WEIGHTS
from pasta_jax.weights.config_file import read_config
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load, load_with_adapter
from tests.helpers.forked import Forked, command
from tests.train.test_loop import lines

TINY, TENSORS = "--config=configs/sft.py:tiny", "model/model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sft")


def start(workdir: Path, *flags: str) -> Forked:
    return command(workdir.parent, "sft", TINY, f"--workdir={workdir}", *flags)


def assert_equal(ours: Path, theirs: Path, atol: float = 0.0) -> None:
    """Two files of tensors are equal."""
    ours, theirs = load_file(ours), load_file(theirs)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)


def has_step(workdir: Path, step: int) -> bool:
    return any(line["step"] >= step for line in lines(workdir))


@pytest.fixture(scope="module")
def whole(folder):
    """The folder of an uninterrupted run."""
    start(folder / "whole").finish()
    return folder / "whole"


@pytest.mark.slow
def test_a_run_writes_metrics_config_and_checkpoints(whole):
    written = lines(whole)
    losses = [line for line in written if "loss" in line]
    assert [line["step"] for line in losses] == list(range(1, 13))
    assert losses[-1]["loss"] < losses[0]["loss"] - 1
    assert {f"loss_{kind}" for kind in ("main", "topic", "length", "chunk", "sync")} <= set().union(*losses)
    assert any("held_out/loss" in line for line in written)
    probes = [line for line in written if "probe/fork_rate" in line]
    assert [line["step"] for line in probes] == [12]
    assert probes[0]["probe/well_formed"] == 1
    about = json.loads((whole / "checkpoints/12/about/metadata").read_text())
    assert about["config"]["train"]["steps"] == 12
    assert about["positions"] == {"policy": "predicted", "constant": 40}
    assert json.loads((whole / "config.json").read_text()) == about["config"]


@pytest.mark.slow
def test_a_run_killed_anywhere_stopped_and_resumed_equals_an_uninterrupted_one(folder, whole):
    """Killed at a random step, before it has saved anything; stopped by a signal, it loses nothing."""
    workdir, flag = folder / "killed", "--config.every.save=0"
    step = random.SystemRandom().randrange(2, 11)
    process = start(workdir, flag)
    process.wait(lambda: has_step(workdir, step))
    process.kill()
    assert not (workdir / "model").exists()
    for number, code, reached in ((signal.SIGINT, 130, "step 2/12"), (signal.SIGTERM, 143, "resuming from step")):
        process = start(workdir, flag)
        process.wait(lambda process=process, reached=reached: reached in process.output() + process.errors())
        process.send_signal(number)
        process.finish(code)
        assert "saved; rerun the command to resume" in process.errors()
        assert lines(workdir)[-1]["step"] < 12
    process = start(workdir)
    process.finish()
    assert "resuming from step" in process.errors()
    assert lines(workdir) == lines(whole), f"killed at step {step}"
    assert_equal(workdir / TENSORS, whole / TENSORS)


def settings_with(**changes) -> SftSettings:
    """The smallest settings with changes by dotted names, as the command's flags make them."""
    return changed(configs.sft.tiny(), **{name.replace("__", "."): value for name, value in changes.items()})


def train(workdir: Path, stop_after: int | None = None, **changes) -> sft.Result:
    """A run of the pipeline in this process, on all of its devices: as small as can be."""
    smallest = {"train__steps": 1, "data__rows": 8, "data__toy_count": 8, "data__held_out": 0}
    smallest |= {"fresh__layers": 1, "fresh__embed": 8, "fresh__ff": 8, "fresh__heads": 1, "fresh__kv_heads": 1}
    asked = itertools.count()
    return sft.run(
        settings_with(**smallest | changes), workdir, lambda: stop_after is not None and next(asked) >= stop_after
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__learning_rate": 0.5}, "was started with config.train.learning_rate 0.01, now it is 0.5"),
        ({"strip_tags": True}, "was started with config.strip_tags False, now it is True"),
        ({"train__steps": 24}, "use another workdir, or the original command"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(whole, changes, message):
    with pytest.raises(PastaError, match=message):
        sft.run(settings_with(**changes), whole, lambda: False)


def test_what_a_run_does_not_compute_may_change_and_a_setting_that_it_does_not_know_had_its_default(tmp_path):
    (tmp_path / "config.json").write_text('{"every": {"log": 1}, "adapter": {"rank": 0}, "train": {"seed": 1}}')
    now = {"every": {"log": 7}, "adapter": {"rank": 0, "dtype": "bfloat16"}, "train": {"seed": 1, "new": 3}}
    defaults = {"train": {"seed": 0, "new": 3}}
    run_config.refuse_other(tmp_path, now, defaults)
    with pytest.raises(PastaError, match=r"was started with config\.train\.new 3, now it is 4"):
        run_config.refuse_other(tmp_path, now | {"train": {"seed": 1, "new": 4}}, defaults)


def test_a_config_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(PastaError, match=r"config.json: line 1, column 3: not JSON: .*; use another workdir"):
        train(tmp_path)


def test_a_workdir_that_cannot_be_used_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "start_of", pytest.fail)
    (tmp_path / "file").write_text("")
    with pytest.raises(PastaError, match="file: is a file; choose a folder"):
        train(tmp_path / "file")
    with claim(tmp_path), pytest.raises(PastaError, match=f"in use by process {os.getpid()} on "):
        train(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__toy": ""}, "set either records="),
        ({"data__toy_seed": 0}, r"config\.data\.toy_seed 0: its problems are held out"),
        ({"data__lengths": (8,)}, "fits into 8 tokens"),
        ({"positions__policy": "late"}, "unknown position policy 'late'"),
        ({"mesh__model": 3}, "mesh .*choose data and model with this product"),
        ({"train__accumulate": 3}, r"config\.train\.accumulate 3: must divide the \d+ rows of a batch"),
        ({"data__rows": 4}, "a batch of 4 rows doesn't divide over the 8 devices of config.mesh.data"),
        ({"data__stray": 0.5, "strip_tags": True}, r"config\.data\.stray: needs chunks .*; set it to 0"),
        ({"tag_rows": "apart"}, r"config\.tag_rows=apart: .*; set --config\.adapter\.rank, or"),
        (
            {"adapter__rank": 2},
            "adapter alpha 0: its pairs would learn nothing; set alpha above 0, usually to twice the rank",
        ),
        ({"model__path": "mine"}, r"config\.fresh\.layers: starts from random weights, not from config\.model"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, changes, message):
    with pytest.raises(PastaError, match=message):
        sft.run(settings_with(**{"data__rows": 8} | changes), tmp_path, lambda: False)


def test_steps_beside_epochs_are_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "fresh_model", pytest.fail)
    with pytest.raises(PastaError, match="set either steps or epochs"):
        sft.run(settings_with(train__epochs=3), tmp_path, lambda: False)


def source(model: Path, adapter: Path | str = "", policy: str = "") -> ModelSource:
    return ModelSource(path=str(model), adapter=str(adapter), policy=policy)


OUT = "base_model.model.model.layers.0.self_attn.o_proj"
ADAPTER = {"fresh__layers": 0, "adapter__rank": 2, "adapter__alpha": 4.0}


@pytest.fixture(scope="module")
def base(folder) -> Path:
    """A model that was not trained on the tags."""
    result = train(folder / "base", strip_tags=True)
    assert read_config(result.model)[-1].positions is None
    assert (result.step, result.steps, result.metrics["loss"] > 0) == (1, 1, True)
    assert "loss_chunk" not in result.metrics
    return result.model


@pytest.fixture(scope="module")
def adapted(folder, base) -> Path:
    """The folder of an adapter that was trained with `shared_start`."""
    changes = ADAPTER | {"positions__policy": "shared_start", "adapter__dtype": "bfloat16"}
    train(folder / "adapted", model__path=str(base), train__learning_rate=0.1, **changes)
    return folder / "adapted"


@pytest.mark.slow
def test_a_trained_model_and_an_adapter_record_their_positions(tmp_path, base):
    positions = {"positions__policy": "constant", "positions__constant": 30}
    model = train(tmp_path / "model", **positions).model
    train(tmp_path / "adapter", model__path=str(base), **ADAPTER, **positions)
    adapter = tmp_path / "adapter/adapter"
    expected = Positions("constant", 30)
    assert load(source(model)).positions == expected
    assert load(source(base, adapter)).positions == expected
    assert load(source(tmp_path / "adapter/model")).positions == expected
    about = json.loads((tmp_path / "model/checkpoints/1/about/metadata").read_text())
    assert about["positions"] == dataclasses.asdict(expected)


@pytest.mark.slow
def test_training_with_positions_other_than_the_models_is_refused(tmp_path, base, adapted):
    message = "trained with positions shared_start, config.positions is predicted; set --config.positions.policy=shared"
    with pytest.raises(PastaError, match=f"adapted/model: {message}"):
        train(tmp_path, fresh__layers=0, model__path=str(adapted / "model"))
    with pytest.raises(PastaError, match=f"adapted/adapter: {message}"):
        train(tmp_path, model__path=str(base), model__adapter=str(adapted / "adapter"), **ADAPTER)
    assert list(tmp_path.iterdir()) == []
    # Without tags, positions don't matter and none are recorded.
    result = train(tmp_path, fresh__layers=0, model__path=str(adapted / "model"), strip_tags=True)
    assert load(source(result.model)).positions is None


@pytest.mark.slow
def test_an_adapter_is_trained_further(tmp_path, base, adapted):
    """At a learning rate of 0 nothing changes, so the result shows what training started from."""
    file = adapted / "adapter"
    changes = {"model__path": str(base), "model__adapter": str(file), "positions__policy": "shared_start"}
    still = train(tmp_path / "still", **ADAPTER | changes, train__learning_rate=0.0)
    before = load_file(file / WEIGHTS)
    assert np.any(before[f"{OUT}.lora_B.weight"] != 0)
    assert_equal(tmp_path / "still/adapter" / WEIGHTS, file / WEIGHTS)
    assert_equal(still.model / "model.safetensors", adapted / TENSORS)
    assert any(line.startswith("in the weights that it starts from") for line in card.read(still.model).training.data)
    train(tmp_path / "moved", **ADAPTER | changes, train__learning_rate=0.1)
    _, moved, about = load_with_adapter(source(base, tmp_path / "moved/adapter"))
    assert np.any(np.asarray(moved["layers"][0]["out"]["lora_b"]) != before[f"{OUT}.lora_B.weight"])
    assert (about.rank, about.alpha) == (2, 4.0)


def test_a_stopped_adapter_does_not_go_on_beside_other_weights(tmp_path, base):
    """Its checkpoint has the adapter alone, and what is written at the end names the base that is there then."""
    shutil.copytree(base, tmp_path / "base")
    changes = ADAPTER | {"model__path": str(tmp_path / "base"), "train__steps": 2, "every__probe": 0}
    assert train(tmp_path / "run", stop_after=1, **changes).model is None
    tensors = load_file(base / "model.safetensors")
    save_file({name: -one for name, one in tensors.items()}, tmp_path / "base/model.safetensors", {"format": "pt"})
    with pytest.raises(PastaError, match="run: was started beside other weights; use another folder, or the model"):
        train(tmp_path / "run", **changes)


@pytest.mark.slow
def test_beside_a_base_in_bfloat16_an_adapter_is_trained_as_beside_a_wide_one_and_resumed_bit_equal(tmp_path, base):
    """Of a base whose numbers bfloat16 has, scanned here and unrolled there; nothing else is written."""
    tensors = {
        name: one.astype(bfloat16).astype(np.float32) for name, one in load_file(base / "model.safetensors").items()
    }
    shutil.copytree(base, tmp_path / "base")
    save_file(tensors, tmp_path / "base/model.safetensors", {"format": "pt"})
    changes = ADAPTER | {"model__path": str(tmp_path / "base"), "train__products": "bfloat16", "train__steps": 3}
    changes |= {"mesh__data": 1, "train__learning_rate": 0.1, "every__probe": 0}
    wide = train(tmp_path / "wide", **changes)
    changes |= {"model__dtype": "bfloat16", "train__remat": True, "train__keep_products": True}
    narrow = train(tmp_path / "narrow", **changes)
    assert (wide.model.name, narrow.model) == ("model", tmp_path / "narrow/adapter")
    assert not (tmp_path / "narrow/model").exists()
    weights = f"adapter/{WEIGHTS}"
    assert np.any(load_file(tmp_path / "narrow" / weights)[f"{OUT}.lora_B.weight"] != 0)
    assert_equal(tmp_path / "narrow" / weights, tmp_path / "wide" / weights, atol=2e-3)
    assert narrow.metrics["loss"] == pytest.approx(wide.metrics["loss"], rel=1e-4)
    assert train(tmp_path / "parts", stop_after=2, **changes).model is None
    train(tmp_path / "parts", **changes)
    assert_equal(tmp_path / "parts" / weights, tmp_path / "narrow" / weights)
    assert load(source(tmp_path / "base", tmp_path / "parts/adapter"), only_decoding=True).positions is not None
    with pytest.raises(PastaError, match=r"config\.every\.probe: .* set it to 0"):
        train(tmp_path / "probed", **changes | {"every__probe": 1, "data__held_out": 1})


@pytest.mark.slow
def test_without_a_rank_the_adapter_is_merged_and_all_parameters_are_trained(tmp_path, base, adapted):
    changes = {"fresh__layers": 0, "model__path": str(base), "model__adapter": str(adapted / "adapter")}
    result = train(tmp_path, **changes, positions__policy="shared_start", train__learning_rate=0.0)
    assert not (tmp_path / "adapter").exists()
    assert_equal(result.model / "model.safetensors", adapted / TENSORS, atol=1e-6)
    base_tensors, merged = load_file(base / "model.safetensors"), load_file(adapted / TENSORS)
    assert any(np.any(base_tensors[name] != merged[name]) for name in merged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter__rank": 4}, "was created with rank 2, config.adapter.rank is 4"),
        ({"adapter__alpha": 8.0}, "was created with alpha 4.0, config.adapter.alpha is 8.0"),
        ({"adapter__alpha": 0.0}, "was created with alpha 4.0, config.adapter.alpha is 0.0"),
        ({"adapter__targets": ("qkv", "out")}, r"config.adapter.targets is \('qkv', 'out'\)"),
    ],
)
def test_adapter_settings_other_than_the_files_are_refused(tmp_path, base, adapted, changes, message):
    changes = ADAPTER | changes | {"positions__policy": "shared_start", "model__path": str(base)}
    with pytest.raises(PastaError, match=message):
        train(tmp_path, model__adapter=str(adapted / "adapter"), **changes)
