"""Decoding requests: long prompts, ids that are never sampled, refusals, sizes of pools.

tests/decode/test_sampled_programs.py compares answers, budgets and ends with the oracle's.
"""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from pasta_jax.decode import generate as decoding
from pasta_jax.decode.generate import generate, slots_for, stream
from pasta_jax.decode.prefill import prefill_chunks
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.models.sharding import make_mesh, shard
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import toy, uncached
from tests.helpers.traces import tiny_model

CONFIG = DecodeConfig(lanes=4, rows=4, slots=0)


def ask(prompt: str, tokens: int = 32, sequential: bool = True, name: str = "", **rules) -> Request:
    rules = Rules(**({"max_topic_tokens": 4, "max_chunk_tokens": 10} | rules))
    return Request(tuple(prompt.encode()), tokens, sequential, rules, name=name)


@pytest.mark.slow
def test_a_long_prompt_is_computed_in_chunks():
    assert prefill_chunks(1, 64) == [(0, 1, 16)]
    assert prefill_chunks(100, 64) == [(0, 64, 64), (64, 36, 64)]
    assert prefill_chunks(1024, 512) == [(0, 512, 512), (512, 512, 512)]
    prompt = "".join(chr(97 + i % 26) for i in range(300))
    result = generate(toy(), [ask(prompt, tokens=5)], CONFIG)[0]
    logits = uncached(toy(), [*prompt.encode(), *result.trace.token.tolist()])
    logits[:, 256:324] = -np.inf
    assert logits[299:-1].argmax(axis=1).tolist() == result.trace.token.tolist()


@pytest.mark.slow
def test_padding_rows_and_tags_are_never_sampled_without_tags():
    class Short(ByteTokenizer):
        vocab_size = 330

    model = dataclasses.replace(tiny_model(), tokenizer=Short())
    requests = [ask("x", tokens=100, temperature=100.0, seed=seed) for seed in range(4)]
    seen = {token for result in generate(model, requests, CONFIG) for token in result.trace.token.tolist()}
    assert max(seen) in range(324, 330)  # at this temperature every allowed id is sampled
    assert not seen & set(range(256, 324))


@pytest.mark.parametrize(
    ("request_", "config", "message"),
    [
        (ask(""), CONFIG, "prompt 1: empty"),
        (ask("x" * 4096), CONFIG, "prompt 1: 4096 tokens, but the context of 4096 must"),
        (ask("x" * 64), dataclasses.replace(CONFIG, slots=64), "the pool of 64 .* or raise slots"),
        (ask("x", tokens=0), CONFIG, "max_tokens is 0"),
        (ask("x", sequential=False), dataclasses.replace(CONFIG, rows=1), "rows 1: chunks need a row"),
        (ask("", name="prompts.jsonl: line 7"), CONFIG, r"^prompts\.jsonl: line 7: empty; write a question$"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_before_anything_is_decoded(request_, config, message):
    with pytest.raises(PastaError, match=message):
        stream(toy(), [ask("x"), request_], config, round_steps=1)


def test_pools_have_few_sizes_and_enough_slots():
    assert slots_for(toy(), [ask("x" * 10, tokens=246)], CONFIG) == 256
    assert slots_for(toy(), [ask("x" * 10, tokens=247)], CONFIG) == 512
    assert slots_for(toy(), [ask("x", tokens=10**6)], CONFIG) == 4096


@pytest.mark.parametrize("slots", [0, 256])
def test_an_answer_ends_with_the_models_context_however_large_the_pool_is(slots):
    model = tiny_model()
    short = dataclasses.replace(model, config=dataclasses.replace(model.config, context=100))
    never = tuple((id, -100.0) for id in model.tokenizer.stop_ids)
    request = Request(tuple(range(1, 41)), 200, sequential=True, bias=never)
    (result,) = generate(short, [request], DecodeConfig(lanes=1, rows=1, slots=slots))
    assert result.trace.position.max() == 99
    assert (len(result.trace.token), result.finish_reason) == (60, "length")


@pytest.mark.parametrize(
    ("requests", "lanes", "expected"), [(5, 32, 8), (8, 32, 8), (9, 32, 16), (9, 12, 8), (40, 32, 32), (1, 32, 1)]
)
def test_devices_share_the_lanes_of_any_number_of_requests(monkeypatch, requests, lanes, expected):
    """If they didn't divide the lanes, each would hold all of them."""
    begun = []
    monkeypatch.setattr(decoding, "DeviceLoop", lambda *arguments: begun.append(arguments[2]) or Mock(is_busy=False))
    model = tiny_model()
    model = dataclasses.replace(model, params=shard(model.params, make_mesh(8, 1)))
    list(stream(model, [ask("x")] * requests, dataclasses.replace(CONFIG, lanes=lanes), 8))
    assert begun == [expected]
