"""Statistics of records against figures computed by hand, and their chart."""

import math
import re

import pytest

from pasta_jax.annotate.statistics import Spread, panels_of, statistics
from pasta_jax.errors import PastaError
from pasta_jax.view.plots import histograms
from tests.helpers.records import record_of

A, B = "one two three four five", "six seven eight nine ten"
FORKED = record_of(f"<async topic='a'>{A}</async><async topic='b c'>{B}</async><sync/>.", A + B + ".")
PLAIN = record_of("nothing here", "nothing here")


def test_the_figures_of_two_records():
    result = statistics([FORKED, PLAIN])
    assert (FORKED.origin, FORKED.license) == ("record 7, turn 3", "none stated")
    assert (result.records, result.with_fork, result.share_with_fork) == (2, 1, 0.5)
    assert result.plain_tokens == len(A + B + ".") + len("nothing here")
    assert result.tokens == result.plain_tokens + 8 + len("ab c") + 1
    assert (result.chunks.mean, result.syncs.mean, result.chunk_tokens.mean) == (2, 1, (len(A + B) + 4) / 2)
    assert result.topic_words.mean == 1.5
    # [PROMISE] a [/PROMISE], [PROMISE] b " " c [/PROMISE]: 8 steps; the second chunk's 24 letters begin to be fed in
    # step 9 and its end is sampled in step 32; then [SYNC] and the full stop.
    assert FORKED.critical_path == 8 + 24 + 2
    assert FORKED.speedup == pytest.approx(48 / 34, abs=1e-4)
    assert FORKED.parallelism == pytest.approx(48 / 34, abs=1e-4)
    assert (PLAIN.speedup, PLAIN.parallelism) == (1, 1)
    assert result.speedup == pytest.approx(math.sqrt(48 / 34), abs=1e-4)
    assert result.speedup_with_fork == pytest.approx(48 / 34, abs=1e-4)
    assert result.speedup_mean == pytest.approx((1 + 48 / 34) / 2, abs=1e-4)
    assert "| with a fork | 1 (50.0%) |" in result.table()


def test_statistics_need_records_but_no_forks():
    with pytest.raises(PastaError, match="no records"):
        statistics([])
    assert statistics([PLAIN]).chunks == Spread(0, 0, 0, 0, 0)
    assert statistics([PLAIN]).speedup_with_fork == 1


def test_a_chart_of_records_has_a_panel_for_each_figure():
    whole = histograms(panels_of([FORKED, PLAIN]))
    assert all(f'id="panel{number}.bar0"' in whole for number in range(3))
    assert "panel3" not in whole
    assert re.search("NaN|inf", histograms(panels_of([PLAIN]))) is None
