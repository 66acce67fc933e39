"""Decoding with few programs, for tests of what surrounds the interpreter: half of the time to compile."""

import dataclasses

import pytest

from pasta_jax.benchmark import forks, ways
from pasta_jax.decode import engine, generate, prefill, replay
from pasta_jax.decode.state import LoopSpec


def decode_with_few_programs(patch: pytest.MonkeyPatch) -> None:
    """Programs with one loop, of all rows, that read the whole pool, and prefills of two lengths.

    Users' programs have a second loop, of one row, and up to four more, and attention to prefixes of the pool;
    test_interpreter.py, test_sampled_programs.py and test_replay.py show that they change no token.
    """
    loop_spec = generate.loop_spec

    def with_one_loop(*arguments, **options) -> LoopSpec:
        spec = loop_spec(*arguments, **options)
        return dataclasses.replace(spec, widths=(spec.rows,), packed=spec.packed[-1:], prefixes=())

    for module in (engine, forks, generate, replay, ways):
        patch.setattr(module, "loop_spec", with_one_loop)
    patch.setattr(prefill, "PREFILL_CHUNKS", (64, 512))
