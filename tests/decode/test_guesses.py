"""A drafter's guesses: exact ones are all kept at any temperature, and wrong ones change no answer."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode import device_loop
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.decode.guesses import Guesser
from pasta_jax.decode.sampling import gumbel_of
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import STOP
from pasta_jax.errors import PastaError
from pasta_jax.weights.model import Model
from tests.decode.test_drafts import answer_of
from tests.decode.test_sampled_programs import TAGS, TOKENIZER, UNTIED, answered, random_requests, talkative
from tests.helpers.drafters import fitted, linear
from tests.helpers.few_programs import decode_with_few_programs
from tests.helpers.requires import requires_smollm2

DRAFTING = DecodeConfig(lanes=8, rows=8, slots=80, draft="drafter")


@pytest.fixture(autouse=True)
def free_rows(monkeypatch):
    """Steps of any width cost the same, and guesses nothing, so that all drafts are fed for which there is room."""
    decode_with_few_programs(monkeypatch)  # test_drafts.py has other widths
    monkeypatch.setattr(Guesser, "cost", 0.0)
    monkeypatch.setattr(device_loop, "KEPT", 0)
    monkeypatch.setattr(device_loop, "prices_of", lambda model, state, spec: (state, np.ones(len(spec.priced_rows))))


@functools.cache
def exact() -> Model:
    """A model whose layers add nothing, so that a token's state follows from the token, and a drafter that knows it."""
    model, embed = talkative(), UNTIED.embed

    def without(layer):
        return layer | {name: {"kernel": jnp.zeros_like(layer[name]["kernel"])} for name in ("out", "down")}

    ones = {"weight": jnp.ones(embed)}
    layers = tuple(map(without, model.params["layers"]))
    head = model.params["head"].at[jnp.array(TOKENIZER.stop_ids)].set(0.0)  # answers of several tokens
    model = dataclasses.replace(model, params=model.params | {"layers": layers, "final_norm": ones, "head": head})
    ids = np.setdiff1d(np.arange(UNTIED.vocab), np.arange(TAGS.base, TAGS.end))
    return linear(model, np.concatenate([-np.eye(embed), np.eye(embed)], axis=1), ids)


def test_an_exact_drafter_is_always_right_at_any_temperature():
    requests = [
        dataclasses.replace(request.with_rules(repetition_penalty=1.0), sequential=True, max_tokens=60)
        for request in random_requests(24)
    ]
    assert {request.rules.temperature for request in requests} == {0.0, 0.7, 1.0}
    plain = generate(exact(), requests, dataclasses.replace(DRAFTING, draft="off"))
    drafted = generate(exact(), requests, DRAFTING)
    assert [result.trace.token.tolist() for result in drafted] == [result.trace.token.tolist() for result in plain]
    kept, fed = (sum(getattr(result, name) for result in drafted) for name in ("drafts_kept", "drafts_fed"))
    assert kept > 200
    # What goes beyond the end of an answer is not kept.
    assert fed - kept <= 7 * len(requests)
    steps, of_plain = (sum(result.trace.steps for result in results) for results in (drafted, plain))
    assert of_plain - steps == kept
    assert steps < of_plain / 3


@pytest.mark.parametrize("config", [DRAFTING, dataclasses.replace(DRAFTING, lanes=2, packed=(2, 4, 8))])
def test_guesses_that_are_often_wrong_change_no_answer(config):
    model = fitted(talkative(), np.arange(0, 384, 2))
    drafted = generate(model, random_requests(40), config)
    ended = [pair for pair in zip(answered(100)[:40], drafted, strict=True) if pair[0].trace.finish == STOP]
    assert len(ended) > 20
    assert [answer_of(after) for _, after in ended] == [answer_of(before) for before, _ in ended]
    fed, kept = (sum(getattr(result, name) for result in drafted) for name in ("drafts_fed", "drafts_kept"))
    assert 0 < kept < fed / 2


def test_ids_have_the_noise_that_they_have_among_all():
    ids = jnp.array([0, 1, 700, 701, 49_151], jnp.int32)
    for seed in range(3):
        key = jax.random.fold_in(jax.random.key(seed), 5)
        np.testing.assert_allclose(gumbel_of(key, ids), jax.random.gumbel(key, (49_152,))[ids], rtol=1e-5, atol=1e-6)


def test_a_model_without_a_drafter_is_refused():
    with pytest.raises(PastaError, match=r"config\.model\.drafter"):
        loop_spec(talkative(), DRAFTING, 80, sequential=False)


@pytest.mark.slow
@requires_smollm2
def test_the_drafter_of_the_demo_saves_steps_and_changes_no_answer():
    script = (
        "import numpy, pasta_jax as pasta; from pasta_jax.decode import device_loop; answers = []\n"
        "device_loop.prices_of = lambda model, state, spec: (state, numpy.ones(len(spec.priced_rows)))\n"
        "for drafter in (None, 'pasta'):\n"
        "    model = pasta.load_model('smollm2_135m', 'pasta', drafter=drafter)\n"
        "    one = pasta.generate(model, 'Give three tips for staying healthy.', max_tokens=400, temperature=0.6)\n"
        "    answers.append((one.finish_reason, one.trace.linear_ids(), one.trace.steps))\n"
        "(*plain, steps), (*drafted, fewer) = answers\n"
        "print(plain == drafted and plain[0] == 'stop', fewer < 0.9 * steps, answers)\n"
    )
    # In a process with one device, where weights in blocks stay so.
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True True"), done.stdout + done.stderr
