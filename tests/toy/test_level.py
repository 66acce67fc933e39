"""The level of the toy task that a model was trained on: read from its run, refused where it differs."""

import json

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.toy.level import level_of, refuse_other_level
from pasta_jax.weights.settings import ModelSource


def source(path) -> ModelSource:
    return ModelSource(path=str(path))


def test_another_level_is_refused_with_the_flag_to_set(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"data": {"toy": "medium"}}))
    baseline = source(tmp_path / "model")
    refuse_other_level("medium", "level", model=source(""), baseline=baseline)
    with pytest.raises(PastaError) as refused:
        refuse_other_level("small", "level", model=source(""), baseline=baseline)
    assert str(refused.value) == (
        f"config.level: small, but {tmp_path}/model (config.baseline.path) was trained on medium; "
        "set --config.level=medium, or another model"
    )


def test_a_run_may_be_named_by_its_own_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"data": {"toy": "small"}}))
    with pytest.raises(PastaError, match="was trained on small"):
        refuse_other_level("medium", "level", model=source(tmp_path / "run"))


@pytest.mark.parametrize("text", [None, "{", "[]", '{"data": []}', '{"data": {"toy": 3}}', '{"data": {"toy": ""}}'])
def test_a_model_without_its_run_is_not_checked(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert level_of(tmp_path / "model") == ""
    refuse_other_level("small", "level", model=source(tmp_path / "model"))
