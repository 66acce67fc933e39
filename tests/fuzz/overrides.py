"""The door of config overrides: --config.key=value of every config, up to the settings that a command runs with."""

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

from pasta_jax.command import configs
from pasta_jax.command.flags import parse
from pasta_jax.preference import sweep
from pasta_jax.preference.settings import SweepSettings
from pasta_jax.runs.settings import flat, read
from tests import ROOT
from tests.fuzz.mutations import DEEP, LONG, STRANGE, Mutator

WORDS = ("true", "None", "1e400", "-", "0x10", "(1,2)", "[1,", "{'a': 1}", "__import__('os')", "nan", "inf", "'")
TEXTS = {LONG: "9" * 5000, DEEP: "(" * 3000}
VARIANTS = (
    *("annotate:likelihood", "annotate:openai", "annotate:toy", "benchmark", "decode", "evaluate", "evaluate:smollm2"),
    *(
        "annotate",
        "compile_tpu",
        "judges",
        "preference",
        "serve",
        "sft",
        "sweep",
        "train_drafter",
        "train_judge",
        "verifier",
    ),
)


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
        settings = read(config, type(chosen))
        if isinstance(settings, SweepSettings):
            for values in sweep.points(settings):
                sweep.settings_of(settings.base, values, Path("sweep"))


def overrides(folder: Path) -> list[Override]:
    """One or several keys of a config set to strange values."""
    chosen = {variant: configs.load(file_of(variant))[1] for variant in VARIANTS}
    return [Override(variant, flat(configs.as_config(one).to_dict())) for variant, one in chosen.items()]


def file_of(variant: str) -> str:
    name, colon, rest = variant.partition(":")
    return f"{ROOT}/configs/{name}.py{colon}{rest}"


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
