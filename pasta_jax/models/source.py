"""Where a model comes from, as configs name it: weights, an adapter, and the positions it was trained with."""

import dataclasses

from pasta_jax.models.weights import Model, load_model


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """The fields of configs/common.py::model."""

    preset: str  # a known architecture; empty: whatever `path` holds
    path: str  # GGUF file or Hugging Face folder; empty: the weights that a package ships
    adapter: str  # adapter file; empty: none
    policy: str  # position policy; empty: the model's own
    constant: int  # of the policy `constant`


def load(source: ModelSource, dtype=None, stacked: bool | None = None, only_decoding: bool = False) -> Model:
    """The model, its adapter merged."""
    return load_model(source.preset, source.path, dtype, stacked, only_decoding)
