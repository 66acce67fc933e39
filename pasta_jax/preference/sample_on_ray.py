"""Answers sampled by the workers of a Ray cluster, which read the model from the folder of artifacts."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pasta_jax.data.pairs import Pair
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.models.settings import MeshSettings
from pasta_jax.preference.candidates import Candidate, sample
from pasta_jax.preference.stage import Stage
from pasta_jax.runs.ray import together
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import of_worker

ROUNDS = 2  # a worker gets prompts with about so many answers for each of its lanes at a time
READY = "ready"  # an empty file beside a model that is written


@dataclasses.dataclass(frozen=True)
class PromptShare:
    """Prompts for a worker by their number, and how it answers them."""

    source: ModelSource
    mesh: MeshSettings
    prompts: Mapping[int, Pair]
    count: int
    config: DecodeConfig
    template: Request


def write_for_workers(stage: Stage, model: Model, fingerprint: str) -> None:
    """Write a model that workers will sample from, unless it is there or this process samples."""
    folder = _folder(stage, fingerprint)
    if stage.settings.executor == "ray" and not (folder / READY).exists():
        export_model(model, folder)
        (folder / READY).touch()


def on_workers(
    stage: Stage, fingerprint: str, prompts: Mapping[int, Pair], count: int, config: DecodeConfig, template: Request
) -> Iterator[tuple[int, list[Candidate]]]:
    """(number of a prompt, its `count` answers) as workers finish them."""
    path = str(_folder(stage, fingerprint))
    source = dataclasses.replace(
        stage.settings.model, preset="", path=path, adapter="", policy="", dtype="platform", kernel=True
    )
    size, numbers = max(1, ROUNDS * config.lanes // count), list(prompts)
    parts = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    shares = [
        PromptShare(source, stage.settings.mesh, {number: prompts[number] for number in part}, count, config, template)
        for part in parts
    ]
    yield from together(stage.settings.ray, answers_to, shares)


def answers_to(share: PromptShare) -> Sequence[tuple[int, list[Candidate]]]:
    """The answers to a share, in a worker."""
    model = of_worker(share.source, share.mesh)
    return list(sample(model, share.prompts, share.count, share.config, share.template))


def _folder(stage: Stage, fingerprint: str) -> Path:
    return stage.artifacts.folder / f"model-{fingerprint[:16]}"
