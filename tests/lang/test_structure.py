"""Structure equals simulated threads that remember what they saw, naive positions and labels, and a drawn mask."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.errors import PastaError
from pasta_jax.lang.program import LangError
from pasta_jax.lang.structure import (
    NO_LABEL,
    POLICIES,
    PREDICTED,
    Place,
    Positions,
    Structure,
    fork_position,
    resume_position,
    structure,
    sync_position,
    visible,
    visible_matrix,
)
from tests.helpers.examples import examples
from tests.helpers.simulation import END_OF_TURN, TAGS, Fork, Join, Layout, Plain, lay_out, random_script, run, scripts


def structured(layout: Layout, positions: Positions = PREDICTED, **options) -> Structure:
    return structure(layout.ids, TAGS, layout.prompt_length, END_OF_TURN, positions, **options)


def matrix(sees: list[set[int]]) -> np.ndarray:
    result = np.zeros((len(sees), len(sees)), bool)
    for query, keys in enumerate(sees):
        result[query, list(keys)] = True
    return result


# A small program, worked out by hand:  x a promise b promise c d sync e.  Prompt x y.

EXAMPLE = [Plain(1), Fork(1, 1, 1), Fork(0, 2, 2), Join(), Plain(1)]
#            x  y  a  P  t  /1  A  b  /A  P  /2  A  c  d  /A  S  e
CHUNK = [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 2, 2, 2, 2, 0, 0]
EPOCH = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
MAIN = [1, 2, 3, 4, 5, 6, 6, 6, 6, 7, 8, 8, 8, 8, 8, 9, 10]
POSITION = {
    "predicted": [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19, 20, 21, 38, 39],
    "constant": [0, 1, 2, 3, 4, 5, 6, 7, 8, 46, 47, 48, 49, 50, 51, 88, 89],
    "oracle": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    "shared_start": [0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10, 11, 12, 13],
}
IDS = [0, 1, 2, 100, 3, 101, 165, 4, 166, 100, 102, 165, 5, 6, 166, 167, 7]
LABEL = [-1, 2, 100, 3, 101, 100, 4, 166, -1, 102, 167, 5, 6, 166, -1, 7, 200]
PICTURE = """
x   1................
y   11...............
a   111..............
P   1111.............
t   11111............
/1  111111...........
A   1111111..........
b   11111111.........
/A  111111111........
P   111111...1.......
/2  111111...11......
A   111111...111.....
c   111111...1111....
d   111111...11111...
/A  111111...111111..
S   1111111111111111.
e   11111111111111111
"""


def test_the_example_by_hand():
    layout = lay_out(EXAMPLE, 2)
    assert layout.ids == IDS
    for policy in POLICIES:
        parts = structured(layout, Positions(policy))
        assert parts.chunk.tolist() == CHUNK
        assert parts.epoch.tolist() == EPOCH
        assert parts.main.tolist() == MAIN
        assert parts.position.tolist() == POSITION[policy]
        assert parts.label.tolist() == LABEL
        assert all(vector.dtype == np.int32 for vector in vars(parts).values())


def test_the_mask_as_a_picture():
    rows = [line.split()[1] for line in PICTURE.strip().splitlines()]
    drawn = np.array([[mark == "1" for mark in row] for row in rows])
    np.testing.assert_array_equal(visible_matrix(structured(lay_out(EXAMPLE, 2))), drawn)


# The mask


@examples(400)
@given(scripts, st.integers(1, 5), st.sampled_from(POLICIES))
def test_the_mask_in_linear_order_is_what_threads_saw(script, prompt_length, policy):
    layout = lay_out(script, prompt_length)
    np.testing.assert_array_equal(visible_matrix(structured(layout, Positions(policy))), matrix(run(layout).sees))


@examples(400)
@given(scripts, st.integers(1, 5))
def test_the_mask_in_the_pool_is_the_same(script, prompt_length):
    """All slots written up to a token's step, in any order: only the mask separates threads."""
    layout = lay_out(script, prompt_length)
    simulated = run(layout)
    step = np.array(simulated.step)
    fed = (step > 0) | (np.arange(len(step)) < prompt_length)
    written = fed[None, :] & (step[None, :] <= step[:, None])  # the prompt in step 0, in one go
    place = structured(layout).place
    mask = visible(written, place.queries(), place.keys())
    np.testing.assert_array_equal(mask[fed], matrix(simulated.sees)[fed])


def test_visible_accepts_jax_arrays_and_ints():
    parts = structured(lay_out(EXAMPLE, 2))
    place = jax.device_put(parts.place)
    on_device = jax.jit(lambda place: visible(jnp.tri(len(IDS), dtype=bool), place.queries(), place.keys()))(place)
    np.testing.assert_array_equal(on_device, visible_matrix(parts))
    places = [Place(*map(int, fields)) for fields in zip(*parts.place, strict=True)]
    one_by_one = [[visible(k <= q, places[q], places[k]) for k in range(len(IDS))] for q in range(len(IDS))]
    np.testing.assert_array_equal(one_by_one, visible_matrix(parts))


def test_many_long_programs():
    rng = random.Random(4)
    for _ in range(300):
        layout = lay_out(random_script(rng), rng.randrange(1, 20))
        np.testing.assert_array_equal(visible_matrix(structured(layout)), matrix(run(layout).sees))


# Positions and labels


def naive_positions(script: list, prompt_length: int, policy: str, constant: int) -> list[int]:
    """Each thread counts separately; `result` holds all positions in linear order."""
    result = list(range(prompt_length))
    here = prompt_length - 1  # main's last
    for part in script:
        if isinstance(part, Join):
            here = max(here, *result, -1) + 1 if policy == "shared_start" else here + 1
            result.append(here)
            continue
        for _ in range(part.count if isinstance(part, Plain) else part.topic + 2):
            here += 1
            result.append(here)
        if isinstance(part, Fork):
            block = part.content + 2
            for offset in range(block):
                result.append(here + 1 + offset)
            here += {"predicted": part.tens * 10, "constant": constant, "oracle": block, "shared_start": 0}[policy]
    return result


def naive_labels(layout: Layout, last: int) -> list[int]:
    label = [-1] * len(layout.ids)
    for thread in (layout.main, *layout.forks):
        for place, following in itertools.pairwise(thread):
            label[place] = layout.ids[following]
    if layout.main:
        label[layout.main[-1]] = last
    return [-1 if place < layout.prompt_length - 1 else id for place, id in enumerate(label)]


@examples(600)
@given(scripts, st.integers(0, 5), st.sampled_from(POLICIES), st.integers(0, 50), st.booleans())
def test_positions_and_labels_against_naive_ones(script, prompt_length, policy, constant, ended):
    layout = lay_out(script, prompt_length)
    parts = structured(layout, Positions(policy, constant), ended=ended)
    assert parts.position.tolist() == naive_positions(script, prompt_length, policy, constant)
    assert parts.label.tolist() == naive_labels(layout, END_OF_TURN if ended else NO_LABEL)


def test_an_empty_response_is_all_end_of_turn():
    parts = structured(lay_out([], 3))
    assert parts.label.tolist() == [-1, -1, END_OF_TURN]
    assert structured(lay_out([], 0)).label.tolist() == []


def test_tags_in_the_prompt_have_no_meaning():
    parts = structure([TAGS.sync, TAGS.promise, TAGS.end_async, 5], TAGS, 3, END_OF_TURN)
    assert parts.chunk.tolist() == parts.epoch.tolist() == [0, 0, 0, 0]
    assert parts.main.tolist() == [1, 2, 3, 4]
    assert parts.label.tolist() == [-1, -1, 5, END_OF_TURN]


@pytest.mark.parametrize("policy", POLICIES)
def test_position_arithmetic_accepts_arrays(policy):
    positions = Positions(policy)
    p, tens, length = np.array([3, 10]), np.array([1, 64]), np.array([12, 5])
    at_once = resume_position(jnp.array(p), jnp.array(tens), positions, jnp.array(length))
    one_by_one = [resume_position(*one, positions, other) for *one, other in zip(p, tens, length, strict=True)]
    np.testing.assert_array_equal(at_once, one_by_one)
    np.testing.assert_array_equal(fork_position(jnp.array(p)), [4, 11])
    joined = [sync_position(7, highest, positions) for highest in (5, 6, 20)]
    assert joined == ([7, 7, 21] if policy == "shared_start" else [7, 7, 7])
    np.testing.assert_array_equal(sync_position(jnp.array([7, 7, 7]), jnp.array([5, 6, 20]), positions), joined)


# Errors


@pytest.mark.parametrize(
    ("ids", "index"),
    [
        ([1, 2, TAGS.end_async], 2),
        ([1, 2, TAGS.promise, 3], 2),
        ([1, 2, TAGS.promise, TAGS.close(1), 4, TAGS.async_, TAGS.end_async], 4),
        ([1, 2, TAGS.promise, TAGS.close(1), TAGS.async_, 4], 4),
        ([1, 2, 3, END_OF_TURN], 3),
    ],
)
def test_malformed_responses_are_named_by_index(ids, index):
    with pytest.raises(LangError, match=f"^id {index}: "):
        structure(ids, TAGS, 2, END_OF_TURN)


def test_invalid_arguments():
    with pytest.raises(LangError, match="prompt length from 0 to 2, not 3"):
        structure([1, 2], TAGS, 3, END_OF_TURN)
    with pytest.raises(PastaError, match="choose one of predicted, constant, oracle, shared_start"):
        Positions("predictive")
    with pytest.raises(PastaError, match="unknown while decoding"):
        resume_position(3, 2, Positions("oracle"))
