"""An evaluation's answers by the workers of a Ray cluster: each loads a system's model and answers a few questions."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.systems import Compute, Task, as_named
from pasta_jax.models.settings import MeshSettings
from pasta_jax.runs.ray import RaySettings, together
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import of_worker

ROUNDS = 2  # a worker gets so many questions for each of its lanes at a time; a killed run repeats those


@dataclasses.dataclass(frozen=True)
class QuestionShare:
    """Questions for a worker, and how it answers them."""

    task: Task  # without its model, which the worker loads
    source: ModelSource
    mesh: MeshSettings
    questions: Sequence[Question]


def on_workers(cluster: RaySettings, sources: Mapping[System, ModelSource], mesh: MeshSettings) -> Compute:
    """A function that has a task's questions answered by workers; only this process keeps the answers."""

    def answers(task: Task, questions: Sequence[Question]) -> Iterator[SystemAnswer]:
        size, sent = ROUNDS * task.config.lanes, dataclasses.replace(task, model=None)
        parts = [questions[first : first + size] for first in range(0, len(questions), size)]
        shares = [QuestionShare(sent, sources[task.system], mesh, part) for part in parts]
        yield from together(cluster, answers_to, shares)

    return answers


def answers_to(share: QuestionShare) -> list[SystemAnswer]:
    """The answers to a share, in a worker."""
    task = as_named(dataclasses.replace(share.task, model=of_worker(share.source, share.mesh)))
    return [answer for _, answer in task.answers(share.questions)]
