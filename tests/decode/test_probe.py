"""The probe's figures, and well-formedness without the grammar mask, checked with the unmasked model."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from pasta_jax.decode import probe
from pasta_jax.decode.generate import generate
from pasta_jax.decode.probe import well_formed
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.lang.program import Program, Text
from pasta_jax.models.config import PRESETS
from pasta_jax.oracle.choice import pick
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import random_params, uncached
from tests.helpers.traces import ENOUGH, PROGRAM, script_of, traced

pytestmark = pytest.mark.usefixtures("few_programs")
TAGS = ByteTokenizer.tags
CONFIG = DecodeConfig(lanes=4, rows=2, slots=256)


@functools.cache
def toy(tags: float = 1.0) -> Model:
    """Random weights; `tags` scales the rows of the tags: at 1 they are as likely as other ids, at 0 never sampled."""
    config = dataclasses.replace(PRESETS["toy"], layers=1)
    params = random_params(config, 1)
    params["embed"][TAGS.base : TAGS.end] *= tags
    return Model("toy", config, jax.device_put(params), ByteTokenizer())


@functools.cache
def answers(tags: float = 1.0, temperature: float = 0.0, penalty: float = 1.0):
    """Answers of two tokens, each with its number as its seed."""
    prompts = [bytes(np.random.default_rng(n).integers(65, 91, 5)) for n in range(12)]
    own = dict(temperature=temperature, repetition_penalty=penalty, max_topic_tokens=2, max_chunk_tokens=5)
    rules = [Rules(**own, seed=n) for n in range(12)]
    requests = [Request(tuple(p), 2, sequential=False, rules=one) for p, one in zip(prompts, rules, strict=True)]
    return generate(toy(tags), requests, CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 5.0])
@pytest.mark.parametrize("tags", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_well_formed_answers_equal_the_unmasked_models(tags, temperature, penalty):
    outcomes, all_ids = [], np.ones(toy().config.vocab, bool)
    for result in answers(tags, temperature, penalty):
        rules = Rules(temperature=temperature, seed=result.request, repetition_penalty=penalty)
        prompt, fed = list(result.trace.prompt_ids), result.trace.token.tolist()
        if TAGS.promise in fed or len(fed) < 2:
            continue
        logits = np.array(uncached(toy(tags), [*prompt, *fed])[len(prompt) - 1 :])
        for number, logits_V in enumerate(logits):
            seen = [id for id in {*prompt, *fed[:number]} if not TAGS.is_tag(id)]
            logits_V[seen] *= np.where(logits_V[seen] < 0, penalty, 1 / penalty)
        best = [pick(logits_V, all_ids, rules, thread=0, number=number) for number, logits_V in enumerate(logits)]
        legal = [not TAGS.is_tag(id) or id in (TAGS.promise, TAGS.sync) for id in best]
        assert well_formed(toy(tags), result.trace, CONFIG, rules) == all(legal)
        outcomes.append(all(legal))
    assert (tags == 0.0) in outcomes


def test_figures_of_answers(monkeypatch):
    """One that joins two of its three chunks, one that is cut off within a chunk, and one without chunks."""
    texts = [(PROGRAM, ENOUGH), (PROGRAM, 15), (Program((Text("abc"),)), ENOUGH)]
    traces = [traced(script_of(program), budget=budget)[0] for program, budget in texts]
    monkeypatch.setattr(probe, "well_formed", lambda model, trace, config: trace is not traces[1])
    results = [Result(n, "", trace.finish_reason, trace) for n, trace in enumerate(traces)]
    figures = probe.figures_of(toy(), results, CONFIG)
    assert figures == pytest.approx(
        {
            "fork_rate": 2 / 3,
            "chunks": (3 + 1 + 0) / 3,
            "parallelism": (62 / 60 + 6 / 13 + 3 / 3) / 3,
            "finished": 2 / 3,
            "well_formed": 2 / 3,
            "promised": (20 + 10 + 30) / 3,
            "length": (25 + 14 + 14) / 3,
            "length_error": (5 + 4 + 16) / 3,
        }
    )
    assert "promised" not in probe.figures_of(toy(), results[1:], CONFIG)  # no chunk closed itself
