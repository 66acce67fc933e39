"""The level of the toy task that a model was trained on, as the folder of its run says; another level is refused."""

import json
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files.remote import path_of
from pasta_jax.weights.settings import ModelSource


def refuse_other_level(level: str, key: str, **models: ModelSource) -> None:
    """Refuse problems of a level that a model was not trained on: it would answer none of them.

    `key` is the config's key of the level; `models` are named by theirs. A model without its run is not checked.
    """
    for name, source in models.items():
        trained = level_of(path_of(source.path)) if source.path else ""
        if trained and trained != level:
            raise PastaError(
                f"config.{key}: {level}, but {source.path} (config.{name}.path) was trained on {trained}; "
                f"set --config.{key}={trained}, or another model"
            )


def level_of(model: Path) -> str:
    """The level in config.json of a run of launch.sft, which is named itself or by its folder model/; else empty."""
    for folder in (model.resolve().parent, model):
        try:
            run: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        data = run.get("data") if isinstance(run, dict) else None
        level = data.get("toy") if isinstance(data, dict) else None
        if isinstance(level, str) and level:
            return level
    return ""
