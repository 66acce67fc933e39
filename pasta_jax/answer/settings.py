"""The settings of launch.decode, launch.chat and launch.fill: a model, how it decodes, and how it answers."""

import dataclasses

from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.fields.settings import FillOptions
from pasta_jax.files.validated import Positive
from pasta_jax.models.settings import MeshSettings
from pasta_jax.weights.settings import ModelSource


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
    """One model that answers prompts."""

    model: ModelSource = ModelSource("smollm2_135m")
    baseline: ModelSource = ModelSource()  # --compare asks it for a sequential answer; no preset or path: `model`
    compare_passes: Positive = 3  # timed decodings of each answer, of which --compare takes the medians
    chat: bool = True  # put the prompt into the chat template; False: continue it as plain text
    question: str = ""  # asked without --prompt; empty: none
    system: str = ""  # system message; empty: the template's default
    decoding: DecodeConfig = DecodeConfig(lanes=1, rows=8, widths=(2, 4))
    request: RequestSettings = RequestSettings(max_tokens=200)
    mesh: MeshSettings = MeshSettings()
    round_steps: Positive = 4  # steps between two reads of the device while text streams


@dataclasses.dataclass(frozen=True)
class FillSettings:
    """One model that fills in the fields of a schema."""

    model: ModelSource = ModelSource("smollm2_135m")
    request: FillOptions = FillOptions()
    after: tuple[str, ...] = ()  # fields that read others first, as "summary:name year"
