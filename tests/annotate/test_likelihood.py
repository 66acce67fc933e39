"""The likelihood verifier: rows have PASTA's visibility, every byte stays, text that needs a chunk is detected."""

import dataclasses
import functools
import random
import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.annotate import hiding
from pasta_jax.annotate.dependence import TwinCosts, auc, detect, parallel_twins, threshold, twins
from pasta_jax.annotate.hiding import (
    NO_CHUNKS,
    STYLE,
    ForkPlan,
    Row,
    ScoredRow,
    costs,
    full_row,
    hidden_from,
    hidden_row,
    score,
    weights,
    words_of,
    worst_window,
)
from pasta_jax.annotate.likelihood import critical_path, cut, prune, reassemble, tidy
from pasta_jax.annotate.settings import Weighing
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.lang.tags import tens_for
from pasta_jax.models.config import PRESETS
from pasta_jax.models.transformer import forward
from pasta_jax.weights.model import Model
from tests.helpers.examples import examples
from tests.helpers.models import random_params
from tests.helpers.programs import random_program
from tests.helpers.traces import Chatty

TOKENIZER = Chatty()
TAGS = TOKENIZER.tags
PROMPT = TOKENIZER.encode("Why?")
MESSAGES = [("user", "Why?")]
WEIGHING = Weighing(max_cost=0.5, window=4, max_fixes=4, min_speedup=1.05, lengths=(256, 640, 1536))

ANNOTATION = (
    'Two things.\n1.<async topic="food"> Eat by the river at night, slowly.</async>\n'
    '2.<async topic="sights"> See the old forum before ten, alone.</async>\n<sync/>Enjoy both.'
)

TWO = Program.from_annotation(ANNOTATION, TOKENIZER)


@functools.cache
def toy() -> Model:
    config = dataclasses.replace(PRESETS["toy"], layers=1, window=None, global_every=1)
    return Model("toy", config, jax.device_put(random_params(config, 1)), TOKENIZER)


programs = st.randoms(use_true_random=False).map(lambda rng: random_program(rng)[0])


@examples(200)
@given(programs)
def test_a_hidden_row_has_the_visibility_of_the_linear_program(program):
    pieces, plan = cut(program, TOKENIZER)
    row = hidden_row(pieces, plan, PROMPT)
    ids = np.asarray(PROMPT + program.ids(TOKENIZER))
    linear = structure(ids, TAGS, len(PROMPT), TOKENIZER.end_of_turn)
    tags = TAGS.is_tag(ids)
    # The ids of a topic, between [PROMISE] and [/PROMISE:n], are main text too.
    in_topic = np.cumsum(ids == TAGS.promise) > np.cumsum(TAGS.is_close(ids))
    text = ~tags & ~in_topic & (np.arange(len(ids)) >= len(PROMPT))
    in_piece = row.piece >= 0
    np.testing.assert_array_equal(row.token[in_piece], ids[text])
    np.testing.assert_array_equal(row.mask[np.ix_(in_piece, in_piece)], visible_matrix(linear)[np.ix_(text, text)])


@examples(100)
@given(programs)
def test_main_sees_an_open_chunk_as_its_topic(program):
    """Position for position, main is the text with topics in place of open chunks."""
    pieces, plan = cut(program, TOKENIZER)
    plan = ForkPlan(plan.chunks, frozenset())
    row = hidden_row(pieces, plan, PROMPT)
    by_piece = [list(piece.stub) if n in plan.chunks else list(piece.ids) for n, piece in enumerate(pieces)]
    main_ids = PROMPT + [id for ids in by_piece for id in ids]
    in_main = ~np.isin(row.piece, sorted(plan.chunks))
    np.testing.assert_array_equal(row.token[in_main], main_ids)
    np.testing.assert_array_equal(row.position[in_main], np.arange(len(main_ids)))
    np.testing.assert_array_equal(row.mask[np.ix_(in_main, in_main)], np.tri(len(main_ids), dtype=bool))
    index = np.flatnonzero(in_main)
    np.testing.assert_array_equal(row.before[index][1:], index[:-1])


def test_a_fork_sees_main_up_to_its_promise_and_itself_but_not_its_own_topic():
    pieces, plan = cut(TWO, TOKENIZER)
    row = hidden_row(pieces, plan, PROMPT)
    [_, second] = sorted(plan.chunks)
    last = np.flatnonzero(row.piece == second)[-1]
    in_fork = bytes(row.token[row.mask[last]].tolist()).decode()
    assert in_fork == "Why?Two things.\n1. food\n2. See the old forum before ten, alone."
    at_end = bytes(row.token[row.mask[-1]].tolist()).decode()
    assert at_end == f"Why?{TWO.strip()}"


@jax.jit
def _log_probs(token, position, mask):
    return jax.nn.log_softmax(forward(toy().params, toy().config, token[None], position[None], mask[None])[0])


def log_probs_in_one_pass(row: Row) -> np.ndarray:
    """The log-probability of each token of a row, from one pass over all of it; padded, to compile few shapes."""
    token, position, mask = (np.pad(a, (0, -len(row.token) % 256)) for a in (row.token, row.position, row.mask))
    return np.asarray(_log_probs(token, position, mask | np.eye(len(mask), dtype=bool)))[row.before, row.token]


def checked_score(pieces, plan: ForkPlan, earlier=(), requested=None, slots=512) -> ScoredRow:
    """The scored hidden row of all pieces or the requested ones, after comparing it with a single pass."""
    requested = range(len(pieces)) if requested is None else requested
    scored = score(toy(), hidden_row(pieces, plan, PROMPT), requested, slots, earlier)
    known = np.isin(scored.row.piece, requested)
    np.testing.assert_allclose(scored.log_prob[known], log_probs_in_one_pass(scored.row)[known], atol=1e-4)
    return scored


def test_log_probs_equal_those_of_the_text_alone():
    """Padding and hidden tokens change nothing: main's view is scored as exactly that text."""
    pieces, plan = cut(Program.from_annotation(ANNOTATION.replace("<sync/>", ""), TOKENIZER), TOKENIZER)
    full = checked_score(pieces, NO_CHUNKS)
    hidden = checked_score(pieces, plan, [full])
    stubs = [dataclasses.replace(piece, ids=piece.stub, topic=None) if piece.topic else piece for piece in pieces]
    main_alone = checked_score(stubs, NO_CHUNKS, slots=256)
    for n in set(range(len(pieces))) - plan.chunks:
        main, alone = (scored.log_prob[scored.row.piece == n] for scored in (hidden, main_alone))
        np.testing.assert_allclose(main, alone, atol=1e-4)
    assert np.nanmax(np.abs(full.log_prob)) > 0.1
    by_piece = costs(pieces, plan, (full, hidden), frozenset())
    first = min(plan.chunks)
    assert max(np.abs(cost).max() for cost in by_piece[: first + 1]) == 0, "nothing is hidden from the first chunk"
    assert max(np.abs(cost).max() for cost in by_piece[first + 1 :]) > 1e-4
    assert by_piece[first + 1][0] == 0, "where main continues after a chunk"


def test_shared_prefixes_are_not_computed_again(monkeypatch):
    """Log-probabilities equal those of whole rows, whatever was computed before."""
    forward_block, blocks, rows = hiding._forward_block, [], []
    monkeypatch.setattr(hiding, "_forward_block", lambda *args: blocks.append(len(args[5])) or forward_block(*args))
    rng = random.Random(2)
    for _ in range(2):
        pieces, plan = cut(Program.from_annotation(random_annotation(rng), TOKENIZER), TOKENIZER)
        earlier = [checked_score(pieces, NO_CHUNKS)]
        for _ in range(5):
            chunks = frozenset(n for n in plan.chunks if rng.random() < 0.7)
            variant = ForkPlan(chunks, plan.joins | {rng.randrange(len(pieces))})
            requested = rng.choice([None, [rng.randrange(len(pieces))]])
            earlier.append(checked_score(pieces, variant, earlier, requested))
        rows += earlier
    assert sum(blocks) < 0.7 * sum(scored.length for scored in rows)


def test_words_of_ids():
    text = "É, b_c 12!"
    ids = TOKENIZER.encode(text)
    assert words_of(text, ids, TOKENIZER) == ("é", "é", "", "", "b_c", "b_c", "b_c", "", "12", "12", "")
    assert words_of("", [], TOKENIZER) == ()


def test_words_that_only_hidden_text_introduces_count_in_full():
    program = Program(
        (
            Text("See it:"),
            Chunk("food", 1, " the food is red here"),
            Chunk("sights", 1, " the cat is blue here"),
            Chunk("rest", 1, " the hall is loud here"),
            Text("\nRed food here, I see, is loud."),
        )
    )
    pieces, plan = cut(program, TOKENIZER)
    weight = weights(pieces, plan, len(pieces) - 1, frozenset({"loud"}))
    in_full = {word for word, full in zip(pieces[-1].words, weight == 1, strict=True) if full}
    assert in_full == {"red"}, "food is a topic, here and is are phrases, see is main's, loud the question's"
    joined = weights(pieces, ForkPlan(plan.chunks, frozenset({len(pieces) - 1})), len(pieces) - 1, frozenset())
    assert (joined == STYLE).all(), "everything is joined"


def test_a_phrase_of_three_chunks_is_one_for_those_before_the_third_too():
    """What a fix leaves is weighed as it was found: also with the chunks behind it."""
    chunks = (Chunk(f"topic{n}", 1, f" the same, one{n}") for n in range(3))
    pieces, plan = cut(Program((Text("See:"), *chunks)), TOKENIZER)
    second = sorted(plan.chunks)[1]
    full, hidden = checked_score(pieces, NO_CHUNKS), checked_score(pieces, plan)
    found = costs(pieces, plan, (full, hidden), frozenset())[second]
    prefix = checked_score(pieces[: second + 1], plan)
    [*_, left] = costs(pieces, plan, (full, prefix), frozenset(), last=second)
    np.testing.assert_allclose(left, found, atol=1e-4)
    assert set(weights(pieces, plan, second, frozenset())) == {STYLE}
    assert set(weights(pieces[: second + 1], plan, second, frozenset())) == {STYLE, 1}


@pytest.mark.parametrize(
    ("costs", "window", "worst"), [([0, 3, 1, 0, 0], 2, 2), ([4], 4, 1), ([-4, -1], 2, 0), ([], 2, 0)]
)
def test_worst_window(costs, window, worst):
    assert worst_window(np.asarray(costs, float), window) == worst


@examples(200)
@given(programs)
def test_reassembled_pieces_are_the_same_program(program):
    """Except for lengths, which are measured, and repeated syncs, of which one remains."""
    pieces, plan = cut(program, TOKENIZER)
    result = reassemble(pieces, plan)
    assert result.strip() == program.strip()
    chunks = [part for part in program.parts if isinstance(part, Chunk)]
    tens = [min(tens_for(len(chunk.text.encode()) + 2), 64) for chunk in chunks]
    assert [part for part in result.parts if isinstance(part, Chunk)] == [
        dataclasses.replace(chunk, tens=n) for chunk, n in zip(chunks, tens, strict=True)
    ]
    assert critical_path(pieces, plan, TOKENIZER) == clock(result.ids(TOKENIZER), TAGS, 0).critical_path


@examples(200)
@given(programs)
def test_tidy_plans_are_never_slower_and_have_no_idle_sync(program):
    pieces, plan = cut(program, TOKENIZER)
    result = tidy(pieces, plan, TOKENIZER)
    assert result.chunks <= plan.chunks
    assert result.joins <= plan.joins
    assert critical_path(pieces, result, TOKENIZER) <= critical_path(pieces, plan, TOKENIZER)
    for at in result.joins:
        assert hidden_from(ForkPlan(result.chunks, result.joins - {at}), at), "a sync waits for something"


def random_annotation(rng: random.Random) -> str:
    words = ["red", "green", "old", "new", "river", "stone", "house", "bird", "away", "again", "never", "slowly"]
    parts = []
    for n in range(rng.randrange(1, 7)):
        text = " " + " ".join(rng.choices(words, k=rng.randrange(5, 12))) + "."
        parts.append(rng.choice(["", f"\n{n}.", "\n\nSo be it.\n", "<sync/>", "\n<sync/>Then"]))
        parts.append(f'<async topic="{rng.choice(words)}">{text}</async>' if rng.random() < 0.8 else text)
    return "".join(parts)


@pytest.mark.parametrize("max_cost", [-1.0, 0.0001, 0.0005, 100.0])
def test_pruning_keeps_every_byte_and_leaves_no_passage_above_the_limit(max_cost):
    weighing = dataclasses.replace(WEIGHING, max_cost=max_cost, min_speedup=1.0)
    rng = random.Random(1)
    proposals = [Program.from_annotation(random_annotation(rng), TOKENIZER) for _ in range(8)]
    remaining = 0
    for proposal in proposals:
        result, evidence = prune(toy(), MESSAGES, proposal, weighing)
        assert result.strip() == proposal.strip()
        pieces, plan = cut(result, TOKENIZER)
        remaining += len(plan.chunks)
        assert len(evidence["measured"]) >= len(plan.chunks)
        assert (evidence["cost"] is None) == (not plan.chunks)
        assert (evidence["cost"] or 0) <= max(max_cost, 0)
        proposed_chunks = sum(isinstance(part, Chunk) for part in proposal.parts)
        if len(plan.chunks) == proposed_chunks and not evidence["fixes"]:  # else the pieces here are cut differently
            prompt = TOKENIZER.chat(MESSAGES)
            rows = full_row(pieces, prompt), hidden_row(pieces, plan, prompt)
            scored = [score(toy(), row, range(len(pieces)), 640) for row in rows]
            by_piece = costs(pieces, plan, scored, frozenset({"why"}))
            worst = [worst_window(by_piece[n], weighing.window) for n in range(len(pieces)) if hidden_from(plan, n)]
            assert max(worst, default=0) == pytest.approx(evidence["cost"], abs=1e-4)
        if max_cost == 100:
            pieces, plan = cut(proposal, TOKENIZER)
            assert result == reassemble(pieces, tidy(pieces, plan, TOKENIZER))
            assert not evidence["fixes"]
    assert (remaining > 0) == (max_cost > 0)


def test_an_answer_without_chunks_needs_no_pass():
    result, evidence = prune(toy(), MESSAGES, Program((Text("Because <sync/> of this."), Sync())), WEIGHING)
    assert result == Program((Text("Because <sync/> of this."),))
    assert evidence["passes"] == 0


def test_an_answer_that_is_too_long_is_refused():
    with pytest.raises(PastaError, match="over 256"):
        prune(toy(), [("user", "Why? " * 100)], TWO, dataclasses.replace(WEIGHING, lengths=(256,)))


def test_twins_differ_only_in_their_last_part():
    pairs = twins(200, seed=0)
    assert pairs == twins(200, seed=0)
    assert len({twin.dependent.render() for twin in pairs}) == 200
    for twin in pairs:
        assert twin.dependent.parts[:-1] == twin.independent.parts[:-1]
        assert isinstance(twin.dependent.parts[-1], Chunk) == twin.by_sibling
        assert not any(isinstance(part, Sync) for part in twin.dependent.parts)
        chunk = [part for part in twin.dependent.parts if isinstance(part, Chunk)][twin.chunk].text
        assert twin.fact in chunk
        assert twin.fact in twin.dependent.parts[-1].text
        assert twin.fact not in twin.independent.parts[-1].text
        assert twin.fact not in twin.instruction


def test_twins_of_parallel_style_share_a_form_and_only_one_of_them_a_fact():
    pairs = parallel_twins()
    assert len(pairs) == 30
    for twin in pairs:
        chunks = [part for part in (*twin.dependent.parts, twin.independent.parts[-1]) if isinstance(part, Chunk)]
        first, used, other = (set(re.findall(r"\w{3,}", chunk.text)) for chunk in chunks)
        assert (first & used) - other, twin.instruction
        names = {word for word in first & other if word[0].isupper() or word[0].isdigit()}
        assert names <= {"The", "She", "They", "You", "People"}
        assert twin.dependent.parts[:-1] == twin.independent.parts[:-1]


def test_detection_figures():
    assert [auc(*groups) for groups in (([2, 3], [0, 1]), ([0, 3], [1, 2]), ([1], [1]))] == [1, 0.5, 0.5]
    groups = (([3, 4], [1, 2]), ([3, 1.5], [1, 2]), ([1], [1]))
    assert [threshold(*each) for each in groups] == [(2.5, 1), (2.5, 0.75), (1, 0.5)]
    costs = [TwinCosts(0.4, 0.1), TwinCosts(0.3, 0.2), TwinCosts(0.1, 0.0), TwinCosts(0.5, 0.3)]
    result = detect(costs, max_cost=0.25)
    assert (result.pairs, result.detected, result.false_alarms) == (4, 0.75, 0.25)
    assert result.auc == auc([0.4, 0.3, 0.1, 0.5], [0.1, 0.2, 0.0, 0.3])
    assert (result.threshold, result.accuracy) == (pytest.approx(0.35), 0.75)
