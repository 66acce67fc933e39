"""A short run of the fuzzer over every door: each mutation loads, or is refused in one line; nothing hangs or bloats.

`python -m tests.fuzz --long` runs for hours.
"""

import sys

import pytest

from tests.fuzz import __main__
from tests.fuzz.doors import DOORS
from tests.fuzz.run import Tally, fuzz

COUNT = 60
SLOW = {"checkpoints": 15, "datasets": 20}  # their libraries take long


@pytest.mark.slow
@pytest.mark.parametrize("third", [0, *(pytest.param(third, marks=pytest.mark.extended) for third in (1, 2))])
@pytest.mark.parametrize("name", DOORS)
def test_mutations_load_or_are_refused_in_one_line(name, third):
    tally = fuzz(name, DOORS[name], seed=0, numbers=range(third, SLOW.get(name, COUNT), 3))
    assert tally.failures == []
    assert tally.loaded
    assert tally.refused


def test_a_run_that_was_stopped_goes_on_from_its_log(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(__main__, "run", lambda name, seed, numbers: ran.append(numbers) or Tally(name, len(numbers)))
    for count in (2500, 3000):
        monkeypatch.setattr(sys, "argv", ["tests.fuzz", "traces", f"--count={count}", f"--log={tmp_path / 'log'}"])
        with pytest.raises(SystemExit, match=r"0|False"):
            __main__.main()
    assert ran == [range(2500), range(2500, 3000)]
    assert " 3,000 mutations" in capsys.readouterr().out.splitlines()[-1]
