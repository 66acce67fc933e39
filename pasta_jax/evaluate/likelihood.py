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

from pasta_jax.errors import PastaError
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

SLICE = 32  # places whose logits exist at a time
ENDING = "_over_baseline"


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """What the baseline thinks of an answer."""

    system: str
    number: int
    nats: float  # mean log-probability of a token, the end of turn included if there is one
    tokens: int
    prompts: str = ""  # the set; files of before 2026-11-27 don't say, and their figures are computed again


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
    with records.opened(path, about, Likelihood, _key, OTHER_WORKDIR) as done:
        missing = done.missing([(system, answer.prompts, answer.number) for system, answer in own])
        with Progress("likelihood of answers", len(own), len(own) - len(missing)) as progress:
            for system, answer in (own[number] for number in missing):
                tokenizer = reader.model.tokenizer
                ids = [*tokenizer.encode(answer.text), *[tokenizer.end_of_turn] * answer.finished]
                total, _ = log_probability(reader.model, reader.request(asked[answer.number]).prompt_ids, ids)
                nats = round(total / len(ids), 4)
                done.add(Likelihood(system, answer.number, nats, len(ids), answer.prompts))
                progress.add()
        for system, answer in own:
            found[system][answer.number] = done.known[system, answer.prompts, answer.number].nats
    return found


def _key(one: Likelihood) -> tuple[str, str, int]:
    return one.system, one.prompts, one.number


def compared(own: Mapping[int, float], baseline: Mapping[int, float]) -> dict[str, dict[int, float]]:
    """A system's nats per token by prompt, and how much they are above those of the baseline's own answer."""
    both = own.keys() & baseline.keys()
    return {"nats": dict(own), "nats" + ENDING: {number: own[number] - baseline[number] for number in sorted(both)}}


def log_probability(model: Model, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """The log-probability of a continuation, and whether greedy decoding would write it; the end of a long context."""
    if len(continuation) >= model.config.context:
        raise PastaError(
            f"{model.name}: {len(continuation)} tokens don't fit into its context of {model.config.context} with one "
            "before them; shorten the text, or read it with a model of a longer context"
        )
    ids = np.array([*context, *continuation][-model.config.context :], np.int32)
    padded = np.zeros(_rounded(len(ids)), np.int32)
    padded[: len(ids)] = ids
    log_T, best_T = map(np.asarray, _log_probabilities(model.params, padded[None], config=model.config))
    places = slice(len(ids) - len(continuation) - 1, len(ids) - 1)
    return float(log_T[places].sum()), bool(np.array_equal(best_T[places], continuation))


def _rounded(length: int) -> int:
    """The next power of two or three times a power of two: each length is a program."""
    whole = max(1 << (length - 1).bit_length(), 2 * SLICE)
    return whole * 3 // 4 if length <= whole * 3 // 4 and whole > 2 * SLICE else whole


@functools.partial(jax.jit, static_argnames="config")
def _log_probabilities(params: Params, tokens_1xT: jax.Array, config: TransformerConfig) -> tuple[jax.Array, jax.Array]:
    """The log-probability of the token after each place, and the likeliest token there."""
    place_1xT = jnp.arange(tokens_1xT.shape[1])[None]
    x_1xTxE, _ = trunk(params, config, tokens_1xT, place_1xT, causal(place_1xT), place_1xT)

    def read(one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_NxE, next_N = one
        logits_NxV = logits(params, config, x_NxE[None])[0]
        log_NxV = jax.nn.log_softmax(logits_NxV, axis=-1)
        return jnp.take_along_axis(log_NxV, next_N[:, None], axis=1)[:, 0], jnp.argmax(logits_NxV, axis=-1)

    slices = x_1xTxE.reshape(-1, SLICE, x_1xTxE.shape[-1]), jnp.roll(tokens_1xT, -1).reshape(-1, SLICE)
    return jax.tree.map(jnp.ravel, jax.lax.map(read, slices))
