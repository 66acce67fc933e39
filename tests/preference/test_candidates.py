"""The labels of a sampled answer are the tokens that the model sampled, also where it was cut off."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from pasta_jax.data.pairs import Pair
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request
from pasta_jax.decode.state import BUDGET, OPEN, OWN
from pasta_jax.decode.trace import Trace
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.preference import candidates
from pasta_jax.preference.candidates import candidate, example_of, sample
from pasta_jax.weights.rules import Rules
from tests.toy.test_ablation import CONFIG, requests, talkative

pytestmark = pytest.mark.usefixtures("few_programs")


def sampled(trace: Trace, end_of_turn: int) -> Counter[int]:
    """The tokens that the model sampled: all that were fed but [ASYNC], the ends of threads, which may not be fed."""
    tags = trace.tags
    tokens = Counter(trace.token.tolist())
    del tokens[tags.async_]
    tokens[tags.end_async] = sum(closed == OWN for closed in trace.closed[1:])
    main = trace.thread_ids(0)
    opened = next((n for n, id in enumerate(reversed(main)) if id == tags.promise or tags.is_close(id)), None)
    if opened is not None and main[-1 - opened] == tags.promise:  # the program leaves out a promise without an end
        tokens -= Counter(main[len(main) - 1 - opened :])
    return tokens + Counter([end_of_turn] * (trace.finish_reason == "stop"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "rules", "ending"),
    [({"max_tokens": 30}, {}, OPEN), ({}, {"max_chunk_tokens": 3}, BUDGET), ({}, {}, OWN)],
)
def test_labels_are_what_was_sampled(changes, rules, ending):
    model = talkative()
    asked = [dataclasses.replace(request.with_rules(**rules), **changes) for request in requests()]
    seen = set()
    for result in generate(model, asked, CONFIG):
        answer = candidate(result)
        example = example_of(model, Pair("", "", "a question", "", ""), answer, PREDICTED)
        labels = Counter(example.label[example.label != NO_LABEL].tolist())
        assert labels == sampled(result.trace, model.tokenizer.end_of_turn)
        assert answer.cut == tuple(np.flatnonzero(np.array(result.trace.closed[1:]) != OWN) + 1)
        seen |= set(result.trace.closed[1:])

    assert ending in seen


def test_every_answer_has_a_seed_of_its_own_whatever_else_is_sampled(monkeypatch):
    asked = []
    monkeypatch.setattr(candidates, "stream", lambda model, requests, *_, **__: asked.append(requests) or iter(()))
    prompts = {number: Pair("", "", f"question {number}", "", "") for number in range(4)}
    last = Request((), 9, sequential=False, rules=Rules(temperature=1.0, seed=2**32 - 5))
    for some in (prompts, {2: prompts[2]}):
        assert list(sample(talkative(), some, 3, CONFIG, last)) == []
    every, third = asked
    assert len({request.rules.seed for request in every}) == len(every) == 12
    assert third == every[6:9]
