"""The two layouts of layers: stacked, each array with a leading axis of layers, or unrolled as a tuple.

A tree is a dict with an item `layers`: parameters, their gradients, or an adapter. Stacked layers are scanned.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]  # nested dicts of arrays, `layers` in either layout


def is_stacked(tree: Params) -> bool:
    """Whether the layers are stacked."""
    return isinstance(tree["layers"], dict)


def stack(tree: Params) -> Params:
    """The tree with its layers stacked; host arrays stay on the host."""
    if is_stacked(tree):
        return tree
    on_host = isinstance(jax.tree.leaves(tree["layers"])[0], np.ndarray)
    join = np.stack if on_host else jnp.stack
    return tree | {"layers": jax.tree.map(lambda *leaves: join(leaves), *tree["layers"])}


def unstack(tree: Params) -> Params:
    """The tree with its layers as a tuple."""
    if not is_stacked(tree):
        return tree
    count = jax.tree.leaves(tree["layers"])[0].shape[0]
    return tree | {"layers": tuple(jax.tree.map(lambda leaf, l=l: leaf[l], tree["layers"]) for l in range(count))}


def map_layers(function: Callable[..., Params], *trees: Params) -> tuple[Params, ...] | Params:
    """function(layer, ...) of each layer of trees that have the same layout, in that layout."""
    layers = [tree["layers"] for tree in trees]
    if is_stacked(trees[0]):
        return jax.vmap(function)(*layers)
    return tuple(function(*several) for several in zip(*layers, strict=True))
