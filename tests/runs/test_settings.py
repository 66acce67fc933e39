"""Config values become typed dataclasses; invalid values are refused in one line that names the key."""

import dataclasses
from typing import Annotated, Literal

import msgspec
import pytest
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError
from pasta_jax.runs import settings


@dataclasses.dataclass(frozen=True)
class Score:
    mode: Literal["sum", "mean"]
    weight: Annotated[float, msgspec.Meta(gt=0)]


@dataclasses.dataclass(frozen=True)
class Run:
    steps: Annotated[int, msgspec.Meta(ge=1)]
    lengths: tuple[int, ...]
    score: Score
    judge: Score | None
    scores: tuple[Score, ...]
    names: dict[str, str]
    order: Literal["both", None]


SCORE = {"mode": "sum", "weight": 0.5}
GOOD = {
    "steps": 3,
    "lengths": (1, 2),
    "score": SCORE,
    "judge": None,
    "scores": (),
    "names": {"a": "b"},
    "order": None,
}


def test_a_config_becomes_its_dataclass():
    expected = Run(3, (1, 2), Score("sum", 0.5), None, (), {"a": "b"}, None)
    assert settings.read(GOOD, Run) == expected
    assert settings.read(ConfigDict(GOOD), Run) == expected
    assert settings.read(ConfigDict(GOOD).lock(), Run) == expected
    assert settings.read(ConfigDict(GOOD | {"lengths": [1, 2]}), Run) == expected
    nested = settings.read(GOOD | {"judge": SCORE, "scores": [SCORE, SCORE]}, Run)
    assert nested == dataclasses.replace(expected, judge=Score("sum", 0.5), scores=(Score("sum", 0.5),) * 2)


def test_whole_numbers_and_infinity_are_floats():
    assert settings.read({"mode": "sum", "weight": 2}, Score).weight == 2.0
    assert settings.read({"mode": "sum", "weight": float("inf")}, Score).weight == float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "3"}, "config.steps: expected `int`, got `str`"),
        ({"steps": 3.5}, "config.steps: expected `int`, got `float`"),
        ({"steps": True}, "config.steps: expected `int`, got `bool`"),
        ({"steps": None}, "config.steps: expected `int`, got `null`"),
        ({"steps": 0}, "config.steps: expected `int` >= 1"),
        ({"lengths": 5}, "config.lengths: expected `array`, got `int`"),
        ({"lengths": (1, "2")}, "config.lengths[1]: expected `int`, got `str`"),
        ({"names": {"a": 1}}, "config.names[...]: expected `str`, got `int`"),
        ({"order": "one"}, "config.order: unknown value 'one'; choose from both, None"),
        ({"score": 1}, "config.score: expected `object`, got `int`"),
        ({"score": SCORE | {"weight": -1}}, "config.score.weight: expected `float` > 0.0"),
        ({"score": SCORE | {"mode": "max"}}, "config.score.mode: unknown value 'max'; choose from sum, mean"),
        ({"judge": SCORE | {"mode": "max"}}, "config.judge.mode: unknown value 'max'; choose from sum, mean"),
        ({"scores": [SCORE, SCORE | {"mode": "x"}]}, "config.scores[1].mode: unknown value 'x'; choose from sum, mean"),
        ({"score": {"mode": "sum"}}, "config.score.weight: missing; set it in the config file"),
        (
            {"stepz": 4},
            "config.stepz: unknown key; known keys are steps, lengths, score, judge, scores, names, order",
        ),
        ({"score": SCORE | {"w": 1}}, "config.score.w: unknown key; known keys are mode, weight"),
        ({"judge": SCORE | {"w": 1}}, "config.judge.w: unknown key; known keys are mode, weight"),
        ({"scores": [SCORE, SCORE | {"w": 1}]}, "config.scores[1].w: unknown key; known keys are mode, weight"),
    ],
)
def test_invalid_values_are_refused_with_their_key(change, message):
    with pytest.raises(PastaError) as error:
        settings.read(ConfigDict(GOOD | change), Run)
    assert str(error.value) == message


def test_a_missing_key_and_the_name_in_front():
    with pytest.raises(PastaError) as error:
        settings.read({key: value for key, value in GOOD.items() if key != "steps"}, Run, "config.base")
    assert str(error.value) == "config.base.steps: missing; set it in the config file"
