"""min_p and the repetition penalty equal the oracle's, Hugging Face's own, and change no other request."""

import numpy as np
import pytest

from pasta_jax.decode.generate import generate
from pasta_jax.decode.sampling import FORBIDDEN, penalize
from pasta_jax.lang.tags import TagIds
from pasta_jax.oracle import decoding
from pasta_jax.oracle.choice import Query, Tape, penalized
from tests.decode.test_sampled_programs import EIGHT_LANES, answered, fields_of, random_requests, talkative


def changed(every: int):
    """The random requests, some of which (all if `every` is 1) have the rules."""
    values = [(0.0, 1.3), (0.2, 1.0), (0.05, 1.1), (0.5, 0.8)]
    return [
        request if number % every else request.with_rules(min_p=min_p, repetition_penalty=penalty)
        for number, request in enumerate(random_requests(24))
        for min_p, penalty in [values[number // every % 4]]
    ]


def test_answers_equal_the_oracles():
    requests = changed(every=1)
    results = generate(talkative(), requests, EIGHT_LANES)
    expected = decoding.sampled(talkative(), requests, EIGHT_LANES)
    for result, answer, request in zip(results, expected, requests, strict=True):
        assert result.trace.token.tolist() == answer.tape.token[len(request.prompt_ids) :]
    differ = [fields_of(one) != fields_of(plain) for one, plain in zip(results, answered(100), strict=False)]
    assert sum(differ) > 12


def test_other_requests_are_not_changed():
    results = generate(talkative(), changed(every=3), EIGHT_LANES)
    for number, (result, plain) in enumerate(zip(results, answered(100), strict=False)):
        assert number % 3 == 0 or fields_of(result) == fields_of(plain)


@pytest.mark.parametrize("penalty", [1.0, 1.5, 0.7])
def test_they_are_those_of_hugging_face(penalty):
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(0, 3, (1, 50)).astype(np.float32)
    seen = [3, 7, 7, 41]
    expected = process.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), torch.tensor(logits)).numpy()
    is_seen = np.isin(np.arange(50), seen)[None]
    np.testing.assert_array_equal(penalize(logits, np.full(1, penalty, np.float32), lambda: is_seen), expected)
    kept = process.MinPLogitsWarper(0.3)(None, torch.tensor(logits)).numpy() > FORBIDDEN
    ratio = np.exp(logits - logits.max())
    np.testing.assert_array_equal(kept, ratio >= 0.3)


def test_tags_are_not_penalised():
    tape = Tape(np.ones((2, 2), bool), token=[5, 20], thread=[0, 0], step=[0, 0], position=[0, 1])
    query = Query(1, 0, 0, "main")
    assert penalized(np.full(100, 2, np.float32), tape, query, 2.0, TagIds(20))[[5, 20, 6]].tolist() == [1, 2, 2]
