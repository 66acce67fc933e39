"""The clock against simulated threads, the paper's example, and figures computed by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import Clock, clock, geometric_mean, parallelism, theoretical_speedup
from pasta_jax.lang.program import LangError
from tests.helpers.examples import examples
from tests.helpers.simulation import TAGS, Fork, Join, Plain, lay_out, random_script, run, scripts


def timed(script: list, prompt_length: int = 4) -> Clock:
    return clock(lay_out(script, prompt_length).ids, TAGS, prompt_length)


def check_against_threads(script: list, prompt_length: int) -> None:
    layout = lay_out(script, prompt_length)
    simulated = run(layout)
    result = clock(layout.ids, TAGS, prompt_length)
    assert result.step.tolist() == simulated.step[prompt_length:]
    assert result.critical_path == simulated.critical_path
    assert result.slots == len([step for step in simulated.step if step])
    assert result.step.dtype == np.int32


@examples(600)
@given(scripts, st.integers(0, 5))
def test_any_program_takes_as_long_as_its_threads(script, prompt_length):
    check_against_threads(script, prompt_length)


def test_many_long_programs():
    rng = random.Random(6)
    for _ in range(1_000):
        check_against_threads(random_script(rng, longest=80), rng.randrange(3))


@pytest.mark.parametrize("length", [0, 1, 2, 50])
def test_without_tags_each_token_is_a_step(length):
    result = timed([Plain(length)])
    assert result.step.tolist() == list(range(1, length + 1))
    assert result.critical_path == result.slots == length


def test_the_rules_by_hand():
    result = timed([Plain(2), Fork(1, 1, 3), Plain(1), Join(), Plain(1)])
    #                           a  a  P  t  /1  A  c  c  c  /A  b  S  d
    assert result.step.tolist() == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 6, 9, 10]
    assert (result.critical_path, result.slots) == (10, 13)


def test_main_does_not_wait_for_ended_forks():
    """The fork ends in step 2, main continues to 7: the sync follows directly."""
    assert timed([Fork(0, 1, 0), Plain(5), Join()]).step.tolist() == [1, 2, 2, 3, 3, 4, 5, 6, 7, 8]


def test_a_sync_without_chunks_does_not_wait():
    assert timed([Join(), Join(), Plain(1)]).step.tolist() == [1, 2, 3]


def test_chunks_may_outlive_main_and_closing_tags_of_the_last_step_are_not_fed():
    result = timed([Fork(0, 1, 5), Fork(0, 1, 3), Plain(1)])
    #                          P  /1  A  . . . . .  /A  P  /1  A  . . .  /A  x
    assert result.step.tolist() == [1, 2, 2, 3, 4, 5, 6, 7, 0, 3, 4, 4, 5, 6, 7, 0, 5]
    assert (result.critical_path, result.slots) == (7, 15)
    earlier = timed([Fork(0, 1, 5), Fork(0, 1, 2), Plain(1)])
    assert earlier.step.tolist()[-2:] == [7, 5]  # this fork ended a step earlier: its closing tag is fed


def test_the_papers_example():
    """Two promises, sync: fork 2 ends at T=22, fork 1 at T=34, main resumes at T=35, if a promise is one token.

    The paper's T counts decoded tokens: what it decodes at T is fed in step T. Here a promise without topic is two
    ids, so fork 1 is one step later than in the paper, and fork 2 two.
    """
    forks = [Fork(0, 2, 32), Fork(0, 2, 19)]
    step = timed([*forks, Join(), Plain(3)]).step.tolist()
    promise_1, first_1, end_1 = step[1], step[3], step[2 + 33]
    promise_2, first_2, end_2 = step[37], step[39], step[38 + 20]
    sync, resumed = step[59], step[60]
    assert (promise_1 - 1, first_1 - 1, end_1 - 1) == (1, 2, 34)
    assert (promise_2 - 2, first_2 - 2, end_2 - 2) == (2, 3, 22)
    assert (sync - 1, resumed - 1) == (34, 35)


# Metrics


def test_parallelism_counts_text_tokens():
    script = [Plain(2), Fork(2, 1, 20), Fork(1, 1, 20), Join(), Plain(6)]
    layout = lay_out(script, 4)
    # P t t /1: main is at 6 when fork 1 starts, P t /1: at 9 for fork 2, which ends at 29; sync 30, then six more.
    assert clock(layout.ids, TAGS, 4).critical_path == 36
    assert parallelism(layout.ids, TAGS, 4) == (2 + 20 + 20 + 6) / 36
    assert parallelism(lay_out([Plain(7)], 4).ids, TAGS, 4) == 1.0


def test_speedup_and_means():
    assert theoretical_speedup(100, 40) == 2.5
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean(value for value in (3.0,)) == pytest.approx(3.0)
    assert geometric_mean([1e-300] * 9) == pytest.approx(1e-300)  # no intermediate underflow


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [-1.0], [math.nan]])
def test_geometric_means_need_positive_values(bad):
    with pytest.raises(PastaError):
        geometric_mean(bad)


def test_an_empty_response_has_no_speedup():
    assert timed([]).critical_path == 0
    with pytest.raises(PastaError, match="empty responses"):
        theoretical_speedup(10, 0)
    with pytest.raises(PastaError, match="empty responses"):
        parallelism(lay_out([], 3).ids, TAGS, 3)


def test_malformed_responses_are_named_by_index():
    with pytest.raises(LangError, match=r"^id 3: "):
        clock([1, 2, 3, TAGS.async_], TAGS, 2)
