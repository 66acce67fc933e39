"""Several adapters beside shared weights: each row is computed with its own, and an adapter without rows costs nothing.

Adapters are numbered from 1; 0 is the model itself. The adapters that have rows are added one after another, each by
the same products as if it were alone, so that only rounding depends on the adapters of its neighbours.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.models.parameters import Params, is_stacked


def choose(params: Params, row_N: jax.Array) -> Params:
    """The parameters to compute N rows with, each with the adapter of this number; as they are if they hold none."""
    if "adapters" not in params:
        return params
    count = len(params["adapters"]["embed"])
    has_rows_G = jnp.any(row_N[None] == jnp.arange(1, count + 1)[:, None], axis=1)
    (used_G,) = jnp.nonzero(has_rows_G, size=count, fill_value=0)
    chosen = {"row": row_N, "used": used_G, "count": jnp.sum(has_rows_G)}

    def one(layer: Params, lead: tuple[int, ...]) -> Params:
        each = jax.tree.map(lambda field: jnp.broadcast_to(field, (*lead, *field.shape)), chosen)
        return {name: leaves | {"chosen": each} if "pairs" in leaves else leaves for name, leaves in layer.items()}

    layers = params["layers"]
    if is_stacked(params):
        layers = one(layers, (len(jax.tree.leaves(layers)[0]),))
    else:
        layers = tuple(one(layer, ()) for layer in layers)
    return params | {"layers": layers, "adapters": params["adapters"] | {"chosen": chosen}}


def with_own(chosen: Mapping[str, Any], y_NxO, own: Callable, of: Any):
    """y where a row has no adapter, else own(y, what `of` holds of the row's adapter); leaves of `of` are [G, ...]."""

    def one(number, y_NxO):
        adapter = chosen["used"][number]
        mine = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, adapter, keepdims=False), of)
        return jnp.where((chosen["row"] == adapter + 1)[:, None], own(y_NxO, mine), y_NxO)

    return lax.fori_loop(0, chosen["count"], one, y_NxO)


def own_embeddings(adapters: Mapping[str, Any], tokens_BxT, x_BxTxE):
    """Embeddings with the tags' rows of each row's adapter."""
    adapter_BxT = adapters["chosen"]["row"].reshape(tokens_BxT.shape) - 1
    place_BxT = tokens_BxT - adapters["at"]
    is_own_BxT = (adapter_BxT >= 0) & (place_BxT >= 0) & (place_BxT < NUM_TAGS)
    at = jnp.where(is_own_BxT, adapter_BxT, 0), jnp.where(is_own_BxT, place_BxT, 0)
    return jnp.where(is_own_BxT[..., None], adapters["embed"][at].astype(x_BxTxE.dtype), x_BxTxE)


def own_logits(adapters: Mapping[str, Any], x_NxE, logits_NxV, times: Callable):
    """Logits with the tags' of each row's adapter; `times` multiplies with a head."""
    at = adapters["at"]
    of_tags_NxT = lax.dynamic_slice_in_dim(logits_NxV, at, NUM_TAGS, axis=1)

    def own(_, head):
        return times(x_NxE, head, NUM_TAGS, jnp.float32)

    of_tags_NxT = with_own(adapters["chosen"], of_tags_NxT, own, adapters["head"])
    return lax.dynamic_update_slice_in_dim(logits_NxV, of_tags_NxT, at, axis=1)
