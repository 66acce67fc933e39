"""Cards of written models and adapters: a README.md for people and hubs, and card.json, from which it can be completed.

card.write(folder, dataclasses.replace(card.read(folder), figures={"fork rate": 0.71}))
"""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any, Literal

import msgspec

from pasta_jax.files.atomic import write_json, write_whole
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import NUM_TAGS

README, FIELDS = "README.md", "card.json"
# (repository, license) of the presets that a hub has.
HUB = {
    "smollm2_135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
    "gemma3_270m": ("google/gemma-3-270m", "gemma"),
    "qwen2_5_coder_1_5b": ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "apache-2.0"),
    "gemma_2b": ("google/gemma-2b", "gemma"),
    "gemma_7b": ("google/gemma-7b", "gemma"),
}
# In a line of `Training.data`, which the base's license doesn't cover: of no license (data/sources.py), or another.
NOT_COVERED = ("no license is stated", "its terms are not recorded", "CC BY-NC")
ELSEWHERE = (
    "Other tools decode it sequentially: the tags are tokens like any other there, and nothing forks. Only pasta_jax "
    "decodes chunks in parallel, with the positions and the visibility that it was trained with."
)
CHECK_TERMS = (
    "The license is `other`: its base's does not cover all data that it was trained on; check the terms above."
)
LIMITS = ("It was not trained to refuse harmful requests beyond what its base does, and its facts are its base's.",)


@dataclasses.dataclass(frozen=True)
class Training:
    """How something was trained: what a reader needs to judge it and to train it again."""

    command: str  # empty: not run from a command line
    seed: int
    data: tuple[str, ...]  # each set with its origin and terms
    settings: dict[str, Any]  # all of the run
    revision: str  # of the code


@dataclasses.dataclass(frozen=True)
class Card:
    """What is said about a written model or adapter."""

    kind: Literal["model", "adapter", "judge"]
    base: str  # the model's own name, or that of the model below the adapter, or that a judge was trained from
    positions: Positions | None  # None: not trained on the tags
    tags_base: int  # id of the first tag
    training: Training | None = None  # None: not trained here
    figures: dict[str, float | str] = dataclasses.field(default_factory=dict)  # measured, by name
    limits: tuple[str, ...] = LIMITS
    source: str = ""  # the base's path, or its id on the Hub; empty: a package

    @property
    def base_for_peft(self) -> str:
        """The base as `transformers` finds it: an id on the Hub, or a folder; for a GGUF file, its name."""
        is_folder = self.source and not self.source.endswith(".gguf")
        return HUB[self.base][0] if self.base in HUB else self.source if is_folder else self.base


def plain(settings: Any) -> dict[str, Any]:
    """A dataclass's fields for `Training.settings`: infinity as text, files below the current folder without it."""
    here = json.dumps(f"{Path.cwd()}/")[1:-1]
    return json.loads(json.dumps(dataclasses.asdict(settings)).replace(f'"{here}', '"'), parse_constant=str)


def write(folder: Path, card: Card) -> None:
    """Write the card in both forms."""
    write_whole(folder / README, text(card))
    write_json(folder / FIELDS, msgspec.to_builtins(card))


def read(folder: Path) -> Card:
    """The card that `write` wrote."""
    path = folder / FIELDS
    return read_json(path, Card, most=16 * MIB, fix="choose a folder of an exported model or adapter")


def text(card: Card) -> str:
    """README.md, with the header that hubs read."""
    hub, license = HUB.get(card.base, ("" if Path(card.source).is_absolute() else card.source, ""))
    is_open = not card.training or not any(words in line for line in card.training.data for words in NOT_COVERED)
    header = {
        "base_model": hub,
        "license": license if is_open else "other",
        "library_name": "peft" if card.kind == "adapter" else "transformers",
    }
    lines = ["---", *(f"{name}: {value}" for name, value in header.items() if value), "tags:", "- pasta", "---", ""]
    what = {"model": "Model", "adapter": "LoRA adapter for", "judge": "Reward model, from"}[card.kind]
    lines += [f"# {what} `{card.base}`", "", _nature(card), "", "## Use", "", _use(card)]
    if card.training is not None:
        lines += ["## Training", "", *_training(card.training)]
    if card.figures:
        figures = ((k, v if isinstance(v, str) else f"{v:.4g}") for k, v in card.figures.items())
        lines += ["## Figures", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in figures), ""]
    limits = card.limits if card.positions is None else (ELSEWHERE, *card.limits)
    limits = limits if is_open else (*limits, CHECK_TERMS)
    lines += ["## Limits", "", *(f"- {limit}" for limit in limits)]
    return "\n".join(lines) + "\n"


def _nature(card: Card) -> str:
    if card.kind == "judge":
        return "It gives a question with its answer one number, which is higher for a better answer."
    if card.positions is None:
        return "It was not trained on PASTA's tags, so it answers sequentially."
    return (
        "It writes PASTA-LANG (arXiv 2502.11517): promises announce chunks that are decoded in parallel.\n"
        f"The {NUM_TAGS} tags are the ids from {card.tags_base}; its position policy is `{card.positions}`."
    )


def _use(card: Card) -> str:
    if card.kind == "judge":
        return "```\npython -m launch.judges --config=configs/judges.py:reward --config.reward.model=FOLDER\n```\n"
    if card.kind == "model":
        command = "python -m launch.decode --config=configs/decode.py:local --config.model.path=FOLDER --prompt='Hi!'"
        theirs = "`transformers` loads the folder as any other: model, tokenizer and chat template."
        return f"```\n{command}\n```\n\n{theirs}\n"
    base = f"local --config.model.path={shlex.quote(card.source)}" if card.source else card.base
    return f"""```
python -m launch.decode --config=configs/decode.py:{base} --config.model.adapter=FOLDER --prompt='Hi!'
```

`peft` loads the same weights in `transformers`, on a model with rows for the tags. Logits are equal on the copy of the
base that the adapter was trained on, and close on others; a package's copy may have 4-bit weights.

```python
model = AutoModelForCausalLM.from_pretrained({json.dumps(card.base_for_peft)})
if model.config.vocab_size < {card.tags_base + NUM_TAGS}:
    model.resize_token_embeddings({card.tags_base + NUM_TAGS}, mean_resizing=False)
model = PeftModel.from_pretrained(model, FOLDER)
```
"""


def _training(training: Training) -> list[str]:
    command = ["```", training.command, "```", ""] if training.command else []
    data = [f"- {line}" for line in training.data]
    settings = json.dumps(training.settings, indent=1, ensure_ascii=False)
    return [
        *command,
        f"Seed {training.seed}; code at revision `{training.revision}`. Data:",
        "",
        *data,
        "",
        "All settings:",
        "",
        "```json",
        settings,
        "```",
        "",
    ]
