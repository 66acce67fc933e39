"""The settings of launch.evaluate on the toy task."""

import dataclasses
from typing import Literal

from pasta_jax.decode.settings import AnswerSettings, DecodeConfig
from pasta_jax.files.validated import Count, Records, RecordsOrNone
from pasta_jax.models.settings import MeshSettings
from pasta_jax.weights.settings import ModelSource


@dataclasses.dataclass(frozen=True)
class ToyEvaluationSettings:
    """A model and its baseline on held-out problems."""

    model: ModelSource = ModelSource()
    baseline: ModelSource = ModelSource()
    level: Literal["small", "medium", "large"] = "medium"  # the level that the models were trained on
    problems: Records = 256
    start: Count = 0  # number of the first problem
    ablation: RecordsOrNone = 32  # problems with ends to decode with each rule broken; 0: none
    decoding: DecodeConfig = DecodeConfig(lanes=32, rows=9)  # one width: compiling more costs more than they save
    request: AnswerSettings = AnswerSettings(max_tokens=600)
    mesh: MeshSettings = MeshSettings()
