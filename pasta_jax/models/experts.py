"""Mixtures of experts: a router picks a few of many small MLPs for each token (Shazeer et al., 2017).

Tokens are sorted by expert, and an expert computes its own tokens only, however many these are. A TPU has products of
ragged groups for that. XLA's form of these elsewhere multiplies all tokens with all experts; there, a loop takes blocks
of one expert's tokens, so that an expert without tokens isn't read.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parts import gated, times
from pasta_jax.models.sharding import on_each_device

BLOCK = 128  # tokens of an expert that are computed at a time, at most

# Letters for on_each_device: k counts the rows that devices divide, as in the rules of sharding.py.
_AXES = {
    "gate_up/kernel": "xkpe", "gate_up/bias": "xkp", "gate/kernel": "xke", "gate/bias": "xk",
    "up/kernel": "xke", "up/bias": "xk", "down/kernel": "xek",
}  # fmt: skip
# Rows [M, I] in groups, times one matrix [O, I] of a group each.
_GROUPS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)

Matrices = dict[str, dict[str, Any]]  # `gate_up`, or `gate` and `up`, and `down`, of all experts or of one


def mixture(config: TransformerConfig, x_BxTxE, scores_BxTxX, matrices: Matrices):
    """The sum of what each token's experts say, by their shares; `scores` are the router's."""
    top_BxTxA, chosen_BxTxA = lax.top_k(scores_BxTxX.astype(jnp.float32), config.active_experts)
    if config.shares_of_all:
        shares_BxTxA = jnp.exp(top_BxTxA - jax.nn.logsumexp(scores_BxTxX.astype(jnp.float32), axis=-1, keepdims=True))
    else:
        shares_BxTxA = jax.nn.softmax(top_BxTxA, axis=-1)
    biases_XxE = matrices["down"].get("bias")
    matrices = matrices | {"down": {name: leaf for name, leaf in matrices["down"].items() if name != "bias"}}
    axes = jax.tree_util.tree_map_with_path(
        lambda path, _: _AXES.get(jax.tree_util.keystr(path, simple=True, separator="/"), ""), matrices
    )
    if "kernel" in matrices.get("gate_up", ()):  # devices divide pairs of gate and up
        pairs = {
            name: leaf.reshape(config.experts, config.ff, 2, *leaf.shape[2:])
            for name, leaf in matrices["gate_up"].items()
        }
        matrices = matrices | {"gate_up": pairs}
    # Each device computes a part of every expert's width: a sum, of which `k` counts the terms.
    parts_KxBxTxE = on_each_device(
        functools.partial(_computed, config),
        ("bte", "bta", "bta", axes),
        "kbte",
        x_BxTxE,
        chosen_BxTxA,
        shares_BxTxA,
        matrices,
    )
    y_BxTxE = jnp.sum(parts_KxBxTxE, axis=0)
    if biases_XxE is not None:  # which one device must add
        shares_BxTxX = jnp.sum(jax.nn.one_hot(chosen_BxTxA, config.experts) * shares_BxTxA[..., None], axis=2)
        y_BxTxE = y_BxTxE + jnp.einsum("btx,xe->bte", shares_BxTxX.astype(y_BxTxE.dtype), biases_XxE)
    return y_BxTxE.astype(x_BxTxE.dtype)


def _computed(config: TransformerConfig, x_BxTxE, chosen_BxTxA, shares_BxTxA, matrices: Matrices):
    """One device's part, as [1, B, T, E]."""
    lanes, length, embed = x_BxTxE.shape
    if "kernel" in matrices.get("gate_up", ()):
        joined = {name: leaf.reshape(config.experts, -1, *leaf.shape[3:]) for name, leaf in matrices["gate_up"].items()}
        matrices = matrices | {"gate_up": joined}
    flat = x_BxTxE.reshape(-1, embed), *(of.reshape(-1, of.shape[-1]) for of in (chosen_BxTxA, shares_BxTxA))
    ragged, blocks = (functools.partial(form, config) for form in (_by_groups, _by_blocks))
    if "kernel" in matrices["down"]:
        y_NxE = lax.platform_dependent(*flat, matrices, tpu=ragged, default=blocks)
    else:
        y_NxE = blocks(*flat, matrices)
    return y_NxE.reshape(1, lanes, length, embed)


def _by_groups(config: TransformerConfig, x_NxE, chosen_NxA, shares_NxA, matrices: Matrices):
    """By ragged products."""
    order_M, sizes_X = _sorted(config, chosen_NxA)
    expert_M = chosen_NxA.reshape(-1)[order_M]

    def one(name: str, rows_MxI):
        leaves = matrices[name]
        y_MxO = lax.ragged_dot_general(rows_MxI, leaves["kernel"], sizes_X, _GROUPS)
        return y_MxO + leaves["bias"][expert_M] if "bias" in leaves else y_MxO

    rows_MxE = x_NxE[order_M // config.active_experts]
    y_MxE = one("down", gated(config, *_gate_and_up(one, rows_MxE, matrices)))
    y_NxAxE = y_MxE[jnp.argsort(order_M)].reshape(*chosen_NxA.shape, -1)
    return jnp.einsum("nae,na->ne", y_NxAxE, shares_NxA.astype(y_NxAxE.dtype)).astype(x_NxE.dtype)


def _by_blocks(config: TransformerConfig, x_NxE, chosen_NxA, shares_NxA, matrices: Matrices):
    """By a loop over blocks of an expert's tokens."""
    order_M, sizes_X = _sorted(config, chosen_NxA)
    count = chosen_NxA.size
    block = 8  # not fewer: a matrix is read once for a few rows
    while block < min(BLOCK, count / config.experts):
        block *= 2
    blocks_X = -(-sizes_X // block)
    end_X, start_X = jnp.cumsum(blocks_X), jnp.cumsum(sizes_X) - sizes_X
    most = min(count, min(count, config.experts) + count // block)

    def step(y_NxE, at):
        def add(y_NxE):
            expert = jnp.searchsorted(end_X, at, side="right")
            place_S = (at - end_X[expert] + blocks_X[expert]) * block + jnp.arange(block)
            which_S = order_M.at[start_X[expert] + place_S].get(mode="clip")
            of_one = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, expert, keepdims=False), matrices)

            def one(name: str, rows_SxI):
                y_SxO = times(rows_SxI, of_one[name], config.embed if name == "down" else _outputs(config, name))
                return y_SxO + of_one[name]["bias"][None] if "bias" in of_one[name] else y_SxO

            rows_SxE = x_NxE[which_S // config.active_experts]
            said_SxE = one("down", gated(config, *_gate_and_up(one, rows_SxE, matrices)))
            share_S = jnp.where(place_S < sizes_X[expert], shares_NxA.reshape(-1)[which_S], 0)
            return y_NxE.at[which_S // config.active_experts].add(share_S[:, None] * said_SxE)

        return lax.cond(at < end_X[-1], add, lambda y: y, y_NxE), None

    # What a block computed is computed again for its gradient: kept, it would include a copy of its matrices.
    y_NxE, _ = lax.scan(jax.checkpoint(step), jnp.zeros(x_NxE.shape, jnp.float32), jnp.arange(most))
    return y_NxE.astype(x_NxE.dtype)


def _sorted(config: TransformerConfig, chosen_NxA):
    """The order of M = N * A choices by expert, int32 [M], and how many each expert has, [X]."""
    chosen_M = chosen_NxA.reshape(-1)
    return jnp.argsort(chosen_M, stable=True), jnp.bincount(chosen_M, length=config.experts)


def _outputs(config: TransformerConfig, name: str) -> int:
    return config.ff * (2 if name == "gate_up" else 1)


def _gate_and_up(one, rows, matrices: Mapping[str, Any]):
    if "gate" in matrices:
        return one("gate", rows), one("up", rows)
    pairs = one("gate_up", rows)
    return pairs[..., 0::2], pairs[..., 1::2]
