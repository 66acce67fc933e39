"""Rows of several lanes packed next to each other, so that what works on single rows skips those that are not in use.

Lanes seldom run equally many threads at a time: in a step of B x R rows most are inactive. The products, the head and
the sampler then work on C rows; so does attention by our CPU kernel. Otherwise, it reads a lane's slots for all of its
rows, B x R.
"""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Which of B x R rows are computed."""

    at: jax.Array  # int32 [C]: the row's number, counted lane by lane; B * R, which is no row, in places not in use
    rows: int = dataclasses.field(metadata={"static": True})  # R

    @staticmethod
    def of(active_BxR: jax.Array, count: int) -> "Packed":
        """`count` places with the active rows first, which must be at most as many."""
        (at_C,) = jnp.nonzero(active_BxR.reshape(-1), size=count, fill_value=active_BxR.size)
        return Packed(at_C.astype(jnp.int32), active_BxR.shape[1])

    def pack(self, field_BxR: jax.Array) -> jax.Array:
        """The packed rows' elements of an array [B, R, ...], as [C, ...]; places not in use repeat the last row's."""
        lanes, rows, *rest = field_BxR.shape
        return field_BxR.reshape(lanes * rows, *rest).at[self.at].get(mode="clip")

    def of_lane(self, field_B: jax.Array) -> jax.Array:
        """The element of each packed row's lane, [C, ...]."""
        return field_B.at[self.at // self.rows].get(mode="clip")

    def spread(self, value_C: jax.Array, lanes: int) -> jax.Array:
        """The packed rows' values at their rows, [B, R, ...], and zeros at the other rows."""
        empty = jnp.zeros((lanes * self.rows, *value_C.shape[1:]), value_C.dtype)
        spread = empty.at[self.at].set(value_C, mode="drop", unique_indices=True)
        return spread.reshape(lanes, self.rows, *value_C.shape[1:])
