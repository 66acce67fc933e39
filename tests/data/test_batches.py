"""Batches: every label once; equal on any number of hosts and after a restart; packing changes no loss."""

import dataclasses
import functools
import hashlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.example import VECTORS, Example, encode, windows
from pasta_jax.data.packing import Batch, fill_rows, mask, pack
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL, POLICIES, PREDICTED, Positions, structure, visible_matrix
from pasta_jax.models import transformer
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.examples import examples
from tests.helpers.models import TINY, random_params
from tests.helpers.programs import random_program

TOKENIZER = ByteTokenizer()
LAYOUT = Layout(lengths=(64, 128, 512), rows=4, packed=True, too_long="drop")


def example(seed: int, policy: str = "predicted") -> Example:
    rng = random.Random(seed)
    prompt = [TOKENIZER.bos, *rng.choices(range(256), k=rng.randrange(20))]
    ids = random_program(rng)[0].ids(TOKENIZER)
    return encode(prompt, ids, TOKENIZER.tags, TOKENIZER.end_of_turn, Positions(policy))


EXAMPLES = [example(seed) for seed in range(150)]


def records_of(batch: Batch) -> list[tuple]:
    """The content of each record of a batch, wherever it is packed."""
    records = []
    for row in range(len(batch.token)):
        for record in range(1, batch.record[row].max(initial=0) + 1):
            at = batch.record[row] == record
            records.append(tuple(getattr(batch, name)[row, at].tobytes() for name in VECTORS))
    return records


def test_an_example_is_the_structure_of_its_ids():
    ids = random_program(random.Random(5))[0].ids(TOKENIZER)
    for policy in POLICIES:
        result = encode([TOKENIZER.bos, 65], ids, TOKENIZER.tags, TOKENIZER.end_of_turn, Positions(policy, 30))
        expected = structure([TOKENIZER.bos, 65, *ids], TOKENIZER.tags, 2, TOKENIZER.end_of_turn, Positions(policy, 30))
        assert result.token.tolist() == [TOKENIZER.bos, 65, *ids]
        for name in VECTORS[1:]:
            np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    with pytest.raises(PastaError, match="no tokens"):
        encode([], ids, TOKENIZER.tags, TOKENIZER.end_of_turn, PREDICTED)


@given(st.integers(0, 10**6), st.integers(2, 40))
@examples(60)
def test_windows_train_every_label_once_and_keep_visibility(seed, length):
    whole = dataclasses.replace(
        example(seed), position=np.arange(len(example(seed)), dtype=np.int32)
    )  # positions: places
    pieces = windows(whole, length)
    trained = [int(p) for piece in pieces for p in piece.position[piece.label != NO_LABEL]]
    assert trained == np.flatnonzero(whole.label != NO_LABEL).tolist()
    assert all(len(piece) <= length for piece in pieces)
    sees = visible_matrix(whole)
    for piece in pieces:
        at = piece.position
        np.testing.assert_array_equal(visible_matrix(piece), sees[np.ix_(at, at)])
        np.testing.assert_array_equal(piece.token, whole.token[at])
    for piece in pieces[1:]:
        assert np.flatnonzero(piece.label != NO_LABEL)[0] >= length // 2


@given(st.lists(st.integers(1, 100), max_size=400))
def test_every_record_is_in_one_row_and_no_row_overflows(lengths):
    rows = fill_rows(lengths, 100)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= 100 for row in rows)
    assert len(rows) <= max(1, 2 * -(-sum(lengths) // 100) + 1)


def test_records_of_a_row_see_neither_each_other_nor_padding():
    batch = pack([EXAMPLES[:3], EXAMPLES[3:4]], 800)
    sees = mask(batch)
    start = 0
    for number, one in enumerate(EXAMPLES[:3], start=1):
        stop = start + len(one)
        inside = np.zeros(800, bool)
        inside[start:stop] = True
        np.testing.assert_array_equal(sees[0, start:stop, start:stop], visible_matrix(one))
        assert not sees[0, start:stop, ~inside].any()
        assert (batch.record[0, start:stop] == number).all()
        start = stop
    assert (batch.record[0, start:] == 0).all()
    assert (batch.label[batch.record == 0] == NO_LABEL).all()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("too_long", ["drop", "split"])
def test_an_epoch_trains_each_record_once(packed, too_long):
    layout = dataclasses.replace(LAYOUT, lengths=(32, 64), packed=packed, too_long=too_long)
    feed = Feed(EXAMPLES, layout)
    short = [one for one in EXAMPLES if len(one) <= 64]
    assert feed.dropped == (len(EXAMPLES) - len(short)) * (too_long == "drop")
    expected = (
        [one for e in EXAMPLES for one in (windows(e, 64) if len(e) > 64 else [e])] if too_long == "split" else short
    )
    expected = sorted(tuple(getattr(one, name).tobytes() for name in VECTORS) for one in expected)
    steps = feed.steps(7, 1)
    for epoch in (0, 1):
        batches = [feed.batch(7, step) for step in range(epoch * steps, feed.steps(7, epoch + 1))]
        assert sorted(record for batch in batches for record in records_of(batch)) == expected
        assert {batch.token.shape for batch in batches} <= {(4, 32), (4, 64)}
    if not packed:
        assert max(batch.record.max() for batch in batches) == 1


def test_epochs_and_seeds_shuffle_records_and_batches():
    feed = Feed(EXAMPLES, LAYOUT)

    def rows(seed: int, epoch: int) -> list[bytes]:
        first, end = feed.steps(seed, epoch), feed.steps(seed, epoch + 1)
        return [row.tobytes() for step in range(first, end) for row in feed.batch(seed, step).token]

    one = rows(0, 0)
    for other in (rows(1, 0), rows(0, 1)):
        assert len(set(one) & set(other)) < 0.7 * len(set(one))  # other records share a row
    assert feed.locate(0, feed.steps(0, 2)) == (2, 0)
    assert rows(0, 0) == one


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_share_one_batch(hosts):
    alone = Feed(EXAMPLES, LAYOUT)
    shared = [Feed(EXAMPLES, LAYOUT, host, hosts) for host in range(hosts)]
    for step in range(alone.steps(3, 2)):
        whole = alone.batch(3, step)
        parts = [feed.batch(3, step) for feed in shared]
        together = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
        jax.tree.map(np.testing.assert_array_equal, whole, together)


def test_a_restart_continues_with_the_next_batch():
    """The order itself is pinned: changing it would change the data of runs in progress."""
    batches = [Feed(EXAMPLES, LAYOUT).batch(11, step) for step in (40, 3, 0)]
    digests = [hashlib.sha256(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(batch))) for batch in batches]
    assert [digest.hexdigest()[:12] for digest in digests] == ["b11ab7d54267", "96722bd0fe34", "e3616036a6ef"]


def test_later_epochs_order_the_records_once(monkeypatch):
    orders = []
    ordered = Feed._batches_of_epoch
    monkeypatch.setattr(Feed, "_batches_of_epoch", lambda self, *key: orders.append(key) or ordered(self, *key))
    feed = Feed(EXAMPLES, LAYOUT)
    for step in range(feed.steps(0, 8)):
        feed.batch(0, step)
    assert len(orders) <= 16  # for the number of steps, and for the batches


def test_what_does_not_fit_is_refused():
    with pytest.raises(PastaError, match="record 1 has 101 tokens"):
        fill_rows([3, 101], 100)
    with pytest.raises(PastaError, match="row 0"):
        pack([[EXAMPLES[0]]], len(EXAMPLES[0]) - 1)
    for wrong in ({"lengths": (64, 64)}, {"lengths": ()}, {"rows": 2**16}):
        with pytest.raises(PastaError):
            dataclasses.replace(LAYOUT, **wrong)
    with pytest.raises(PastaError, match="rows 4: 3 hosts"):
        Feed(EXAMPLES, LAYOUT, 0, 3)
    with pytest.raises(PastaError, match="none of 150"):
        Feed(EXAMPLES, dataclasses.replace(LAYOUT, lengths=(2,)))


CONFIG = dataclasses.replace(TINY, layers=2, embed=16, ff=16, head_dim=8, window=24, global_every=2)


@functools.partial(jax.jit, static_argnames="config")
def losses(params, batch: Batch, see_BxTxT, config):
    """Cross-entropy [B, T] of every label, 0 where there is none."""
    logits_BxTxV = transformer.forward(params, config, batch.token, batch.position, see_BxTxT)
    log_probs = jax.nn.log_softmax(logits_BxTxV)
    label_log_probs = jnp.take_along_axis(log_probs, jnp.maximum(batch.label, 0)[..., None], -1)[..., 0]
    return jnp.where(batch.label == NO_LABEL, 0.0, -label_log_probs)


@pytest.mark.parametrize("policy", ["predicted", "shared_start"])
def test_packed_loss_is_the_loss_of_each_record_alone(policy):
    examples = [example(seed, policy) for seed in range(12)]
    examples = [one for one in examples if len(one) <= 256]
    params = random_params(CONFIG, 1)
    together = pack([[examples[n] for n in row] for row in fill_rows(map(len, examples), 256)], 256)
    alone = pack([[one] for one in examples], 256)
    assert len(together.token) < len(alone.token)
    packed, unpacked = (losses(params, batch, mask(batch), CONFIG) for batch in (together, alone))
    at = [
        (row, start)
        for row in range(len(together.token))
        for start in np.flatnonzero(np.diff(together.record[row], prepend=0) > 0)
    ]
    order = [n for row in fill_rows(map(len, examples), 256) for n in row]
    for (row, start), number in zip(at, order, strict=True):
        length = len(examples[number])
        np.testing.assert_allclose(packed[row, start : start + length], unpacked[number, :length], atol=1e-5)
    assert float(jnp.sum(packed)) == pytest.approx(float(jnp.sum(unpacked)), rel=1e-6)
