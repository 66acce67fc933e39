"""Checkpoints: bit-equal on any mesh, whole or absent; damage and files of other tools are refused."""

import dataclasses
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.models.config import PRESETS
from pasta_jax.models.sharding import make_mesh, shard, shardings
from pasta_jax.runs.checkpoint import FORMAT, METADATA, Checkpoints, bit_sums, provenance
from pasta_jax.train.optimizer import new_optimizer
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.train.state import new_state
from tests.helpers.models import random_params

ABOUT = provenance({"steps": 3}, "a fingerprint", None)
OPTIMIZER = new_optimizer(TrainingSettings(learning_rate=0.1, weight_decay=0.5), steps=3)


def state_of(seed: int, stacked: bool = False):
    """A state with something in every moment."""
    params = jax.device_put(random_params(PRESETS["toy"], seed, stacked=stacked))
    state = new_state(params, OPTIMIZER, seed=7)
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype) if leaf.ndim else leaf + 3, state
    )


def opened(folder, keep: int = 2, keep_every: int = 0) -> Checkpoints:
    return Checkpoints(folder, ABOUT, keep, keep_every)


def saved(folder, state, *steps: int) -> None:
    checkpoints = opened(folder)
    for step in steps or (3,):
        checkpoints.save(step, state)
    checkpoints.wait()
    checkpoints.close()


def same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [True, False])
def test_a_checkpoint_moves_from_one_device_to_eight_and_back(tmp_path, stacked):
    state = state_of(0, stacked)
    saved(tmp_path / "one", state)
    mesh = make_mesh(2, 4)
    shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state, shardings(state, mesh)
    )
    checkpoints = opened(tmp_path / "one")
    on_eight = checkpoints.restore(checkpoints.latest(), shapes)
    same(on_eight, state)
    gate = on_eight.trainable["layers"]["gate_up"] if stacked else on_eight.trainable["layers"][0]["gate_up"]
    assert len(gate["kernel"].sharding.device_set) == 8
    saved(tmp_path / "eight", on_eight)
    back = opened(tmp_path / "eight").restore(3, state)
    same(back, state)
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(back))


def test_sums_are_the_same_on_every_mesh_and_detect_one_bit():
    state = state_of(1)
    on_eight = shard(state, make_mesh(2, 4))
    assert jax.device_get(bit_sums(on_eight)) == jax.device_get(bit_sums(state))
    embed = np.array(state.trainable["embed"])
    embed.view(np.uint32)[5, 7] ^= 1
    changed = bit_sums(state.trainable | {"embed": embed})
    assert int(changed["embed"]) != int(bit_sums(state.trainable)["embed"])


def test_a_checkpoint_records_its_provenance(tmp_path):
    saved(tmp_path, state_of(0))
    about = opened(tmp_path).about(3)
    assert about["config"] == {"steps": 3}
    assert about["data"] == "a fingerprint"
    assert about["positions"] is None
    assert about["packages"]["jax"] == jax.__version__
    assert about["git"] == ABOUT["git"]
    assert about["git"] == "unknown" or len(about["git"].removesuffix("+changes")) == 40
    assert about["format"] == FORMAT


def test_old_checkpoints_are_deleted_and_every_nth_is_kept(tmp_path):
    checkpoints = opened(tmp_path, keep=2, keep_every=4)
    for step in range(1, 8):
        checkpoints.save(step, {"a": jnp.float32(step)})
    checkpoints.wait()
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [4, 6, 7]
    assert float(checkpoints.restore(4, {"a": jnp.float32(0)})["a"]) == 4
    checkpoints.close()


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    state = state_of(0)
    saved(tmp_path, state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, size - 1))
    with pytest.raises(PastaError, match=r"a checkpoint takes .* are free"):
        saved(tmp_path, state, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3"]


def test_a_half_written_step_is_ignored(tmp_path):
    """A kill in the middle of writing leaves a folder without its final name."""
    saved(tmp_path, state_of(0), 1, 2)
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    shutil.rmtree(tmp_path / "2.orbax-checkpoint-tmp" / "about")
    (tmp_path / "2.orbax-checkpoint-tmp" / METADATA).write_text("")
    checkpoints = opened(tmp_path)
    assert checkpoints.latest() == 1
    same(checkpoints.restore(1, state_of(3)), state_of(0))
    saved(tmp_path, state_of(0), 2)  # it can be written again
    assert opened(tmp_path).latest() == 2


@pytest.mark.slow
def test_truncated_and_missing_files_are_named(tmp_path):
    saved(tmp_path / "whole", state_of(0))
    sizes = json.loads((tmp_path / "whole/3/sizes").read_text())
    files = [tmp_path / "whole/3" / name for name in sizes]
    largest = max(
        (path for path in (tmp_path / "whole/3").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    assert largest in files
    assert len(files) > 5
    for number, file in enumerate(files):
        place = tmp_path / f"cut{number}"
        shutil.copytree(tmp_path / "whole", place)
        cut = place / file.relative_to(tmp_path / "whole")
        if number % 2:
            cut.unlink()
        else:
            cut.write_bytes(cut.read_bytes()[: file.stat().st_size // 2])
        name = re.escape(str(file.relative_to(tmp_path / "whole/3")))
        with pytest.raises(PastaError, match=f"cut{number}/3: not a complete checkpoint .{name} .*delete that folder"):
            opened(place).restore(3, state_of(0))


def test_a_changed_bit_is_detected(tmp_path):
    """The arrays were written completely, but are not those whose sums were recorded."""
    state = state_of(0)
    saved(tmp_path / "a", state)
    trainable = state.trainable | {"embed": state.trainable["embed"].at[0, 0].add(1.0)}
    saved(tmp_path / "b", dataclasses.replace(state, trainable=trainable))
    shutil.rmtree(tmp_path / "a/3/state")
    shutil.copytree(tmp_path / "b/3/state", tmp_path / "a/3/state")
    (tmp_path / "a/3/sizes").write_text("{}")
    with pytest.raises(PastaError, match=r"a/3: trainable.embed differs from what was saved"):
        opened(tmp_path / "a").restore(3, state)


def test_other_content_of_the_same_size_and_checkpoints_of_other_tools_are_refused(tmp_path):
    saved(tmp_path / "ours", state_of(0))
    path = tmp_path / "ours/3/state/_METADATA"
    path.write_bytes(b" " * path.stat().st_size)
    with pytest.raises(PastaError, match=r"3: not a complete checkpoint .*delete that folder"):
        opened(tmp_path / "ours").restore(3, state_of(0))
    (tmp_path / "ours/3/sizes").write_text("{}")
    (tmp_path / "ours/3/about/metadata").write_text(json.dumps({"format": "another"}))
    (tmp_path / "foreign/5").mkdir(parents=True)
    (tmp_path / "foreign/5/weights.bin").write_bytes(b"x")
    for place, step in (("ours", 3), ("foreign", 5)):
        with pytest.raises(PastaError, match=f"{place}/{step}: not a pasta_jax checkpoint"):
            opened(tmp_path / place).restore(step, state_of(0))


def test_another_models_checkpoint_is_refused_by_the_first_leaf_that_differs(tmp_path):
    saved(tmp_path, {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))})
    checkpoints = opened(tmp_path)
    with pytest.raises(PastaError, match=r"3: b is float32\[2, 2\] there and float32\[2, 3\] here"):
        checkpoints.restore(3, {"a": jnp.zeros(3), "b": jnp.zeros((2, 3))})
    with pytest.raises(PastaError, match=r"3: b is float32\[2, 2\] there and missing here"):
        checkpoints.restore(3, {"a": jnp.zeros(3)})
    with pytest.raises(PastaError, match=r"3: a is float32\[3\] there and bfloat16\[3\] here"):
        checkpoints.restore(3, {"a": jnp.zeros(3, jnp.bfloat16), "b": jnp.zeros((2, 2))})
