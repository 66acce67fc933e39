"""Ablated decoding: without an ablation it equals the interpreter's, and each ablation changes only what it names."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.lang.program import Sync
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.oracle import decoding
from pasta_jax.toy.ablation import ABLATIONS, broken, decode_broken
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.models import TINY, random_params
from tests.helpers.traces import ENOUGH, PROGRAM, TOKENIZER, script_of

CONFIG = DecodeConfig(lanes=8, rows=4, slots=96)
pytestmark = pytest.mark.usefixtures("few_programs")


@functools.cache
def talkative() -> Model:
    """A random model that samples tags often."""
    tokenizer = toy_tokenizer()
    wider = {"layers": 2, "embed": 16, "ff": 16, "heads": 2, "head_dim": 8, "tied_head": False}
    config = dataclasses.replace(TINY, vocab=tokenizer.model_vocab, **wider)
    params = random_params(config, 2, scale=0.6)
    tags = tokenizer.tags
    for ids, factor in (([tags.promise], 9), ([tags.end_async, tags.sync], 8)):
        params["head"][ids] *= factor
    return Model("talkative", config, jax.device_put(params), tokenizer)


@functools.cache
def requests() -> list[Request]:
    chat = talkative().tokenizer.chat
    return [
        Request(
            tuple(chat([("user", problem.instruction)])),
            60,
            sequential=False,
            rules=Rules(temperature=1.0, seed=number, max_topic_tokens=2, max_chunk_tokens=12),
        )
        for number, problem in enumerate(problems(1, 0, 16, "small"))
    ]


@functools.cache
def decoded(ablation: str):
    return decode_broken(talkative(), requests(), CONFIG, ablation)


def syncs(trace) -> int:
    return sum(isinstance(part, Sync) for part in trace.program().parts)


@pytest.mark.slow
def test_without_an_ablation_it_equals_the_interpreter():
    for result, trace in zip(generate(talkative(), requests(), CONFIG), decoded("none"), strict=True):
        for name in ("token", "thread", "step", "position"):
            np.testing.assert_array_equal(getattr(result.trace, name), getattr(trace, name))
        assert (result.text, result.trace.closed, result.trace.finish) == (
            trace.program().strip(),
            trace.closed,
            trace.finish,
        )
    assert sum(map(syncs, decoded("none"))) >= 8
    assert sum(len(trace.closed) - 1 for trace in decoded("none")) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("ablation", ABLATIONS[1:])
def test_each_ablation_changes_answers(ablation):
    changed = [a.token.tolist() != b.token.tolist() for a, b in zip(decoded(ablation), decoded("none"), strict=True)]
    assert sum(changed) >= 4
    assert (ablation == "no_sync") == (sum(map(syncs, decoded(ablation))) == 0)


def test_the_masks_of_ablations():
    """With `sync_unseen`, main sees only main; with `all_seen`, each step sees all tokens up to it."""
    prompt = TOKENIZER.encode("why?")
    request = Request(
        tuple(prompt), ENOUGH, sequential=False, rules=Rules(max_topic_tokens=ENOUGH, max_chunk_tokens=ENOUGH)
    )
    config = dataclasses.replace(CONFIG, slots=0)
    tape = decoding.scripted(request, config, TOKENIZER, 1024, PREDICTED, script_of(PROGRAM)).tape
    n = len(tape)
    thread, step = np.array(tape.thread), np.array(tape.step)
    right = tape.sees[:n, :n]
    assert np.any(right & (thread[None, :] != 0) & (thread[:, None] == 0))
    unseen = broken(tape, "sync_unseen").sees[:n, :n]
    same_thread_or_main = (thread[None, :] == 0) | (thread[:, None] == thread[None, :])
    np.testing.assert_array_equal(unseen, right & same_thread_or_main)
    seen = broken(tape, "all_seen").sees[:n, :n]
    for q in range(n):
        expected = right[q] if q < len(prompt) else step <= step[q]
        np.testing.assert_array_equal(seen[q], expected)
    assert broken(tape, "none") is tape
