"""The rules for topics on one topic at a time, by hand and compared with the oracle; and that for ends of chunks."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode.grammar import allow
from pasta_jax.decode.request import Request
from pasta_jax.decode.sampling import FORBIDDEN
from pasta_jax.decode.state import LoopSpec, Topics, empty_state
from pasta_jax.decode.topics import completing, kind_of, read_topic, spelling, text_kinds, topic_ids
from pasta_jax.lang.grammar import CHUNK, FORK, MAIN, SYNC, TOPIC
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.oracle import choice
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import TINY

LANES, SLOTS = 16, 48
PIECES = [
    *("ci", "nn", "cinn", "amon", "abar", "AMON", "wine", "1"),
    *(" Cinn", " Wine", "red ", " a b", ". ", " ", "\n", ""),
]


class Words(ByteTokenizer):
    """Pieces of words for the first ids, bytes for the others."""

    def piece(self, id: int) -> bytes:
        return PIECES[id].encode() if id < len(PIECES) else super().piece(id)


TOKENIZER = Words()
TAGS = TOKENIZER.tags
SPEC = LoopSpec(TAGS, TOKENIZER.stop_ids, 384, 2, (1, 2), (), PREDICTED, 64, topics=topic_ids(TOKENIZER))


@functools.partial(jax.jit, static_argnames="spec")
def feed(state, token_B, spec):
    """Main feeds one id in every lane."""
    opens_B = TAGS.is_close(token_B)
    inside_B = jnp.where(state.topic >= 0, state.topic + 1, -1)
    topic_B = jnp.where(token_B == TAGS.promise, 0, jnp.where(opens_B, -1, inside_B))
    state = dataclasses.replace(state, spawned=state.spawned + opens_B)
    topics = read_topic(state, topic_B, jnp.ones(LANES, bool), token_B, opens_B, spec)
    return dataclasses.replace(state, topic=topic_B, topics=topics)


@functools.partial(jax.jit, static_argnames="spec")
def allowed(state, spec):
    """bool [B, V]: the text ids that may continue the topics, as the interpreter combines the rules."""
    kind_V = jnp.asarray(np.frombuffer(spec.topics.kinds, np.uint8))
    return ((kind_V[None] & text_kinds(state)[:, None]) != 0) & ~completing(state, 384, spec)


def new_state(max_words: list[int], distinct: list[bool]):
    state = empty_state(TINY, LANES, SLOTS, jnp.float32, stacked=False, topics=True)
    limits = {"max_topic_words": jnp.array(max_words), "distinct_topics": jnp.array(distinct)}
    rules = dataclasses.replace(state.request.rules, **limits)
    request = dataclasses.replace(state.request, rules=rules)
    return dataclasses.replace(state, request=request, live=jnp.ones(LANES, bool))


def after(*topics: str, max_words: int = 0, distinct: bool = False) -> set[str]:
    """The pieces that may continue the last of these topics, each written as pieces divided by |."""
    state = new_state([max_words] * LANES, [distinct] * LANES)
    for number, topic in enumerate(topics):
        ids = [TAGS.promise, *(PIECES.index(piece) for piece in topic.split("|") if topic)]
        for id in ids + [TAGS.close(3)] * (number < len(topics) - 1):
            state = feed(state, jnp.full(LANES, id), SPEC)
    may = np.asarray(allowed(state, SPEC))
    assert (may == may[:1]).all()
    return {piece for piece, is_legal in zip(PIECES, may[0], strict=False) if is_legal}


EVERY = set(PIECES)
ONE_WORD = EVERY - {" a b", "", "\n"}


@pytest.mark.parametrize(
    ("topic", "max_words", "expected"),
    [
        ("", 0, EVERY),
        ("red |wine| Cinn", 0, EVERY),
        ("", 1, ONE_WORD),
        ("cinn", 2, ONE_WORD),
        ("cinn", 1, {"ci", "nn", "cinn", "amon", "abar", "AMON", ". ", "red ", "wine", "1"}),
        ("red ", 1, set()),  # the word has ended
        ("red |wine", 2, {"ci", "nn", "cinn", "amon", "abar", "AMON", ". ", "red ", "wine", "1"}),
        (" |cinn| Wine|. ", 2, set()),
    ],
)
def test_words(topic, max_words, expected):
    assert after(topic, max_words=max_words) == expected


@pytest.mark.parametrize(
    ("topics", "banned"),
    [
        (["ci|nn|amon", "ci|nn"], {"amon", "AMON"}),
        (["ci|nn|amon", "cinn"], {"amon", "AMON"}),  # other pieces, the same text
        (["ci|nn|amon", " Cinn|. "], {"amon", "AMON"}),
        (["ci|nn|amon", ""], set()),
        (["ci|nn|amon", "ci"], set()),
        (["cinn", "wine", ""], {"cinn", " Cinn", "wine", " Wine"}),
        (["cinn", "wine", "wine"], set()),  # cannot occur: an earlier topic is longer or different
        ([" |. ", ""], set()),  # nothing to compare
        (["red |wine", "red "], {"wine", " Wine"}),
    ],
)
def test_a_topic_never_spells_an_earlier_one(topics, banned):
    assert after(*topics, distinct=True) == EVERY - banned
    assert after(*topics) == EVERY


def test_masks_equal_the_oracles_on_random_topics():
    rng = random.Random(1)
    compared = forbidden = 0
    for _ in range(30):
        words, distinct = [rng.choice([0, 1, 2]) for _ in range(LANES)], [rng.random() < 0.7 for _ in range(LANES)]
        state, topics = new_state(words, distinct), []  # topics [topic, place, lane]
        for length in (2, 2, rng.randint(0, 2)):
            topics.append([[rng.randrange(len(PIECES)) for _ in range(LANES)] for _ in range(length)])
            closing = [[TAGS.close(1)] * LANES] * (len(topics) < 3)
            for column in ([TAGS.promise] * LANES, *topics[-1], *closing):
                state = feed(state, jnp.array(column), SPEC)
        may = np.asarray(allowed(state, SPEC))[:, : len(PIECES)]
        for lane in range(LANES):
            limits = {"max_topic_words": words[lane], "distinct_topics": distinct[lane]}
            request = Request((1,), 9, sequential=False, rules=Rules(**limits))
            *earlier, topic = (tuple(column[lane] for column in topic) for topic in topics)

            def breaks(id: int, at: int) -> bool:
                return choice.breaks_topic_rules(id, (*earlier, topic[:at]), request, TOKENIZER)  # noqa: B023

            if any(breaks(id, at) for at, id in enumerate(topic)):
                continue  # the rules would not have let it come so far
            expected = [not breaks(id, len(topic)) for id in range(len(PIECES))]
            assert may[lane].tolist() == expected, (earlier, topic, limits)
            compared += 1
            forbidden += not all(expected)
    assert compared > 200
    assert forbidden > 100


def test_what_would_begin_another_word_gives_its_probability_to_the_closing_tags():
    state = new_state([2] * LANES, [False] * LANES)
    for id in (TAGS.promise, PIECES.index("red "), PIECES.index("ci")):
        state = feed(state, jnp.full(LANES, id), SPEC)
    logits = np.random.default_rng(2).normal(0, 3, (LANES, 384)).astype(np.float32)
    places = jnp.full(LANES, TOPIC), state.request.tags_allowed, state.request.rules
    masked = np.asarray(allow(jnp.asarray(logits), SPEC, *places, text_kinds(state)))
    text = np.array([not TAGS.is_tag(id) and id not in TOKENIZER.stop_ids for id in range(384)])
    close = np.array([bool(TAGS.is_close(id)) for id in range(384)])
    extends = text & (masked[0] > FORBIDDEN)
    assert 0 < extends.sum() < text.sum()
    before = np.where(text | close, np.exp(logits), 0)
    before, after = (x / x.sum(axis=1, keepdims=True) for x in (before, np.exp(masked)))
    np.testing.assert_allclose(after[:, extends], before[:, extends], rtol=1e-4)
    np.testing.assert_allclose(after[:, close].sum(axis=1), 1 - before[:, extends].sum(axis=1), rtol=1e-4)
    ratio = after[:, close] / before[:, close]
    np.testing.assert_allclose(ratio, ratio[:, :1].repeat(64, 1), rtol=1e-4)  # lengths stay as likely among themselves


def test_a_chunk_that_would_write_what_only_main_may_ends_instead():
    logits = np.random.default_rng(3).normal(0, 3, (4, 384)).astype(np.float32)
    rules = Rules(end_stray_chunks=jnp.array([True, False, True, False]))
    states = jnp.array([CHUNK, CHUNK, MAIN, MAIN])
    masked = np.asarray(allow(jnp.asarray(logits), SPEC, states, jnp.full(4, FORK | SYNC), rules))
    end, mains = TAGS.end_async, [TAGS.promise, TAGS.sync, *TOKENIZER.stop_ids]
    expected = np.where(masked > FORBIDDEN, logits, masked)
    expected[0, end] = np.log(np.exp(logits[0, [end, *mains]]).sum())
    np.testing.assert_allclose(masked, expected, rtol=1e-5)  # the other rows are only masked
    assert (masked[0, mains] == FORBIDDEN).all()


def test_kinds_and_spellings():
    assert len({kind_of(text) for text in ("a", "a ", "a.")}) == 1
    assert len({kind_of(text) for text in (" a", "\u00a0a ")}) == 1
    assert len({kind_of(text) for text in ("a b", "", " a b", "\n", "\na", "a\r")}) == 1
    assert len({kind_of(text) for text in ("a", " a", " ", "")}) == 4
    assert spelling(" Größe-2_x\n".encode()) == "grösse2x".encode()
    assert spelling("กิน".encode()) != spelling("กัน".encode())  # vowel signs are no letters, but make other words
    assert spelling("☀️ 1️⃣".encode()) == b"1"
    character = "数".encode()
    assert spelling(b" " + character[:1]) + spelling(character[1:]) == character


def test_a_program_without_the_rules_carries_nothing_of_them():
    assert empty_state(TINY, 1, SLOTS, jnp.float32, stacked=False).topics is None
    assert isinstance(new_state([0] * LANES, [True] * LANES).topics, Topics)
