"""Chunks that run on in training: which text they get, and that no label teaches it."""

import random
import re

import numpy as np
import pytest

from pasta_jax.data.example import VECTORS, Example, encode
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import NO_LABEL, POLICIES, Positions
from pasta_jax.runs.settings import changed
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train import sft_data
from pasta_jax.train.settings import SftSettings
from pasta_jax.train.stray import LONGEST, with_strays
from tests.helpers.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags
LIST = (
    'Two:\n1.<promise topic="a" tokens=1 /><async> One.</async>\n2.<promise topic="b" tokens=1 /><async> Two.</async>'
    "<sync/>\nDone."
)


def example(ids: list[int], policy: str = "predicted") -> Example:
    return encode([TOKENIZER.bos, 63], ids, TAGS, TOKENIZER.end_of_turn, Positions(policy))


def strayed(one: Example, share: float, seed: int = 0, policy: str = "predicted") -> Example:
    return with_strays(one, share, seed, TAGS, TOKENIZER.end_of_turn, Positions(policy))


def random_list(rng: random.Random) -> list[int]:
    """An answer of chunks with other text, other tags, or nothing between them."""
    between = ("", "\n2.", "\n* ", "<sync/>", "\n2.<sync/>", " and this as well: ")
    item = '<promise topic="t" tokens={} /><async> Some text.</async>'
    parts = [rng.choice(between[1:]) + item.format(rng.randint(1, 9)) for _ in range(rng.randint(1, 6))]
    return Program.parse("".join(parts) + rng.choice(between)).ids(TOKENIZER)


def chunk_text(one: Example, chunk: int) -> str:
    return TOKENIZER.decode([id for id in one.token[one.chunk == chunk].tolist() if not TAGS.is_tag(id)])


def test_a_chunk_gets_a_beginning_of_what_main_writes_next():
    plain = example(Program.parse(LIST).ids(TOKENIZER))
    texts = set()
    for seed in range(40):
        one = strayed(plain, 1.0, seed)
        texts.add(chunk_text(one, 1))
        assert chunk_text(one, 2) == " Two."  # no promise follows
        assert chunk_text(one, 0) == chunk_text(plain, 0)
    assert texts == {" One.\n", " One.\n2", " One.\n2."}


def test_every_own_token_keeps_its_label_and_a_stray_one_teaches_only_the_end():
    plain = example(Program.parse(LIST).ids(TOKENIZER))
    one = strayed(plain, 1.0)
    [start] = [at for at, label in enumerate(one.label) if label == TAGS.end_async and one.chunk[at] == 1][:1]
    stop = one.token.tolist().index(TAGS.end_async)
    assert chunk_text(plain, 1).endswith(chr(one.token[start]))  # the last own token
    assert one.label[start + 1 : stop].tolist() == [NO_LABEL] * (stop - start - 2) + [TAGS.end_async]
    kept = np.r_[: start + 1, stop : len(one)]
    assert one.token[kept].tolist() == plain.token.tolist()
    assert one.label[kept].tolist() == plain.label.tolist()
    assert set(one.chunk[start:stop].tolist()) == {1}
    assert one.position[stop] == one.position[start] + stop - start


@pytest.mark.parametrize("policy", [POLICIES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in POLICIES[1:])])
def test_random_lists(policy):
    changed = 0
    for seed in range(100):
        plain = example(random_list(random.Random(seed)), policy)
        assert all(np.array_equal(getattr(strayed(plain, 0.0, 0, policy), n), getattr(plain, n)) for n in VECTORS)
        one, again = (strayed(plain, 0.5, 1, policy) for _ in range(2))
        assert all(np.array_equal(getattr(one, name), getattr(again, name)) for name in VECTORS)
        added = len(one) - len(plain)
        changed += added > 0
        assert chunk_text(one, 0) == chunk_text(plain, 0)
        assert one.chunk.max(initial=0) == plain.chunk.max(initial=0)
        ends = [int(np.sum(each.label == TAGS.end_async)) for each in (plain, one)]
        strays = ends[1] - ends[0]
        assert strays <= added <= strays * LONGEST
        assert np.sum(one.label != NO_LABEL) == np.sum(plain.label != NO_LABEL) + strays
    assert changed > 10


def test_the_share_is_that_of_the_chunks_that_may_run_on():
    item = '\n{}.<promise topic="{}" tokens=1 /><async> Some text.</async>'
    ids = Program.parse("".join(item.format(n, n) for n in range(200)) + "\n200").ids(TOKENIZER)
    counts = [np.sum(strayed(example(ids), share).label == TAGS.end_async) - 200 for share in (0.25, 1.0)]
    assert 35 < counts[0] < 65
    assert counts[1] == 199


def test_long_text_is_no_marker():
    long = re.sub(r"\n2\.", "\nAnd as the second:", LIST)
    plain = example(Program.parse(long).ids(TOKENIZER))
    assert len(strayed(plain, 1.0)) == len(plain)


def test_chunks_run_on_in_what_is_trained_on_and_not_in_what_is_held_out(monkeypatch):
    asked = []

    def recorded(one: Example, share: float, seed: int, *_) -> Example:
        asked.append((share, seed))
        return one

    monkeypatch.setattr(sft_data, "with_strays", recorded)
    for share in (0.0, 0.25):
        chosen = {"toy": "small", "toy_count": 20, "held_out": 8, "lengths": (128,), "rows": 4, "stray": share}
        data = sft_data.read_data(changed(SftSettings(), data=chosen, train={"seed": 3}), toy_tokenizer())
        assert data.held_out
        assert asked == [(share, 3)] * (20 if share else 0)
