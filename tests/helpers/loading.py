"""A model as it is read and then laid out, in one call."""

import dataclasses

from jax.typing import DTypeLike

from pasta_jax.weights.load import read_model
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.prepare import decodes_codes, on_device


def load_model(
    preset: str, path: str, dtype: DTypeLike | None = None, stacked: bool | None = None, only_decoding: bool = False
) -> Model:
    """`read_model`, then `on_device`."""
    model = read_model(preset, path, blocks=dtype == BLOCKS and decodes_codes(BLOCKS, only_decoding))
    params = on_device(model.params, None if dtype == BLOCKS else dtype, stacked, only_decoding)
    return dataclasses.replace(model, params=params)
