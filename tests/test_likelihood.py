"""The likelihood verifier: it sees as PASTA sees, keeps every byte, and tells text that needs a chunk from text that
doesn't."""

import dataclasses
import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.verifier import get_config
from launch import verifier
from pasta_jax.annotate import hiding
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
from pasta_jax.annotate.likelihood import Weighing, critical_path, cut, prune, prune_all, reassemble, tidy
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.dependence import auc, threshold, twins
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.lang.tags import tens_for
from pasta_jax.models.config import PRESETS
from pasta_jax.models.transformer import forward
from pasta_jax.models.weights import Model, load_model
from tests.byte_tokenizer import ByteTokenizer
from tests.models import random_params
from tests.programs import random_program
from tests.requires import requires_smollm2


class Chatting(ByteTokenizer):
    def chat(self, messages):
        return [self.bos, *self.encode(messages[-1][1])]


TOKENIZER = Chatting()
TAGS = TOKENIZER.tags
PROMPT = TOKENIZER.encode("Why?")
ASKED = [("user", "Why?")]
HOW = Weighing(max_cost=0.5, window=4, max_fixes=4, min_speedup=1.05, lengths=(256, 640, 1536))

ANNOTATION = (
    'Two things.\n1.<async topic="food"> Eat by the river at night, slowly.</async>\n'
    '2.<async topic="sights"> See the old forum before ten, alone.</async>\n<sync/>Enjoy both.'
)

TWO = Program.from_annotation(ANNOTATION, TOKENIZER)


@functools.cache
def toy() -> Model:
    config = dataclasses.replace(PRESETS["toy"], layers=1, window=None, global_every=1)
    return Model("toy", config, jax.tree.map(jnp.asarray, random_params(config, 1)), TOKENIZER)


programs = st.randoms(use_true_random=False).map(lambda rng: random_program(rng)[0])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs)
def test_a_hidden_row_is_seen_as_the_linear_program_is(program):
    pieces, plan = cut(program, TOKENIZER)
    row = hidden_row(pieces, plan, PROMPT)
    ids = np.asarray(PROMPT + program.ids(TOKENIZER))
    found = structure(ids, TAGS, len(PROMPT), TOKENIZER.end_of_turn)
    tags = TAGS.is_tag(ids)
    # A topic's pieces are main text, too: they stand between [PROMISE] and [/PROMISE:n].
    in_topic = np.cumsum(ids == TAGS.promise) > np.cumsum(TAGS.is_close(ids))
    text = ~tags & ~in_topic & (np.arange(len(ids)) >= len(PROMPT))
    ours = row.piece >= 0
    np.testing.assert_array_equal(row.token[ours], ids[text])
    np.testing.assert_array_equal(row.mask[np.ix_(ours, ours)], visible_matrix(found)[np.ix_(text, text)])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(programs)
def test_to_main_an_open_chunk_is_its_topic(program):
    """Position for position, main reads the text in which topics stand for open chunks."""
    pieces, plan = cut(program, TOKENIZER)
    plan = ForkPlan(plan.chunks, frozenset())
    row = hidden_row(pieces, plan, PROMPT)
    written = [list(piece.stub) if n in plan.chunks else list(piece.ids) for n, piece in enumerate(pieces)]
    seen = PROMPT + [id for ids in written for id in ids]
    in_main = ~np.isin(row.piece, sorted(plan.chunks))
    np.testing.assert_array_equal(row.token[in_main], seen)
    np.testing.assert_array_equal(row.position[in_main], np.arange(len(seen)))
    np.testing.assert_array_equal(row.mask[np.ix_(in_main, in_main)], np.tri(len(seen), dtype=bool))
    behind = np.flatnonzero(in_main)
    np.testing.assert_array_equal(row.before[behind][1:], behind[:-1])


def test_a_fork_reads_main_up_to_its_promise_and_itself_but_not_its_own_topic():
    pieces, plan = cut(TWO, TOKENIZER)
    row = hidden_row(pieces, plan, PROMPT)
    [_, second] = sorted(plan.chunks)
    last = np.flatnonzero(row.piece == second)[-1]
    seen = bytes(row.token[row.mask[last]].tolist()).decode()
    assert seen == "Why?Two things.\n1. food\n2. See the old forum before ten, alone."
    end = bytes(row.token[row.mask[-1]].tolist()).decode()
    assert end == f"Why?{TWO.strip()}"


def whole(row: Row) -> np.ndarray:
    """The log-probability of each token of a row, from one pass over all of it."""
    model, positions = toy(), row.position[None]
    scores = forward(model.params, model.config, row.token[None], positions, row.mask[None])[0]
    return np.asarray(jax.nn.log_softmax(scores))[row.before, row.token]


def reading(pieces, plan: ForkPlan, before=(), asked=None, slots=512) -> ScoredRow:
    """Of all pieces or those asked for; as one pass over the whole row has it."""
    asked = range(len(pieces)) if asked is None else asked
    found = score(toy(), hidden_row(pieces, plan, PROMPT), asked, slots, before)
    answered = np.isin(found.row.piece, asked)
    np.testing.assert_allclose(found.log_prob[answered], whole(found.row)[answered], atol=1e-4)
    return found


def test_log_probs_are_those_of_the_text_alone():
    """Padding and hidden tokens change nothing: main's view is scored as that very text."""
    pieces, plan = cut(Program.from_annotation(ANNOTATION.replace("<sync/>", ""), TOKENIZER), TOKENIZER)
    full = reading(pieces, NO_CHUNKS)
    hidden = reading(pieces, plan, [full])
    outline = [dataclasses.replace(piece, ids=piece.stub, topic=None) if piece.topic else piece for piece in pieces]
    told = reading(outline, NO_CHUNKS, slots=256)
    for n in set(range(len(pieces))) - plan.chunks:
        main, alone = (each.log_prob[each.row.piece == n] for each in (hidden, told))
        np.testing.assert_allclose(main, alone, atol=1e-4)
    assert np.nanmax(np.abs(full.log_prob)) > 0.1
    found = costs(pieces, plan, (full, hidden), frozenset())
    first = min(plan.chunks)
    assert max(np.abs(cost).max() for cost in found[: first + 1]) == 0, "nothing is hidden from the first chunk"
    assert max(np.abs(cost).max() for cost in found[first + 1 :]) > 1e-4
    assert found[first + 1][0] == 0, "where main goes on behind a chunk"


def test_what_was_read_before_is_not_read_again(monkeypatch):
    """By suffix, whatever was read before and however far, log-probabilities are those of whole rows."""
    forward_block, blocks, readings = hiding._forward_block, [], []
    monkeypatch.setattr(hiding, "_forward_block", lambda *args: blocks.append(len(args[5])) or forward_block(*args))
    rng = random.Random(2)
    for _ in range(2):
        pieces, plan = cut(Program.from_annotation(random_annotation(rng), TOKENIZER), TOKENIZER)
        before = [reading(pieces, NO_CHUNKS)]
        for _ in range(5):
            some = ForkPlan(
                frozenset(n for n in plan.chunks if rng.random() < 0.7), plan.joins | {rng.randrange(len(pieces))}
            )
            asked = rng.choice([None, [rng.randrange(len(pieces))]])
            before.append(reading(pieces, some, before, asked))
        readings += before
    assert sum(blocks) < 0.7 * sum(each.length for each in readings)


def test_words_of_ids():
    text = "É, b_c 12!"
    ids = TOKENIZER.encode(text)
    found = words_of(text, ids, TOKENIZER)
    assert found == ("é", "é", "", "", "b_c", "b_c", "b_c", "", "12", "12", "")
    assert words_of("", [], TOKENIZER) == ()


def test_in_full_count_words_that_hidden_text_alone_brings_up():
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
    counted = {word for word, full in zip(pieces[-1].words, weight == 1, strict=True) if full}
    assert counted == {"red"}, "food is a topic, here and is are phrases, see is main's, loud the question's"
    nothing = weights(pieces, ForkPlan(plan.chunks, frozenset({len(pieces) - 1})), len(pieces) - 1, frozenset())
    assert (nothing == STYLE).all(), "all is joined"


def test_worst_window():
    assert worst_window(np.asarray([0.0, 3.0, 1.0, 0.0, 0.0]), 2) == 2
    assert worst_window(np.asarray([4.0]), 4) == 1
    assert worst_window(np.asarray([-4.0, -1.0]), 2) == 0
    assert worst_window(np.asarray([]), 2) == 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs)
def test_cut_and_joined_up_again_it_is_the_same_program(program):
    """But for lengths, which are measured anew, and for several syncs in a row, of which one does it."""
    pieces, plan = cut(program, TOKENIZER)
    again = reassemble(pieces, plan)
    assert again.strip() == program.strip()
    told = [part for part in program.parts if isinstance(part, Chunk)]
    measured = [tens_for(len(part.text.encode()) + 2) for part in told]
    assert [part for part in again.parts if isinstance(part, Chunk)] == [
        dataclasses.replace(part, tens=min(tens, 64)) for part, tens in zip(told, measured, strict=True)
    ]
    assert critical_path(pieces, plan, TOKENIZER) == clock(again.ids(TOKENIZER), TAGS, 0).critical_path


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs)
def test_tidied_plans_are_never_slower_and_hold_nothing_idle(program):
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
def test_pruning_keeps_every_byte_and_leaves_no_passage_in_need(max_cost):
    how = dataclasses.replace(HOW, max_cost=max_cost, min_speedup=1.0)
    rng = random.Random(1)
    items = [(ASKED, Program.from_annotation(random_annotation(rng), TOKENIZER)) for _ in range(8)]
    kept = 0
    for index, left, evidence in prune_all(toy(), items, how):
        proposed = items[index][1]
        assert left.strip() == proposed.strip()
        pieces, plan = cut(left, TOKENIZER)
        kept += len(plan.chunks)
        assert len(evidence["measured"]) >= len(plan.chunks)
        assert (evidence["cost"] is None) == (not plan.chunks)
        assert (evidence["cost"] or 0) <= max(max_cost, 0)
        proposals = sum(isinstance(part, Chunk) for part in proposed.parts)
        if len(plan.chunks) == proposals and not evidence["fixes"]:  # else ours are cut otherwise
            rows = full_row(pieces, TOKENIZER.chat(ASKED)), hidden_row(pieces, plan, TOKENIZER.chat(ASKED))
            readings = [score(toy(), row, range(len(pieces)), 640) for row in rows]
            found = costs(pieces, plan, readings, frozenset({"why"}))
            needs = [worst_window(found[n], how.window) for n in range(len(pieces)) if hidden_from(plan, n)]
            assert max(needs, default=0) == pytest.approx(evidence["cost"], abs=1e-4)
        if max_cost == 100:
            pieces, plan = cut(proposed, TOKENIZER)
            assert left == reassemble(pieces, tidy(pieces, plan, TOKENIZER))
            assert not evidence["fixes"]
    assert (kept > 0) == (max_cost > 0)


def test_an_answer_without_chunks_needs_no_pass():
    left, evidence = prune(toy(), ASKED, Program((Text("Because <sync/> of this."), Sync())), HOW)
    assert left == Program((Text("Because <sync/> of this."),))
    assert evidence["passes"] == 0


def test_too_long_is_said():
    with pytest.raises(PastaError, match="over 256"):
        prune(toy(), [("user", "Why? " * 100)], TWO, dataclasses.replace(HOW, lengths=(256,)))


def test_auc():
    assert auc([2.0, 3.0], [0.0, 1.0]) == 1
    assert auc([0.0, 3.0], [1.0, 2.0]) == 0.5
    assert auc([1.0], [1.0]) == 0.5


def test_twins_are_the_same_but_for_their_last_part():
    made = twins(200, seed=0)
    assert made == twins(200, seed=0)
    assert len({twin.dependent.render() for twin in made}) == 200
    for twin in made:
        assert twin.dependent.parts[:-1] == twin.independent.parts[:-1]
        assert isinstance(twin.dependent.parts[-1], Chunk) == twin.by_sibling
        assert not any(isinstance(part, Sync) for part in twin.dependent.parts)
        told = [part for part in twin.dependent.parts if isinstance(part, Chunk)][twin.chunk].text
        assert twin.fact in told
        assert twin.fact in twin.dependent.parts[-1].text
        assert twin.fact not in twin.independent.parts[-1].text
        assert twin.fact not in twin.instruction


def test_threshold():
    assert threshold([3.0, 4.0], [1.0, 2.0]) == (2.5, 1.0)
    assert threshold([3.0, 1.5], [1.0, 2.0]) == (2.5, 0.75)
    assert threshold([1.0], [1.0]) == (1.0, 0.5)


@pytest.mark.usefixtures("fully_compiled")
@requires_smollm2
def test_a_real_model_tells_used_facts_from_unused_ones(capsys):
    """A sample of what the command measures."""
    verifier.main(get_config("tiny"))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["pairs"] == 8
    assert found["all"]["auc"] >= 0.9


@pytest.mark.usefixtures("fully_compiled")
@requires_smollm2
def test_a_real_model_mends_what_needs_a_chunk_and_leaves_what_does_not():
    model = load_model("smollm2_135m", "")
    how = Weighing(max_cost=0.15, window=12, max_fixes=4, min_speedup=1.0, lengths=(192, 256))
    twin = twins(200, seed=0)[6]
    [(_, used, told), (_, free, untold)] = prune_all(
        model, [([("user", twin.instruction)], program) for program in (twin.dependent, twin.independent)], how
    )
    assert untold["fixes"] == []
    assert [part.text for part in free.parts if isinstance(part, Chunk)] == [
        part.text for part in twin.independent.parts if isinstance(part, Chunk)
    ]
    assert len(told["fixes"]) == 1
    pieces, plan = cut(used, model.tokenizer)
    needed = next(n for n, piece in enumerate(pieces) if twin.fact in piece.text)
    assert needed not in hidden_from(plan, len(pieces) - 1), "the last line reads the fact"
    assert used.strip() == twin.dependent.strip()
