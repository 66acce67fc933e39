"""The loss against threads that keep lists of what they see; its kinds of labels; the softmax in slices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.data.example import Example, encode, windows
from pasta_jax.data.packing import Batch, pack
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from pasta_jax.models.parameters import stack, unstack
from pasta_jax.models.parts import RMSNorm, rope_waves
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train.loss import KINDS, Scoring, kinds, sft_loss, sliced_losses, token_losses
from pasta_jax.weights.adapter import merge, new_adapter
from pasta_jax.weights.settings import AdapterSettings
from tests.helpers.models import random_params, trained

TOKENIZER = toy_tokenizer()
TAGS = TOKENIZER.tags
CONFIG = dataclasses.replace(PRESETS["toy"], vocab=TOKENIZER.model_vocab, layers=2, global_every=2)
SCORING = Scoring(CONFIG, TAGS, jnp.float32, slice=32, block=0, remat=False, products=jnp.float32)
EVEN = (1.0,) * len(KINDS)
LENGTH = 288  # of every row here, so that each program is compiled once
LOSSES = jax.jit(functools.partial(token_losses, SCORING))


def total(loss, trainable, frozen, batch):
    """What is minimised, before the division, and all sums beside it."""
    sums = loss(trainable, frozen, batch)
    return sums.parts["loss"][0], sums


GRADIENT = jax.jit(jax.value_and_grad(functools.partial(total, sft_loss(SCORING, EVEN)), has_aux=True))


@functools.cache
def params():
    with jax.ensure_compile_time_eval():  # the first caller may be traced, and the cache must not hold its tracers
        return jax.device_put(random_params(CONFIG, seed=4, scale=0.2))


def row(examples: list[Example]) -> Batch:
    """One batch row, padded at the end."""
    return pack([examples], LENGTH)


@functools.cache
def everything():
    """Loss, sums and gradient over all records."""
    return GRADIENT(params(), None, row([example for example, _ in records()]))


@functools.cache
def records() -> list[tuple[Example, int]]:
    """Toy problems with every kind of label, and the lengths of their prompts."""
    examples = []
    some = [p for p in problems(1, 0, 60, "small") if p.style in ("each", "halves") and len(p.lines) > 1]
    for problem in [p for p in some if p.has_ends][:2] + [p for p in some if not p.has_ends][:2]:
        prompt = TOKENIZER.chat([("user", problem.instruction)])
        answer = problem.program(TOKENIZER).ids(TOKENIZER)
        examples.append((encode(prompt, answer, TAGS, TOKENIZER.end_of_turn, PREDICTED), len(prompt)))
    return examples


# Naive implementations


def remembered(ids, prompt: int) -> tuple[list[list[int]], list[int]]:
    """(what each token attends to, what it predicts), by threads that keep lists; -1 predicts nothing."""
    main, chunk, view, unread = [], None, [], []
    sees, last, label = [], {}, [-1] * len(ids)
    for place, id in enumerate(ids):
        response = place >= prompt
        if response and id == TAGS.async_:
            view, chunk = list(main), []
            last["chunk"] = None
        if chunk is not None:
            chunk.append(place)
            sees.append(view + chunk)
            if last["chunk"] is not None:
                label[last["chunk"]] = id
            last["chunk"] = place
            if id == TAGS.end_async:
                unread.append(chunk)
                chunk = None
            continue
        if response and id == TAGS.sync:
            main += [place for finished in unread for place in finished]
            unread = []
        main.append(place)
        sees.append(list(main))
        if response:
            label[last["main"]] = id
        last["main"] = place
    label[last["main"]] = TOKENIZER.end_of_turn
    return sees, label


def naive_loss(params, example: Example, prompt: int):
    """(sum over the labels of one record, their number): each token reads the keys on its list."""
    ids, position = example.token.tolist(), example.position
    sees, label = remembered(ids, prompt)
    x_1xTxE = params["embed"][jnp.asarray(ids)][None] * CONFIG.embed**0.5
    for l, layer in enumerate(params["layers"]):
        near = [
            [s for s in sees[t] if not CONFIG.is_local(l) or position[t] - position[s] < CONFIG.window]
            for t in range(len(ids))
        ]
        # Lists of one length, so that few programs are compiled: -1 is no key.
        lists_TxN = np.array([keys + [-1] * (len(ids) - len(keys)) for keys in near])

        def attend(q_1xTxKxGxD, k_1xTxKxD, v_1xTxKxD, _, lists_TxN=lists_TxN):
            k_TxNxKxD, v_TxNxKxD = k_1xTxKxD[0][lists_TxN], v_1xTxKxD[0][lists_TxN]
            score_TxKxGxN = jnp.einsum("tkgd,tnkd->tkgn", q_1xTxKxGxD[0], k_TxNxKxD) * CONFIG.score_scale
            score_TxKxGxN = CONFIG.attention_cap * jnp.tanh(score_TxKxGxN / CONFIG.attention_cap)
            size = jnp.where(lists_TxN[:, None, None] < 0, 0.0, jnp.exp(score_TxKxGxN))
            size = size / jnp.sum(size, axis=-1, keepdims=True)
            return jnp.einsum("tkgn,tnkd->tkgd", size, v_TxNxKxD)[None], None

        rope = CONFIG.local_rope if CONFIG.is_local(l) else CONFIG.rope
        waves = rope_waves(rope, CONFIG.head_dim, jnp.asarray(position)[None])
        x_1xTxE, _ = transformer.Layer(CONFIG).apply({"params": layer}, x_1xTxE, waves, attend)
    x_1xTxE = RMSNorm(CONFIG.norm_eps).apply({"params": params["final_norm"]}, x_1xTxE)
    log_p_TxV = jax.nn.log_softmax(transformer.logits(params, CONFIG, x_1xTxE)[0])
    labelled = np.array([t for t, id in enumerate(label) if id >= 0])
    return -jnp.sum(log_p_TxV[labelled, np.array(label)[labelled]]), len(labelled)


def threads_loss(params, example: Example, prompt: int):
    """The same for a record without sync, whose threads are plain texts: the prompt and main as far as the thread sees
    them, then the thread, each under the ordinary causal mask."""
    ids, chunk = example.token, example.chunk
    sees, label = remembered(ids.tolist(), prompt)
    threads = [np.flatnonzero(chunk == number) for number in range(chunk.max() + 1)]
    texts = [np.array(sees[thread[-1]]) for thread in threads]
    shape = (len(texts), len(ids))
    token, position, target = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1)
    for row, (text, thread) in enumerate(zip(texts, threads, strict=True)):
        token[row, : len(text)], position[row, : len(text)] = ids[text], example.position[text]
        target[row, : len(text)] = np.where(np.isin(text, thread), np.array(label)[text], -1)
    see = transformer.causal(jnp.asarray(position))
    log_p_BxTxV = jax.nn.log_softmax(transformer.forward(params, CONFIG, token, jnp.asarray(position), see))
    row, place = np.nonzero(target >= 0)
    return -jnp.sum(log_p_BxTxV[row, place, target[row, place]]), len(row)


def close(ours, theirs, tolerance):
    """Equal relative to the largest entry of each leaf."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        size = max(np.abs(np.asarray(b)).max(), 1e-3)
        np.testing.assert_allclose(a / size, b / size, atol=tolerance, err_msg=jax.tree_util.keystr(path))


def check(naive, some: list[tuple[Example, int]]) -> None:
    """Our loss and gradient over records in one padded row, against the sums of a naive implementation."""

    def theirs(params):
        sums, counts = zip(*(naive(params, *record) for record in some), strict=True)
        return sum(sums), sum(counts)

    (expected, count), expected_gradient = jax.jit(jax.value_and_grad(theirs, has_aux=True))(params())
    (value, sums), gradient = GRADIENT(params(), None, row([example for example, _ in some]))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert int(sums.parts["loss"][1]) == int(count)
    close(gradient, expected_gradient, 1e-4)


@pytest.mark.slow
def test_loss_and_gradients_equal_those_of_threads_that_keep_lists():
    check(naive_loss, [record for record in records() if TAGS.sync in record[0].token][:2])


@pytest.mark.slow
def test_loss_and_gradients_equal_those_of_each_thread_as_a_plain_text():
    unsynced = [record for record in records() if TAGS.sync not in record[0].token and record[0].chunk.any()]
    check(threads_loss, unsynced[:2])


def test_packed_records_have_the_same_losses_as_alone():
    examples = [example for example, _ in records()]
    together = LOSSES(params(), row(examples))[0]
    start = 0
    for example in examples:
        alone = LOSSES(params(), row([example]))[0]
        np.testing.assert_allclose(together[start : start + len(example)], alone[: len(example)], atol=2e-5)
        start += len(example)
    assert np.all(together[start:] == 0)


@pytest.mark.slow
def test_blocked_attention_has_the_same_loss():
    """Through all layers, local ones too, scanned, and with rematerialisation."""
    batch = row([example for example, _ in records()])
    loss = sft_loss(dataclasses.replace(SCORING, block=128, remat=True), EVEN)
    with_gradient = jax.jit(jax.value_and_grad(functools.partial(total, loss), has_aux=True))
    (value, _), gradient = with_gradient(stack(params()), None, batch)
    (expected, _), expected_gradient = everything()
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    close(unstack(gradient), expected_gradient, 1e-4)


# Kinds


def test_every_label_has_exactly_one_kind():
    batch = row([example for example, _ in records()])
    masks = kinds(batch, TAGS)
    assert tuple(masks) == KINDS
    np.testing.assert_array_equal(sum(np.asarray(mask).astype(int) for mask in masks.values()), batch.label != NO_LABEL)
    label = {name: set(batch.label[np.asarray(mask)].tolist()) for name, mask in masks.items()}
    assert label["sync"] == {TAGS.sync}
    assert all(TAGS.is_close(id) for id in label["length"])
    assert TAGS.promise in label["main"]
    assert TOKENIZER.end_of_turn in label["main"]
    assert TAGS.end_async in label["chunk"]
    assert not any(TAGS.is_tag(id) for id in label["topic"])
    topics = {TOKENIZER.decode([id]).strip() for id in label["topic"]}
    assert topics <= {"birds", "boats", "colours", "dances", ""}


def test_windows_of_a_record_have_the_same_kinds():
    """A window that starts inside a promise sees no more of it than its own tokens."""
    example = records()[0][0]
    whole = kinds(pack([[example]], len(example)), TAGS)
    length = 40
    counts = dict.fromkeys(KINDS, 0)
    for piece in windows(example, length):
        for name, mask in kinds(pack([[piece]], length), TAGS).items():
            counts[name] += int(np.sum(mask))
    assert sum(counts.values()) == int(np.sum(example.label != NO_LABEL))
    for name in ("length", "chunk", "sync"):
        assert counts[name] == int(np.sum(whole[name]))
    assert 0 <= int(np.sum(whole["topic"])) - counts["topic"] <= 2


def test_weights_select_kinds():
    batch = row([example for example, _ in records()])
    only_sync = tuple(2.0 * (kind == "sync") for kind in KINDS)
    parts = jax.jit(sft_loss(SCORING, only_sync))(params(), None, batch).parts
    total, weight = parts["loss"]
    np.testing.assert_allclose(total / weight, parts["loss_sync"][0] / parts["loss_sync"][1], rtol=1e-6)
    (_, even), _ = everything()
    np.testing.assert_allclose(even.parts["loss"][1], np.sum(batch.label != NO_LABEL))


def test_the_bracket_weight_is_a_further_factor_on_forks_and_ends_of_chunks():
    batch = row([example for example, _ in records()])
    losses = np.asarray(LOSSES(params(), batch))
    factors = {TAGS.promise: 3.0, TAGS.end_async: 3.0}
    weights = np.vectorize(lambda label: factors.get(label, 1.0))(batch.label) * (batch.label != NO_LABEL)
    total, weight = jax.jit(sft_loss(SCORING, EVEN, bracket=3.0))(params(), None, batch).parts["loss"]
    np.testing.assert_allclose(total / weight, np.sum(losses * weights) / np.sum(weights), rtol=1e-5)
    assert weight == np.sum(batch.label != NO_LABEL) + 2 * np.isin(batch.label, list(factors)).sum() > 0


# The softmax in slices


def hidden_and_labels(length: int = 50):
    rng = np.random.default_rng(0)
    label = rng.integers(0, CONFIG.vocab, (2, length)).astype(np.int32)
    label[rng.random((2, length)) < 0.3] = NO_LABEL
    return jnp.asarray(rng.standard_normal((2, length, CONFIG.embed)), jnp.float32), label


@pytest.mark.parametrize("size", [7, pytest.param(50, marks=pytest.mark.slow), 1000])
def test_slices_have_the_same_loss_as_all_at_once(size):
    x, label = hidden_and_labels()
    label[:, -20:] = NO_LABEL  # some slices have no labels
    order = np.arange(1.0, label.size + 1, dtype=np.float32).reshape(label.shape)  # each loss belongs to its token
    table = {"embed": params()["embed"]}

    def plain(table, x):
        log_p = jax.nn.log_softmax(transformer.logits(table, CONFIG, x))
        target = jnp.take_along_axis(log_p, jnp.maximum(label, 0)[:, :, None], axis=2)[:, :, 0]
        return jnp.sum(order * jnp.where(label != NO_LABEL, -target, 0.0) ** 2)

    def sliced(table, x):
        return jnp.sum(order * sliced_losses(dataclasses.replace(SCORING, slice=size), table, x, label)[:, :, 0] ** 2)

    expected, actual = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(table, x) for f in (plain, sliced))
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    close(actual[1], expected[1], 1e-5)


def test_the_full_logits_are_never_materialised():
    """Forward and backward, a large vocabulary takes memory for one slice of tokens and for the table's gradient."""
    config = dataclasses.replace(CONFIG, vocab=50_000)
    scoring = dataclasses.replace(SCORING, config=config, slice=16)
    length = 1024
    x, label = jnp.zeros((1, length, config.embed)), jnp.zeros((1, length), jnp.int32)
    table = {"embed": jnp.zeros((config.vocab, config.embed))}

    def summed(table, x):
        return jnp.sum(sliced_losses(scoring, table, x, label)[:, :, 0])

    used = jax.jit(jax.grad(summed, argnums=(0, 1))).lower(table, x).compile().memory_analysis().temp_size_in_bytes
    assert used < length * config.vocab * 4 / 4
    assert used > 16 * config.vocab * 4  # one slice's logits are included, so the measurement works


@pytest.mark.slow
def test_only_adapters_are_trained_with_the_correct_gradient():
    """The tags' rows get the gradient that they have in a whole table's."""
    adapter = trained(new_adapter(params(), AdapterSettings(rank=2, alpha=4.0), TAGS, seed=0), seed=3, size=0.1)
    batch = row([example for example, _ in records()])

    def ours(adapter):
        return sft_loss(SCORING, EVEN)(adapter, params(), batch).parts["loss"][0]

    def plain(adapter):
        return jnp.sum(token_losses(SCORING, merge(params(), adapter, TAGS), batch))

    expected, actual = (jax.jit(jax.value_and_grad(f))(adapter) for f in (plain, ours))
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    close(actual[1], expected[1], 1e-4)
    assert np.abs(actual[1]["tag_rows"]["embed"]).max() > 0
    assert all(np.abs(pair["lora_b"]).max() > 0 for layer in actual[1]["layers"] for pair in layer.values())


def test_tokens_are_counted_without_padding():
    (_, sums), _ = everything()
    assert int(sums.tokens) == sum(len(example) for example, _ in records()) < LENGTH
