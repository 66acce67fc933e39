"""The door of config overrides: --config.key=value of every config, up to the settings that a command runs with."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from pasta_jax.answer import run as decode
from pasta_jax.benchmark import run as benchmark
from pasta_jax.command import configs
from pasta_jax.command.flags import parse
from pasta_jax.preference import settings as preference_settings
from pasta_jax.preference import sweep
from pasta_jax.runs import settings
from pasta_jax.toy import run as evaluate
from tests import ROOT
from tests.fuzz.mutations import DEEP, LONG, STRANGE, WORDS, Mutator, Unchanged
from tests.fuzz.run import Read


def _sweep(config: ConfigDict) -> None:
    read = settings.read(config, sweep.Settings)
    for values in sweep.points(read):
        sweep.settings_of(read.base, values, Path("sweep"))


READERS = {
    "sweep": _sweep,
    "preference": functools.partial(settings.read, cls=preference_settings.Settings),
    **{
        module.__name__.rpartition(".")[2]: functools.partial(settings.read, cls=module.Settings)
        for module in (benchmark, decode, evaluate)
    },
}
VARIANTS = [
    *("annotate:likelihood", "annotate:openai", "annotate:toy", "annotate", "benchmark", "compile_tpu", "decode"),
    *("evaluate", "judges", "preference", "sft", "sweep", "verifier"),
]
TEXTS = {LONG: "9" * 5000, DEEP: "(" * 3000}


def overrides(folder: Path):
    """One or several keys of a config set to strange values."""
    keys = {variant: _keys(_config(variant)) for variant in VARIANTS}

    def attempt(by: Unchanged) -> Read:
        variant = by.pick(VARIANTS)
        arguments = []
        for _ in range(by.pick((1, 1, 2, 4)) if isinstance(by, Mutator) else 0):
            key, value = by.pick(list(keys[variant].items()))
            arguments.append(f"--config.{_key(by, key)}={_text(by, value)}")

        def read() -> None:
            _, chosen = configs.load(_file(variant))
            _, config = parse(flags.FlagValues(), ["script", *arguments], chosen)
            name = variant.partition(":")[0]
            READERS[name](config) if name in READERS else settings.read(config, type(chosen))

        return read

    return attempt


def _file(variant: str) -> str:
    name, _, rest = variant.partition(":")
    return f"{ROOT}/configs/{name}.py" + (f":{rest}" if rest else "")


def _config(variant: str) -> ConfigDict:
    _, chosen = configs.load(_file(variant))
    return chosen if isinstance(chosen, ConfigDict) else configs.as_config(chosen)


def _keys(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _key(by: Mutator, key: str) -> str:
    if by.rng.random() < 0.95:
        return key
    return by.pick((key + "x", key + ".a", key.upper(), "", key.partition(".")[0], key + "[0]", "a\nb", f"{key}[99]"))


def _text(by: Mutator, value: Any) -> str:
    if by.rng.random() < 0.25:
        return str(value)
    if isinstance(value, tuple) and by.rng.random() < 0.4:
        items = [by.pick((*value, *STRANGE[:30])) for _ in range(by.pick((0, 1, 2, 3, 500)))]
        return str(tuple(TEXTS.get(item, item) for item in items))
    if isinstance(value, int | float) and by.rng.random() < 0.4:
        return str(
            by.pick((-value, value * 10**6, value + 0.5, 2**31, 2**32, 10**10, 10**9, 0, -1, float("nan"), 1e400))
        )
    if by.rng.random() < 0.2:
        return by.pick(WORDS)
    strange = by.pick([part for part in STRANGE if part != "\ud800"])
    return str(TEXTS.get(strange, strange)) if isinstance(strange, str | int) else str(strange)
