"""A short run of the fuzzer over every door: each mutation loads, or is refused in one line; nothing hangs or bloats.

`python -m tests.fuzz --long` runs for hours.
"""

import pytest

from tests.fuzz.doors import DOORS
from tests.fuzz.run import LIMIT_BYTES, LIMIT_S, fuzz

COUNT = 60
SLOW = {"checkpoints": 15, "datasets": 20}  # their libraries take long


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_mutations_load_or_are_refused_in_one_line(name):
    tally = fuzz(name, DOORS[name], seed=0, numbers=range(SLOW.get(name, COUNT)))
    assert tally.failures == []
    assert tally.loaded
    assert tally.refused
    assert tally.slowest_s < LIMIT_S
    assert tally.memory < LIMIT_BYTES
