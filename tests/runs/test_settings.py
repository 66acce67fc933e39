"""Config values become typed dataclasses; invalid values are refused in one line that names the key."""

import dataclasses
from typing import Annotated, Literal

import msgspec
import pytest
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError
from pasta_jax.runs import settings
from pasta_jax.runs.settings import changed


@dataclasses.dataclass(frozen=True)
class Score:
    mode: Literal["sum", "mean"] = "sum"
    weight: Annotated[float, msgspec.Meta(gt=0)] = 0.5


@dataclasses.dataclass(frozen=True)
class Run:
    steps: Annotated[int, msgspec.Meta(ge=1)]
    lengths: tuple[int, ...] = (1, 2)
    score: Score = Score()
    judge: Score | None = None
    scores: tuple[Score, ...] = ()
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    order: Literal["both", None] = None


SCORE = {"mode": "mean", "weight": 2}
READ = Run(3, (4, 5), Score("mean", 2.0), Score("mean", 2.0), (Score("mean", 2.0), Score()), {"a": "b"}, "both")
GIVEN = {"steps": 3, "lengths": (4, 5), "score": SCORE, "judge": SCORE, "scores": (SCORE, {}), "names": {"a": "b"}}


def test_a_config_becomes_its_dataclass():
    given = GIVEN | {"order": "both"}
    assert settings.read(given, Run) == settings.read(ConfigDict(given).lock(), Run) == READ
    assert settings.read({"steps": 3, "lengths": [1, 2]}, Run) == Run(3)
    assert settings.read({"weight": float("inf")}, Score).weight == float("inf")


def test_changed_settings_keep_all_other_values():
    run = changed(READ, steps=9, score={"weight": 3}, **{"judge.mode": "sum"})
    assert run == dataclasses.replace(READ, steps=9, score=Score("mean", 3.0), judge=Score("sum", 2.0))
    assert changed(Run(3), score=Score("mean"), judge=Score()) == Run(3, score=Score("mean"), judge=Score())
    assert changed(READ, judge=None, scores=()) == dataclasses.replace(READ, judge=None, scores=())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "3"}, r"steps: expected `int`, got `str`"),
        ({"steps": True}, r"steps: expected `int`, got `bool`"),
        ({"steps": 0}, r"steps: expected `int` >= 1"),
        ({"lengths": 5}, r"lengths: expected `array`"),
        ({"lengths": (1, "2")}, r"lengths\[1\]: expected `int`"),
        ({"names": {"a": 1}}, r"names\[\.\.\.\]: expected `str`"),
        ({"order": "one"}, r"order: unknown value 'one'; choose from both, None"),
        ({"score": 1}, r"score: expected `object`"),
        ({"score": {"weight": -1}}, r"score\.weight: expected `float` > 0"),
        ({"judge": {"mode": "max"}}, r"judge\.mode: unknown value 'max'; choose from sum, mean"),
        ({"scores": [{}, {"mode": "x"}]}, r"scores\[1\]\.mode: unknown value 'x'; choose from sum, mean"),
        ({"stepz": 4}, r"stepz: unknown key; known keys are steps, lengths, score, judge, scores, names, order"),
        ({"score.w": 1}, r"score\.w: unknown key; known keys are mode, weight"),
        ({"steps.w": 1}, r"steps: expected `int`"),
        ({"judge": {"w": 1}}, r"judge\.w: unknown key"),
        ({"scores": [{}, {"w": 1}]}, r"scores\[1\]\.w: unknown key"),
    ],
)
def test_invalid_values_are_refused_with_their_key(change, message):
    with pytest.raises(PastaError, match=rf"^config\.base\.{message}"):
        changed(Run(3), "config.base", **change)


def test_a_missing_key_is_named():
    with pytest.raises(PastaError, match=r"^config\.steps: missing; set it in the config file$"):
        settings.read({}, Run)
