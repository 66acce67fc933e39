"""What attention's mask is made from, instead of the mask: six integers a token, compared as blocks are needed."""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import visible

HIDDEN = -1e30  # score of a masked key, as in the dense form
EVERYTHING = 2**30  # a window that holds all positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sight:
    """int32 [B, T] each, in linear order."""

    chunk: jax.Array
    epoch: jax.Array
    main: jax.Array
    record: jax.Array  # tokens of different records never see each other
    position: jax.Array
    window: jax.Array  # int32 scalar: keys lie less than so many positions back
    block: int = dataclasses.field(metadata={"static": True})  # queries, and keys, at a time

    def __post_init__(self):
        if self.block < 1:
            raise PastaError(f"attention block {self.block}: it must be at least 1 token")

    def within(self, window: int) -> "Sight":
        """The same, less far back."""
        return dataclasses.replace(self, window=jnp.int32(window))

    def vectors(self) -> tuple[jax.Array, ...]:
        """What `sees` compares, int32 [B, T] each."""
        order_BxT = jax.lax.broadcasted_iota(jnp.int32, self.record.shape, 1)
        return order_BxT, self.record, self.position, self.chunk, self.epoch, self.main


def sees(window, query, key):
    """Whether queries see keys: `Sight.vectors` of both, or cuts of them, that broadcast against each other."""
    q_order, q_record, q_position, *q_structure = query
    k_order, k_record, k_position, *k_structure = key
    there = (k_order <= q_order) & (k_record == q_record) & (q_position - k_position < window)
    return visible(there, *q_structure, *k_structure)
