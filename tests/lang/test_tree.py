"""APAR's trees: the text stays, forks carry nothing, and each thread sees its ancestors and itself alone."""

import random

import numpy as np
import pytest

from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions, structure, visible_matrix
from pasta_jax.lang.tree import to_tree
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.programs import random_program

TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    rng = random.Random(5)
    return [random_program(rng)[0] for _ in range(200)]


def test_a_tree_has_the_same_text_and_bare_forks(programs):
    for program in programs:
        ids = program.ids(TOKENIZER)
        tree = to_tree(ids, TAGS)
        assert Program.from_ids(tree.tolist(), TOKENIZER).strip() == program.strip()
        assert TAGS.sync not in tree
        assert all(tree[at + 1] == TAGS.close(1) for at in np.flatnonzero(tree == TAGS.promise))
        assert np.count_nonzero(tree == TAGS.promise) == ids.count(TAGS.promise)
        np.testing.assert_array_equal(to_tree(tree, TAGS), tree)


def test_threads_see_their_ancestors_and_start_where_the_fork_is(programs):
    """Against threads that keep lists of what they saw, as APAR describes them."""
    forks = 0
    for program in programs:
        ids = [*PROMPT, *to_tree(program.ids(TOKENIZER), TAGS).tolist()]
        parts = structure(ids, TAGS, len(PROMPT), TOKENIZER.end_of_turn, Positions("shared_start"))
        sees = visible_matrix(parts)
        parent, child, where = [], None, 0
        for at, id in enumerate(ids):
            if id == TAGS.async_ and at >= len(PROMPT):
                child, where, forks = list(parent), len(parent), forks + 1
            thread = parent if child is None else child
            thread.append(at)
            assert np.flatnonzero(sees[at]).tolist() == thread
            assert parts.position[at] == len(thread) - 1  # in the child and in the parent alike
            if id == TAGS.end_async and at >= len(PROMPT):
                assert len(child) > where
                child = None
    assert forks > 100


def test_a_fork_costs_two_steps_and_nothing_waits():
    program = Program.parse('a<promise topic="b" tokens=2 /><async>chunk</async>c<sync/>d')
    assert clock(to_tree(program.ids(TOKENIZER), TAGS), TAGS, 0).critical_path == max(1 + 2 + 2, 3 + 5)
