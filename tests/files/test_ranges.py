"""Config values beyond their ranges are refused by their key; what no machine can hold is refused before it is made."""

import functools
import importlib

import jax
import numpy as np
import pytest

from pasta_jax.answer import run as decode
from pasta_jax.command.configs import load
from pasta_jax.device import devices
from pasta_jax.errors import PastaError
from pasta_jax.preference import settings as preference_settings
from pasta_jax.runs import settings
from tests import ROOT

READ = {
    "decode": functools.partial(settings.read, cls=decode.Settings),
    "preference": functools.partial(settings.read, cls=preference_settings.Settings),
}


@pytest.mark.parametrize(
    ("variant", "key", "value", "message"),
    [
        ("decode", "round_steps", 0, "`int` >= 1"),
        ("decode", "decoding.widths", None, "expected `array`, got `null`"),
        ("decode", "decoding.slots", 100_000_000, "`int` <= 1048576"),
        ("decode", "model.constant", 10_000_000_000, "`int` <= 1048576"),
        ("decode", "request.max_tokens", 2**31, "`int` <= 2147483647"),
        ("sft", "data.lengths", (2, "a"), r"expected `int`, got `str`"),
        ("sft", "adapter.rank", 2**31, "`int` <= 4096"),
        ("sft", "adapter.targets", ("qkv", "head"), "unknown value 'head'; choose from qkv, out, gate_up, down"),
        ("sft", "train.learning_rate", float("nan"), "`float` >= 0.0"),
        ("sft", "train.b1", 1.0, "`float` < 1.0"),
        ("sft", "positions.constant", -1, "`int` >= 0"),
        ("preference", "sample.temperature", float("inf"), "`float` <= 1e[+]30"),
        ("annotate:toy", "toy.count", 1_000_000_000, "`int` <= 262144"),
        ("annotate:openai", "endpoint.timeout_s", 0.0, "`float` > 0.0"),
    ],
)
def test_values_beyond_their_range_are_refused_by_key(variant, key, value, message):
    name, _, rest = variant.partition(":")
    if name in ("sft", "annotate"):
        with pytest.raises(PastaError, match=rf"^config\.{key}(\[\d\])?: .*{message}"):
            settings.changed(load(f"{ROOT}/configs/{name}.py:{rest}")[1], **{key: value})
        return
    config = importlib.import_module(f"configs.{name}").get_config(*filter(None, [rest]))
    READ[name](config)
    *parents, last = key.split(".")
    functools.reduce(lambda part, name: part[name], parents, config).update({last: value})
    with pytest.raises(PastaError, match=rf"^config\.{key}(\[\d\])?: .*{message}"):
        READ[name](config)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch):
    shapes = {"a": jax.ShapeDtypeStruct((1 << 15, 1 << 15), np.float32)}
    monkeypatch.setattr(devices, "total_bytes", lambda: 16 << 30)
    devices.require(shapes, "it", "lower it", copies=4)
    with pytest.raises(PastaError, match=r"^it: 20\.0 GiB, this machine has 16\.0; lower it$"):
        devices.require(shapes, "it", "lower it", copies=5)
    monkeypatch.setattr(devices, "total_bytes", lambda: 0)
    devices.require(shapes, "it", "lower it", copies=5)
