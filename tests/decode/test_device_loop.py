"""How long the rounds of a device loop are; test_engine.py and test_generate.py show what comes of them."""

from unittest.mock import Mock

from pasta_jax.decode import device_loop
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.request import Event, Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.weights.rules import Rules
from tests.helpers.traces import tiny_model

LANES, SLOTS = 2, 256


def test_a_round_that_nobody_reads_takes_a_second_where_no_other_process_must_run_the_same(monkeypatch):
    """So that a Ctrl-C ends it soon. Neither tokens nor programs change."""
    now, asked, run, tokens = [0.0], [], device_loop.run, []
    model = tiny_model()
    spec = loop_spec(model, DecodeConfig(lanes=LANES, rows=1, slots=SLOTS), SLOTS, sequential=True)

    def rounds(step_s: float, round_steps: int = 256) -> list[int]:
        def timed(params, state, steps, *rest, **options):
            asked.append(int(steps))
            after = run(params, state, steps, *rest, **options)
            now[0] += step_s * int(after.step.max() - before[0])
            before[0] = int(after.step.max())
            return after

        device, before = DeviceLoop(model, spec, LANES, SLOTS), [0]
        device.submit(0, Request(tuple(b"x"), 200, sequential=True, rules=Rules(temperature=1.0)), round_steps)
        monkeypatch.setattr(device_loop, "run", timed)
        asked.clear()
        items = [item for _ in range(3) if device.is_busy for item in device.round()]
        monkeypatch.setattr(device_loop, "run", run)
        tokens.append([item.token for item in items if isinstance(item, Event)])
        return asked[:]

    rounds(1.0)
    programs = run._cache_size()
    monkeypatch.setattr(device_loop, "time", Mock(perf_counter=lambda: now[0]))
    assert rounds(1 / 32) == [16, 32, 32]
    assert rounds(4.0) == [16, 1, 1]
    assert rounds(1 / 1024) == [16, 256]
    assert rounds(4.0, 64) == [64, 64, 64]
    with monkeypatch.context() as patch:
        patch.setattr(device_loop, "MANY", LANES)
        assert rounds(4.0) == [32, 32, 32]
    monkeypatch.setattr(device_loop.jax, "process_count", lambda: 2)
    assert rounds(4.0) == [256]
    assert all(one == tokens[-1][: len(one)] for one in tokens)
    assert run._cache_size() == programs
