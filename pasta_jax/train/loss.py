"""Next-token cross-entropy under PASTA's mask, positions and labels, told apart by what a label is.

The vocabulary's logits exist for a slice of tokens at a time only, forwards and backwards.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.data.batch import Batch, mask
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.adapter import attach
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.mask_spec import EVERYTHING, MaskSpec
from pasta_jax.models.transformer import logits, trunk

KINDS = ("main", "topic", "length", "chunk", "sync")


class Measured(NamedTuple):
    """What a loss says of a batch: sums that add up over parts of it."""

    parts: dict[str, tuple[jax.Array, jax.Array]]  # name: (sum, weight); sum / weight of "loss" is minimised
    tokens: jax.Array  # tokens computed, padding apart


@dataclasses.dataclass(frozen=True)
class Scoring:
    """What is fixed when a model scores tokens."""

    config: TransformerConfig
    tags: TagIds
    dtype: jnp.dtype  # what the model computes in
    slice: int  # tokens of each row whose logits exist at a time
    block: int  # tokens that attention looks at at a time; 0: all, with the whole mask in memory
    remat: bool  # compute each layer again in the backward pass instead of keeping its insides

    def __post_init__(self):
        if self.slice < 1:
            raise PastaError(f"slice {self.slice}: it must be at least 1 token")


def model_params(scoring: Scoring, trainable: dict, frozen: dict | None) -> dict:
    """The model's parameters: the trainable ones, or frozen ones with the trainable adapter beside them.

    The tags' rows are also there by themselves, for the head: its gradient is then that of 68 rows, not of a table.
    """
    if frozen is None:
        return trainable
    return attach(frozen, trainable, scoring.tags) | {"tag_rows": trainable["tag_rows"]}


def token_losses(scoring: Scoring, params: dict, batch: Batch):
    """float32 [B, T]: minus the log-probability of each label; 0 where there is none."""
    computed = jax.tree.map(lambda leaf: leaf.astype(scoring.dtype), params)
    see = mask_spec(batch, scoring.block) if scoring.block else mask(batch)
    x_BxTxE, _ = trunk(computed, scoring.config, batch.token, batch.position, see, batch.position, remat=scoring.remat)
    return sliced_losses(scoring, params, x_BxTxE, batch.label)


def mask_spec(batch: Batch, block: int) -> MaskSpec:
    """The inputs of `mask`, for blocked attention."""
    return MaskSpec(batch.place, batch.record, batch.position, jnp.int32(EVERYTHING), min(block, batch.token.shape[1]))


def sliced_losses(scoring: Scoring, params: dict, x_BxTxE, label_BxT):
    """The head and the softmax, a slice of every row at a time: [B, T, V] never exists."""
    tags = scoring.tags
    lanes, length, embed = x_BxTxE.shape
    size = min(scoring.slice, length)
    padding = -length % size
    x_BxTxE = jnp.pad(x_BxTxE, ((0, 0), (0, padding), (0, 0)))
    label_BxT = jnp.pad(label_BxT, ((0, 0), (0, padding)), constant_values=NO_LABEL)
    x_CxBxSxE = jnp.moveaxis(x_BxTxE.reshape(lanes, -1, size, embed), 1, 0)
    label_CxBxS = jnp.moveaxis(label_BxT.reshape(lanes, -1, size), 1, 0)
    # Left in float32 until inside the slice: the table's gradient is a sum over slices.
    head = {name: params[name] for name in ("embed", "head") if name in params}
    rows = params.get("tag_rows")

    @jax.checkpoint
    def one(head, rows, x_BxSxE, label_BxS):
        def said_by(tables):
            return logits(jax.tree.map(lambda leaf: leaf.astype(scoring.dtype), tables), scoring.config, x_BxSxE)

        if rows is None:
            logits_BxSxV = said_by(head)
        else:
            logits_BxSxV = said_by(lax.stop_gradient(head)).at[:, :, tags.base : tags.end].set(said_by(rows))
        there = label_BxS != NO_LABEL
        said = jnp.take_along_axis(logits_BxSxV, jnp.where(there, label_BxS, 0)[:, :, None], axis=2)[:, :, 0]
        return jnp.where(there, jax.nn.logsumexp(logits_BxSxV, axis=2) - said, 0.0)

    _, loss_CxBxS = lax.scan(lambda _, part: (None, one(head, rows, *part)), None, (x_CxBxSxE, label_CxBxS))
    return jnp.moveaxis(loss_CxBxS, 0, 1).reshape(lanes, -1)[:, :length]


def kinds(batch: Batch, tags: TagIds) -> dict[str, jax.Array]:
    """bool [B, T] for each of KINDS: what the token's label is. Every label is of exactly one kind."""
    learnt, in_main = batch.label != NO_LABEL, batch.chunk == 0
    length, sync = learnt & in_main & tags.is_close(batch.label), learnt & in_main & (batch.label == tags.sync)
    # Inside a promise: the last tag of main that opens one lies behind the last that closes one.
    place = jnp.arange(batch.token.shape[1])[None, :]
    opened, closed = (
        lax.cummax(jnp.where(in_main & is_one, place, -1), axis=1)
        for is_one in (batch.token == tags.promise, tags.is_close(batch.token))
    )
    topic = learnt & in_main & (opened > closed) & ~length
    return {
        "main": learnt & in_main & ~topic & ~length & ~sync,
        "topic": topic,
        "length": length,
        "chunk": learnt & ~in_main,
        "sync": sync,
    }


def sft_loss(scoring: Scoring, weights: tuple[float, ...]) -> Callable:
    """loss(trainable, frozen, batch) -> Measured: the mean over labels, each weighed by its kind (one for each of
    KINDS)."""

    def loss(trainable: dict, frozen: dict | None, batch: Batch) -> Measured:
        losses_BxT = token_losses(scoring, model_params(scoring, trainable, frozen), batch)
        of_kind = kinds(batch, scoring.tags)
        sums = {name: (jnp.sum(losses_BxT * is_one), jnp.sum(is_one)) for name, is_one in of_kind.items()}
        weighed = [(w * total, w * count) for w, (total, count) in zip(weights, sums.values(), strict=True)]
        total, weight = (functools.reduce(jnp.add, column) for column in zip(*weighed, strict=True))
        parts = {"loss": (total, weight), **{f"loss_{name}": pair for name, pair in sums.items()}}
        return Measured(parts, jnp.sum(batch.record > 0))

    return loss
