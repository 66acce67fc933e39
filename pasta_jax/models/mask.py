"""What attention computes its mask from, one block at a time: a few integers per token."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Place, visible

HIDDEN = -1e30  # score of a masked key; finite, so that a row that sees nothing stays finite
EVERYTHING = 2**30  # a window that holds all positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MaskSpec:
    """int32 [B, T] each, in linear order."""

    place: Place
    record: jax.Array  # tokens of different records never see each other
    position: jax.Array
    window: jax.Array  # int32 scalar: a key's distance to its query, in positions, is less than this
    block: int = dataclasses.field(metadata={"static": True})  # queries, and keys, per block

    def __post_init__(self):
        if self.block < 1:
            raise PastaError(f"attention block {self.block}: must be at least 1 token")

    def within(self, window: int) -> "MaskSpec":
        """The same mask with another window."""
        return dataclasses.replace(self, window=jnp.int32(window))

    def vectors(self) -> tuple[jax.Array, ...]:
        """What `sees` compares, int32 [B, T] each."""
        order_BxT = jax.lax.broadcasted_iota(jnp.int32, self.record.shape, 1)
        return order_BxT, self.record, self.position, *self.place


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """The same for the rows of a decoding step, which read the slots of a pool."""

    row: Place  # int32 [B, R]; the places of rows that are not in use see nothing
    row_position: jax.Array  # int32 [B, R]
    slot: Place  # int32 [B, S]
    slot_position: jax.Array  # int32 [B, S]
    window: jax.Array  # int32 scalar, as above
    begin: jax.Array  # int32 [B]: no row sees a slot before this one
    end: jax.Array  # int32 [B]: nor this one and later ones; 0 in a lane without rows
    lowest: jax.Array  # int32 [B]: the least position of a row in use
    row_end: jax.Array | None = None  # int32 [B, R]: an `end` of each row; None: the lane's

    def within(self, window: int) -> "PoolSpec":
        """The same mask with another window."""
        near_BxS = self.lowest[:, None] - self.slot_position < window
        begin = jnp.minimum(jnp.argmax(near_BxS, axis=1).astype(jnp.int32), self.end)
        return dataclasses.replace(self, window=jnp.int32(window), begin=begin)


def sees(window: jax.Array, query: Sequence[jax.Array], key: Sequence[jax.Array]) -> jax.Array:
    """Whether queries see keys: `MaskSpec.vectors` of both, or slices of them, that broadcast against each other."""
    q_order, q_record, q_position, *q_place = query
    k_order, k_record, k_position, *k_place = key
    present = (k_order <= q_order) & (k_record == q_record) & (q_position - k_position < window)
    return visible(present, Place(*q_place), Place(*k_place))
