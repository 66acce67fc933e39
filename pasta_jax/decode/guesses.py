"""Drafts that a drafter guesses (models/drafter.py): one after another, as many as the caller says will pay.

They are drawn from the drafter's logits with the noise that the thread's own draws will have. Where the drafter is
nearly right about the distribution, it is then right about the token, at any temperature.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.decode.rows import Rows
from pasta_jax.decode.sampling import draw
from pasta_jax.decode.state import DecodeState
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.drafter import advanced, guessed
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import embedded, uses_kernels


@dataclasses.dataclass(frozen=True)
class Guesser:
    """What a step hands to the drafter."""

    params: Params
    config: TransformerConfig
    rows: Rows  # of the step, of each thread only the last one that it keeps
    states: jax.Array  # [B, R, E]: their final hidden states

    @property
    def cost(self) -> float:
        """Of a guess, relative to a step of few rows: the bytes that it reads."""
        drafter, all = (
            sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(of)) for of in (self._drafter, self.params)
        )
        return drafter / (all - drafter)

    @property
    def _drafter(self) -> Params:
        return self.params["drafter"]

    def hidden_of(self, thread_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The states from which threads sampled their next token, [B, E], and whether they fed in this step."""
        is_own_BxR = self.rows.active & (self.rows.thread == thread_B[:, None])
        at_Bx1x1 = jnp.argmax(is_own_BxR, axis=1)[:, None, None]
        return jnp.take_along_axis(self.states, at_Bx1x1, axis=1)[:, 0], jnp.any(is_own_BxR, axis=1)

    def guess(
        self,
        state: DecodeState,
        thread_B: jax.Array,
        next_B: jax.Array,
        hidden_BxE: jax.Array,
        count_B: jax.Array,
        most: int,
    ) -> jax.Array:
        """Guesses of what follows the threads' next tokens, int32 [B, most]; zeros beyond the lanes' `count`."""
        number_B = jnp.take_along_axis(state.threads.count, thread_B[:, None], axis=1)[:, 0]

        def more(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            done, r_BxE, token_B, guess_BxK = carry
            # Of lanes without a further guess both are zeros, which stay zeros; the last lanes' take no products.
            r_BxE, embedded_BxE = (
                jnp.where((done < count_B)[:, None], of_B, 0)
                for of_B in (r_BxE, embedded(self.params, token_B[None])[0])
            )
            r_BxE = advanced(self._drafter, r_BxE, embedded_BxE)
            logits_BxI = guessed(self._drafter, self.config, r_BxE).astype(jnp.float32)
            ids = self._drafter["ids"]
            token_B = draw(logits_BxI, state.request.rules, thread_B, number_B + done, ids, uses_kernels(self.params))
            return done + 1, r_BxE, token_B, guess_BxK.at[:, done].set(jnp.where(done < count_B, token_B, 0))

        none = jnp.zeros((len(thread_B), most), jnp.int32)
        start = jnp.int32(0), hidden_BxE, next_B, none
        return lax.while_loop(lambda carry: carry[0] < jnp.max(count_B), more, start)[3]
