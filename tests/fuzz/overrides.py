"""The door of config overrides: --config.key=value of every config, up to the settings that a command runs with."""

import dataclasses
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
from tests.fuzz.mutations import DEEP, LONG, STRANGE, Mutator

WORDS = ("true", "None", "1e400", "-", "0x10", "(1,2)", "[1,", "{'a': 1}", "__import__('os')", "nan", "inf", "'")
TEXTS = {LONG: "9" * 5000, DEEP: "(" * 3000}


def _sweep(config: ConfigDict) -> None:
    read = settings.read(config, sweep.Settings)
    for values in sweep.points(read):
        sweep.settings_of(read.base, values, Path("sweep"))


MODULES = {"benchmark": benchmark, "decode": decode, "evaluate": evaluate, "preference": preference_settings}
READERS = {name: functools.partial(settings.read, cls=module.Settings) for name, module in MODULES.items()}
READERS["sweep"] = _sweep
OTHERS = ("annotate", "compile_tpu", "judges", "sft", "verifier")  # their configs are the settings
VARIANTS = ("annotate:likelihood", "annotate:openai", "annotate:toy", *OTHERS, *READERS)


@dataclasses.dataclass
class Override:
    """Flags of a config in place of a file; those of no mutation are none."""

    variant: str
    values: dict[str, Any]
    flags: list[str] = dataclasses.field(default_factory=list)

    def write(self, by: Mutator | None) -> None:
        self.flags = []
        for _ in range(0 if by is None else by.choice((1, 1, 2, 4))):
            key = by.choice(list(self.values))
            self.flags.append(f"--config.{key_of(by, key)}={text_of(by, self.values[key])}")

    def read(self) -> None:
        _, chosen = configs.load(file_of(self.variant))
        _, config = parse(flags.FlagValues(), ["script", *self.flags], chosen)
        name = self.variant.partition(":")[0]
        READERS[name](config) if name in READERS else settings.read(config, type(chosen))


def overrides(folder: Path) -> list[Override]:
    """One or several keys of a config set to strange values."""
    loaded = {variant: configs.load(file_of(variant))[1] for variant in VARIANTS}
    return [
        Override(variant, keys(chosen if isinstance(chosen, ConfigDict) else configs.as_config(chosen)))
        for variant, chosen in loaded.items()
    ]


def file_of(variant: str) -> str:
    name, colon, rest = variant.partition(":")
    return f"{ROOT}/configs/{name}.py{colon}{rest}"


def keys(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def key_of(by: Mutator, key: str) -> str:
    others = (key + "x", key + ".a", key.upper(), "", key.partition(".")[0], key + "[0]", "a\nb", f"{key}[99]")
    return key if by.often(0.95) else by.choice(others)


def text_of(by: Mutator, value: Any) -> str:
    if by.often(0.2):
        return str(value)
    if isinstance(value, tuple) and by.often(0.4):
        items = [by.choice((*value, *STRANGE[:30])) for _ in range(by.choice((0, 1, 2, 3, 500)))]
        return str(tuple(TEXTS.get(item, item) for item in items))
    if isinstance(value, int | float) and by.often(0.4):
        return str(by.choice((-value, value * 10**6, value + 0.5, 2**31, 2**32, 10**10, 0, -1, float("nan"), 1e400)))
    strange = by.choice([*WORDS, *(part for part in STRANGE if part != "\ud800")])
    return str(TEXTS.get(strange, strange) if isinstance(strange, str) else strange)
