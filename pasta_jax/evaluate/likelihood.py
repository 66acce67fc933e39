"""How near sequential answers are to what the baseline itself would write: nats per token that it assigns to them.

    WORKDIR/likelihood.jsonl   first what the figures depend on, then one record per answer

The baseline reads the answers to the first set's prompts by every system that doesn't fork, its own included. A model
that was taught to fork and otherwise writes as before is as likely to the baseline as the baseline's own answers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.systems import OTHER_WORKDIR, Task
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import causal, logits, trunk
from pasta_jax.progress import Progress
from pasta_jax.runs import records
from pasta_jax.weights.model import Model

BUCKET = 64  # lengths are rounded up to multiples of it, so that few programs are compiled
ENDING = "_over_baseline"


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """What the baseline thinks of an answer."""

    system: str
    number: int
    nats: float  # mean log-probability of a token, the end of turn included if there is one
    tokens: int


def read_answers(
    tasks: Sequence[Task],
    answers: Mapping[System, Sequence[SystemAnswer]],
    questions: Sequence[Question],
    workdir: Path,
) -> dict[System, dict[int, float]]:
    """Nats per token by system and prompt; those of an earlier run are read. Empty answers have none."""
    [reader] = (task for task in tasks if task.system == "baseline")
    sequential = [task for task in tasks if task.template.sequential and not task.is_rival]
    about: dict[str, Any] = {"reader": reader.model.identity}
    about |= {f"{task.system}.{name}": value for task in sequential for name, value in task.depends_on().items()}
    asked = {question.number: question for question in questions}
    own = [
        (task.system, answer)
        for task in sequential
        for answer in answers[task.system]
        if answer.prompts == questions[0].prompts and answer.number in asked and answer.text
    ]
    found: dict[System, dict[int, float]] = {task.system: {} for task in sequential}
    path = workdir / "likelihood.jsonl"
    with records.opened(path, about, Likelihood, lambda one: (one.system, one.number), OTHER_WORKDIR) as done:
        missing = done.missing([(system, answer.number) for system, answer in own])
        with Progress("likelihood of answers", len(own), len(own) - len(missing)) as progress:
            for system, answer in (own[number] for number in missing):
                tokenizer = reader.model.tokenizer
                ids = [*tokenizer.encode(answer.text), *[tokenizer.end_of_turn] * answer.finished]
                total, _ = log_probability(reader.model, reader.request(asked[answer.number]).prompt_ids, ids)
                done.add(Likelihood(system, answer.number, round(total / len(ids), 4), len(ids)))
                progress.add()
        for system, answer in own:
            found[system][answer.number] = done.known[system, answer.number].nats
    return found


def compared(own: Mapping[int, float], baseline: Mapping[int, float]) -> dict[str, dict[int, float]]:
    """A system's nats per token by prompt, and how much they are above those of the baseline's own answer."""
    both = own.keys() & baseline.keys()
    return {"nats": dict(own), "nats" + ENDING: {number: own[number] - baseline[number] for number in sorted(both)}}


def log_probability(model: Model, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """The log-probability of a continuation, and whether greedy decoding would write it; the end of what fits."""
    ids = [*context, *continuation][-model.config.context :]
    length, count = _rounded(len(ids)), len(continuation)
    tokens_1xT = np.zeros((1, length), np.int32)
    tokens_1xT[0, : len(ids)] = ids
    at_N = np.zeros(_rounded(count), np.int32)
    at_N[:count] = np.arange(len(ids) - count - 1, len(ids) - 1)
    target_N = np.zeros_like(at_N)
    target_N[:count] = continuation
    log_N, best_N = _log_probabilities(model.params, tokens_1xT, at_N, target_N, config=model.config)
    greedy = np.array_equal(np.asarray(best_N)[:count], continuation)
    return float(np.asarray(log_N)[:count].sum()), bool(greedy)


def _rounded(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


@functools.partial(jax.jit, static_argnames="config")
def _log_probabilities(
    params: Params, tokens_1xT: jax.Array, at_N: jax.Array, target_N: jax.Array, config: TransformerConfig
) -> tuple[jax.Array, jax.Array]:
    """The log-probability of each target after the token at its place, and the likeliest token there."""
    place_1xT = jnp.arange(tokens_1xT.shape[1])[None]
    x_1xTxE, _ = trunk(params, config, tokens_1xT, place_1xT, causal(place_1xT), place_1xT)
    logits_NxV = logits(params, config, x_1xTxE[:, at_N])[0]
    log_NxV = jax.nn.log_softmax(logits_NxV, axis=-1)
    return jnp.take_along_axis(log_NxV, target_N[:, None], axis=1)[:, 0], jnp.argmax(logits_NxV, axis=-1)
