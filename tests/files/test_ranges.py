"""Config values beyond their ranges are refused by their key; what no machine can hold is refused before it is made."""

import jax
import numpy as np
import pytest

from pasta_jax.command.configs import load
from pasta_jax.device import devices
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed
from tests import ROOT


@pytest.mark.parametrize(
    ("variant", "key", "value", "message"),
    [
        ("decode", "round_steps", 0, "`int` >= 1"),
        ("decode", "decoding.widths", None, "expected `array`, got `null`"),
        ("decode", "decoding.widths", (0,), "`int` >= 1"),
        ("decode", "decoding.lanes", 0, "`int` >= 1"),
        ("decode", "decoding.rows", 0, "`int` >= 1"),
        ("decode", "decoding.slots", 100_000_000, "`int` <= 1048576"),
        ("decode", "model.constant", 10_000_000_000, "`int` <= 1048576"),
        ("decode", "request.max_tokens", 2**31, "`int` <= 2147483647"),
        ("sft", "data.lengths", (2, "a"), r"expected `int`, got `str`"),
        ("sft", "adapter.rank", 2**31, "`int` <= 4096"),
        ("sft", "adapter.targets", ("qkv", "head"), "unknown value 'head'; choose from qkv, out, gate_up, down"),
        ("sft", "train.learning_rate", float("nan"), "`float` >= 0.0"),
        ("sft", "train.b1", 1.0, "`float` < 1.0"),
        ("sft", "train.clip", 0.0, "`float` > 0.0"),
        ("sft", "train.accumulate", 0, "`int` >= 1"),
        ("sft", "positions.constant", -1, "`int` >= 0"),
        ("preference", "loss.loss", "kto", "unknown value 'kto'; choose from bonbon, dpo, ipo"),
        ("preference", "loss.alpha", 2.0, "`float` <= 1.0"),
        ("preference", "loss.beta", 0.0, "`float` > 0.0"),
        ("preference", "sample.temperature", float("inf"), "`float` <= 1e[+]30"),
        ("annotate:toy", "toy.count", 1_000_000_000, "`int` <= 262144"),
        ("annotate:openai", "endpoint.timeout_s", 0.0, "`float` > 0.0"),
    ],
)
def test_values_beyond_their_range_are_refused_by_key(variant, key, value, message):
    name, _, rest = variant.partition(":")
    _, settings = load(f"{ROOT}/configs/{name}.py:{rest}")
    with pytest.raises(PastaError, match=rf"^config\.{key}(\[\d\])?: .*{message}"):
        changed(settings, **{key: value})


def test_what_does_not_fit_into_memory_is_refused(monkeypatch):
    shapes = {"a": jax.ShapeDtypeStruct((1 << 15, 1 << 15), np.float32)}
    monkeypatch.setattr(devices, "bytes_of", lambda _: 16 << 30)
    devices.require(shapes, "it", "lower it", copies=4)
    with pytest.raises(PastaError, match=r"^it: 20\.0 GiB, there are 16\.0; lower it$"):
        devices.require(shapes, "it", "lower it", copies=5)
    monkeypatch.setattr(devices, "bytes_of", lambda _: 0)
    devices.require(shapes, "it", "lower it", copies=5)
