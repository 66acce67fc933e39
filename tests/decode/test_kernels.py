"""With our kernels, what a thread computes doesn't depend on its neighbours: keys and values, to the bit."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
import pytest

from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.models.kernels.cpu.library import library
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.weights.for_cpu import in_panels
from pasta_jax.weights.model import Model
from tests.decode.test_sampled_programs import TOKENIZER, random_requests
from tests.helpers.models import UNTIED, talkative

pytestmark = [pytest.mark.extended, pytest.mark.skipif(library() is None, reason="needs a C++ compiler")]
SLOTS = 128
MODES = {
    "widths": DecodeConfig(lanes=3, rows=5, slots=SLOTS, widths=(1, 2, 3)),
    "drafts": DecodeConfig(lanes=4, rows=4, slots=SLOTS, packed=(1, 3, 9), draft="lookup"),
    "admitted": DecodeConfig(lanes=4, rows=4, slots=SLOTS, packed=(4, 7, 11), forks="admitted", draft="lookup"),
}


@pytest.fixture(scope="module")
def model() -> Model:
    params = in_panels(jax.tree.map(np.asarray, talkative(UNTIED, TOKENIZER)), "float32")
    model = Model("kernels", UNTIED, jax.device_put(params, jax.devices()[0]), TOKENIZER)
    assert uses_kernels(model.params)
    return model


def requests() -> list[Request]:
    """Long ones, without rules that read other threads."""
    apart = [one.with_rules(max_topic_words=0, distinct_topics=False) for one in random_requests(24)]
    return [dataclasses.replace(one, scored=False) for one in apart if one.max_tokens >= 40][:6]


def kept(model: Model, config: DecodeConfig, groups: Sequence[Sequence[int]]) -> dict[tuple[int, int], np.ndarray]:
    """The keys and values of each (request, thread), one column a token; a group's requests are decoded together."""
    spec = loop_spec(model, config, SLOTS, sequential=False)
    has_prices = spec.drafts or spec.priced
    prices = np.ones(len(spec.priced_rows), np.float32) if has_prices else None
    loop, found = DeviceLoop(model, spec, config.lanes, SLOTS, prices=prices), {}
    for group in groups:
        for number in group:
            loop.submit(number, requests()[number], 1)
        while loop.is_busy:
            begun = {log.number: lane for lane, log in enumerate(loop._logs) if log}
            list(loop.round())
            begun |= {log.number: lane for lane, log in enumerate(loop._logs) if log}
            pool = loop._state.pool
            for number, lane in begun.items():
                fill = int(pool.fill[lane])
                thread_F = np.asarray(pool.chunk)[lane, :fill]
                columns = [np.asarray(one[lane])[:, :fill].swapaxes(1, 2) for kv in pool.kv for one in kv]
                together = np.concatenate([one.reshape(-1, fill) for one in columns])
                found |= {(number, thread): together[:, thread_F == thread] for thread in set(thread_F.tolist())}
    return found


@pytest.mark.parametrize("mode", MODES)
def test_neighbours_and_drafts_change_no_bit(model, mode):
    config, count = MODES[mode], len(requests())
    together = kept(model, config, [range(count)])
    plain = dataclasses.replace(config, draft="off", forks="eager")
    alone = kept(model, plain, [[number] for number in range(count)])
    assert together.keys() == alone.keys()
    assert max(thread for _, thread in alone) > 1
    for key, columns in alone.items():
        np.testing.assert_array_equal(together[key].view(np.uint32), columns.view(np.uint32), err_msg=str(key))
