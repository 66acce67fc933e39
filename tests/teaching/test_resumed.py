"""A run of teaching goes on with the model that it was started with."""

from types import SimpleNamespace

import pytest

import configs.teach
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed
from pasta_jax.teaching import run
from pasta_jax.teaching.prompts import Prompts


def test_another_model_at_the_same_path_is_refused_where_a_stage_is_left(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    weights, workdir, performed = tmp_path / "mine/model.safetensors", tmp_path / "run", []
    weights.write_bytes(b"first")
    left = SimpleNamespace(name="training", done=workdir / "done", command="python -m launch.sft")
    monkeypatch.setattr(run, "stages", lambda *_: [left])
    monkeypatch.setattr(run, "refuse_untrainable", lambda _: None)
    monkeypatch.setattr(run, "choose_prompts", lambda _: Prompts(["a"], ["b"], {}))
    monkeypatch.setattr(run, "perform", lambda *_: performed.append(1))
    settings = changed(configs.teach.tiny(), **{"model.path": str(tmp_path / "mine")})
    for _ in range(2):
        assert run.run(settings, workdir) is None
    weights.write_bytes(b"other")
    with pytest.raises(PastaError, match=r"mine: .*run was started with another model there; use another workdir"):
        run.run(settings, workdir)
    assert len(performed) == 2
    left.done.touch()
    assert run.run(settings, workdir) == workdir / "sft/adapter"
