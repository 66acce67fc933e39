"""Next-token cross-entropy under PASTA's mask, positions and labels, broken down by kind of label.

Vocabulary logits exist for one slice of tokens at a time, in the forward and in the backward pass.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.data.packing import Batch, mask
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.bfloat16 import BITS
from pasta_jax.models.mask import EVERYTHING, MaskSpec
from pasta_jax.models.transformer import logits, trunk
from pasta_jax.train.legal import Grammar
from pasta_jax.train.state import Params
from pasta_jax.weights.adapter import attach

KINDS = ("main", "topic", "length", "chunk", "sync")


class LossSums(NamedTuple):
    """A loss over a batch, as sums that add up over parts of the batch."""

    parts: dict[str, tuple[jax.Array, jax.Array]]  # name: (sum, weight); sum / weight of "loss" is minimised
    tokens: jax.Array  # tokens computed, without padding


Loss = Callable[..., LossSums]  # loss(trainable, frozen, batch, whole): see train/loop.py


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How a model computes the losses of tokens; all of it is compiled in."""

    config: TransformerConfig
    tags: TagIds
    dtype: jnp.dtype  # of the computation
    slice: int  # tokens of each row whose logits exist at a time
    block: int  # tokens per block of attention; 0: all at once, with the whole mask in memory
    remat: bool  # recompute each layer in the backward pass instead of storing its activations
    products: jnp.dtype  # of the factors in products with kernels and the head's table; sums have `dtype`
    keep_products: bool = False  # with remat, keep the results of these products

    def __post_init__(self):
        if self.slice < 1:
            raise PastaError(f"slice {self.slice}: must be at least 1 token")


def model_params(scoring: Scoring, trainable: Params, frozen: Params | None) -> Params:
    """The model's parameters: the trainable ones, or frozen ones with the trainable adapter attached."""
    return trainable if frozen is None else attach(frozen, trainable, scoring.tags)


def token_losses(scoring: Scoring, params: Params, batch: Batch) -> jax.Array:
    """float32 [B, T]: the negative log-probability of each label; 0 where there is no label."""
    return label_losses(scoring, params, batch, None)[:, :, 0]


def label_losses(scoring: Scoring, params: Params, batch: Batch, grammar: Grammar | None) -> jax.Array:
    """float32 [B, T, 2]: the losses of labels and, with a grammar, of any legal id in the label's place."""
    place = None if grammar is None else grammar.places(kinds(batch, scoring.tags))
    return sliced_losses(scoring, params, hidden_states(scoring, params, batch), batch.label, grammar, place)


def hidden_states(scoring: Scoring, params: Params, batch: Batch) -> jax.Array:
    """The final hidden states [B, T, E]."""
    as_they_are = ("embed", "head", "tags_at") if "tags_at" in params else ()  # frozen tables aren't copied

    def one(path, leaf):
        if path[0].key in as_they_are or leaf.dtype == BITS:
            return leaf
        return leaf.astype(scoring.products if path[-1].key == "kernel" else scoring.dtype)

    cast = jax.tree_util.tree_map_with_path(one, params)
    see = mask_spec(batch, scoring.block) if scoring.block else mask(batch)
    x_BxTxE, _ = trunk(
        cast,
        scoring.config,
        batch.token,
        batch.position,
        see,
        batch.position,
        remat=scoring.remat,
        keep_products=scoring.keep_products,
    )
    return x_BxTxE


def mask_spec(batch: Batch, block: int) -> MaskSpec:
    """The inputs of `mask`, for blocked attention."""
    return MaskSpec(batch.place, batch.record, batch.position, jnp.int32(EVERYTHING), min(block, batch.token.shape[1]))


def sliced_losses(
    scoring: Scoring,
    params: Params,
    x_BxTxE: jax.Array,
    label_BxT: jax.Array,
    grammar: Grammar | None = None,
    place=None,
) -> jax.Array:
    """float32 [B, T, 2]: the losses of labels and, with a grammar, of any legal id in the label's place [B, T].

    The head and the softmax run over one slice of every row at a time: [B, T, V] never exists. With several slices,
    each row's labelled tokens come first and slices without labels are skipped: prompts and padding need no logits.
    """
    tags = scoring.tags
    lanes, length, _ = x_BxTxE.shape
    size = min(scoring.slice, length)
    padding = -length % size
    asked_BxTx2 = jnp.stack([label_BxT, jnp.zeros_like(label_BxT) if place is None else place], axis=2)
    order_BxT = None
    if size < length:
        order_BxT = jnp.argsort(label_BxT == NO_LABEL, axis=1, stable=True)
        x_BxTxE, asked_BxTx2 = (
            jnp.take_along_axis(of_BxTx_, order_BxT[:, :, None], axis=1) for of_BxTx_ in (x_BxTxE, asked_BxTx2)
        )
    x_BxTxE = jnp.pad(x_BxTxE, ((0, 0), (0, padding), (0, 0)))
    asked_BxTx2 = jnp.pad(asked_BxTx2, ((0, 0), (0, padding), (0, 0)), constant_values=NO_LABEL)
    x_CxBxSxE, asked_CxBxSx2 = (
        jnp.moveaxis(of_BxTx_.reshape(lanes, -1, size, of_BxTx_.shape[2]), 1, 0) for of_BxTx_ in (x_BxTxE, asked_BxTx2)
    )
    # Cast inside the slice only: the table's gradient is a sum over slices and must accumulate in float32.
    head = {name: params[name] for name in ("embed", "head") if name in params}
    rows = params.get("tag_rows")

    def losses(head, rows, x_BxSxE, asked_BxSx2):
        def logits_of(tables, dtype):
            return logits(jax.tree.map(lambda leaf: leaf.astype(dtype), tables), scoring.config, x_BxSxE)

        if rows is None:
            logits_BxSxV = logits_of(head, scoring.products)
        else:
            of_tags = logits_of(rows, scoring.dtype)
            logits_BxSxV = logits_of(lax.stop_gradient(head), scoring.products)
            logits_BxSxV = logits_BxSxV.at[:, :, tags.base : tags.end].set(of_tags)
        label_BxS, place_BxS = asked_BxSx2[:, :, 0], asked_BxSx2[:, :, 1]
        labelled = label_BxS != NO_LABEL
        target = jnp.take_along_axis(logits_BxSxV, jnp.where(labelled, label_BxS, 0)[:, :, None], axis=2)[:, :, 0]
        all_BxS = jax.nn.logsumexp(logits_BxSxV, axis=2)
        legal = jnp.zeros_like(target) if grammar is None else grammar.losses(logits_BxSxV, all_BxS, place_BxS)
        return jnp.where(labelled[:, :, None], jnp.stack([all_BxS - target, legal], axis=2), 0.0)

    @jax.checkpoint
    def one(head, rows, x_BxSxE, asked_BxSx2):
        if order_BxT is None:
            return losses(head, rows, x_BxSxE, asked_BxSx2)
        labelled = jnp.any(asked_BxSx2[:, :, 0] != NO_LABEL)
        return lax.cond(labelled, losses, lambda *_: jnp.zeros(asked_BxSx2.shape), head, rows, x_BxSxE, asked_BxSx2)

    _, loss_CxBxSx2 = lax.scan(lambda _, part: (None, one(head, rows, *part)), None, (x_CxBxSxE, asked_CxBxSx2))
    loss_BxTx2 = jnp.moveaxis(loss_CxBxSx2, 0, 1).reshape(lanes, -1, 2)[:, :length]
    if order_BxT is None:
        return loss_BxTx2
    return jnp.take_along_axis(loss_BxTx2, jnp.argsort(order_BxT, axis=1)[:, :, None], axis=1)


def kinds(batch: Batch, tags: TagIds) -> dict[str, jax.Array]:
    """bool [B, T] for each of KINDS: whether the token's label is of that kind. Every label has exactly one kind."""
    labelled, in_main = batch.label != NO_LABEL, batch.chunk == 0
    length, sync = labelled & in_main & tags.is_close(batch.label), labelled & in_main & (batch.label == tags.sync)
    # A token is inside a promise if the last opening tag of main comes after the last closing one.
    place = jnp.arange(batch.token.shape[1])[None, :]
    opened, closed = (
        lax.cummax(jnp.where(in_main & is_one, place, -1), axis=1)
        for is_one in (batch.token == tags.promise, tags.is_close(batch.token))
    )
    topic = labelled & in_main & (opened > closed) & ~length
    return {
        "main": labelled & in_main & ~topic & ~length & ~sync,
        "topic": topic,
        "length": length,
        "chunk": labelled & ~in_main,
        "sync": sync,
    }


def sft_loss(
    scoring: Scoring,
    weights: tuple[float, ...],
    bracket: float = 1.0,
    grammar: Grammar | None = None,
    legal: float = 0.0,
) -> Loss:
    """The mean loss over labels, each weighted by its kind; `weights` has one entry for each of KINDS.

    `bracket` is a further factor on the labels [PROMISE] and [/ASYNC], which are of kinds main and chunk: they decide
    where an answer forks and where a chunk ends, and are few. `legal` times the mean loss of legal ids is added.
    """
    tags = scoring.tags

    def factors(batch: Batch) -> list[tuple[float, jax.Array]]:
        """Factors, each with the labels whose loss and count it multiplies."""
        of_kind = kinds(batch, tags)
        found = list(zip(weights, of_kind.values(), strict=True))
        if bracket != 1.0:
            for name in ("main", "chunk"):
                found.append((weights[KINDS.index(name)] * (bracket - 1.0), of_kind[name] & is_bracket(batch)))
        return found

    def is_bracket(batch: Batch) -> jax.Array:
        return (batch.label == tags.promise) | (batch.label == tags.end_async)

    def weight_and_count(batch: Batch) -> tuple[jax.Array, jax.Array]:
        weight = functools.reduce(jnp.add, [factor * jnp.sum(is_one) for factor, is_one in factors(batch)])
        return weight, jnp.sum(batch.label != NO_LABEL)

    def loss(trainable: Params, frozen: Params | None, batch: Batch, whole: Batch | None = None) -> LossSums:
        params = model_params(scoring, trainable, frozen)
        losses_BxT, legal_BxT = jnp.moveaxis(label_losses(scoring, params, batch, grammar), 2, 0)
        of_kind = kinds(batch, tags) | {"bracket": is_bracket(batch)}
        sums = {name: (jnp.sum(losses_BxT * is_one), jnp.sum(is_one)) for name, is_one in of_kind.items()}
        total = functools.reduce(jnp.add, [f * jnp.sum(losses_BxT * is_one) for f, is_one in factors(batch)])
        weight, count = weight_and_count(batch)
        if grammar is not None:
            sums["legal"] = jnp.sum(legal_BxT), count
            # Relative to all labels of the batch, not to those of its part: their shares differ.
            of_all, all_labels = (weight, count) if whole is None else weight_and_count(whole)
            total = total + legal * of_all * sums["legal"][0] / jnp.maximum(all_labels, 1)
        parts = {"loss": (total, weight), **{f"loss_{name}": pair for name, pair in sums.items()}}
        return LossSums(parts, jnp.sum(batch.record > 0))

    return loss


def log_probabilities(scoring: Scoring, params: Params, batch: Batch) -> jax.Array:
    """float32 [B]: the summed log-probability of each row's labels."""
    return -jnp.sum(token_losses(scoring, params, batch), axis=1)
