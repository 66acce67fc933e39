"""Sharding of every array over a mesh of devices; the one file that names mesh axes.

    data    lanes: requests decoded, or examples trained on, in parallel
    model   key/value heads, feed-forward rows, vocabulary rows

A rule is a pattern for the end of a leaf's path, and the mesh axes of the leaf's last dimensions; the first match
applies. Leading dimensions, such as the layers of stacked parameters, are replicated. A leaf without a rule is an
error: it would silently be replicated.

A dimension that its mesh axis doesn't divide is replicated too. With one or three key/value heads on eight devices
(Gemma 2B and 270M, SmolLM2) every device computes all of attention from a whole pool; feed-forward and vocabulary are
still divided.
"""

import re
from collections.abc import Callable, Hashable
from typing import TypeVar

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pasta_jax.errors import PastaError

Tree = TypeVar("Tree")

DATA, MODEL = "data", "model"

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    # parameters, and the optimizer's moments, which have the same paths
    (r"tag_rows/(embed|head)", ()),
    (r"(embed|head)", (MODEL, None)),  # [V, E]
    (r"\w+_norm/weight", ()),
    (r"qkv/(kernel|lora_b)", (MODEL, None, None, None)),  # [K, G + 2, D, E or rank]
    (r"gate_up/(kernel|lora_b)", (MODEL, None)),  # [2F, E or rank]; gate and up rows interleaved
    (r"out/kernel", (None, MODEL)),  # [E, K * G * D]; only where K divides, see specs
    (r"down/(kernel|lora_a)", (None, MODEL)),  # [E or rank, F]
    (r"(qkv|gate_up|out)/lora_a", ()),
    (r"(out|down)/lora_b", ()),
    # parameters for decoding only, transposed (models/weights.py)
    (r"(embed|head)_columns", (None, MODEL)),  # [E, V]
    (r"qkv/columns", (None, MODEL, None, None)),  # [E, K, G + 2, D]
    (r"gate_up/columns", (None, MODEL)),  # [E, 2F]
    (r"(out|down)/columns", (MODEL, None)),  # [K * G * D, E], as out/kernel; [F, E]
    (r"\w+/(panels|codes|scales)", ()),  # for one device
    # the decode state, and the scripts of replays
    (r"kv/[01](/\d+)?", (DATA, MODEL, None, None)),  # [B, K, S, D]; one array for all layers, or one per layer
    (r"pool/(chunk|epoch|main|position|token|step)", (DATA, None)),
    (r"threads/\w+", (DATA, None)),
    (r"(pool/fill|live|finish|step|spawned|topic|highest)", (DATA,)),
    (r"request/(sampling/)?\w+", (DATA,)),
    (r"topics/earlier_\w+", (DATA, None)),
    (r"topics/\w+", (DATA,)),
    (r"prompted", (DATA, None)),
    (r"hidden", (DATA, None, None)),
    (r"(tokens|start)", (DATA, None)),
)


def make_mesh(data: int, model: int, devices=None) -> Mesh:
    """A mesh of data * model devices: the given ones, or all."""
    devices = jax.devices() if devices is None else devices
    if data < 1 or model < 1 or data * model != len(devices):
        raise PastaError(
            f"mesh {data} x {model}: {len(devices)} devices available; choose data and model with this product"
        )
    # Explicit axes, the default, would require a sharding at every gather.
    return jax.make_mesh((data, model), (DATA, MODEL), axis_types=(AxisType.Auto,) * 2, devices=devices)


def specs(tree, mesh: Mesh):
    """The PartitionSpec of every leaf of parameters, adapters, optimizer states or decode states."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    shapes = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

    def one(path: str) -> PartitionSpec:
        shape = shapes[path]
        axes = axes_of(path, len(shape))
        if found := re.search(r"(^|/)out/(kernel|columns)$", path):
            # Its inputs often divide where the heads don't. XLA would then divide the pool too, as far as possible, and
            # gather all of it at the end of every call.
            qkv, heads = path[: found.start()] + f"{found[1]}qkv/{found[2]}", -4 if found[2] == "kernel" else -3
            if qkv not in shapes:
                raise PastaError(f"{path}: no {qkv} beside it, which determines the number of heads; shard both")
            axes = axes if shapes[qkv][heads] % mesh.shape[MODEL] == 0 else [None] * len(shape)
        axes = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True)]
        while axes and axes[-1] is None:  # XLA's canonical form; with another, each program would be compiled twice
            axes.pop()
        return PartitionSpec(*axes)

    return jax.tree.unflatten(treedef, map(one, shapes))


def axes_of(path: str, ndim: int) -> list[str | None]:
    """The axes of a leaf by its rule. Scalars need none."""
    if ndim == 0:
        return []
    axes = next((axes for pattern, axes in RULES if re.search(rf"(^|/){pattern}$", path)), None)
    if axes is None:
        raise PastaError(f"{path}: no sharding rule; add one to RULES in pasta_jax/sharding.py")
    if len(axes) > ndim:
        raise PastaError(f"{path}: its sharding rule has {len(axes)} dimensions, the array {ndim}; fix the rule")
    return [None] * (ndim - len(axes)) + list(axes)


def shardings(tree, mesh: Mesh):
    """`specs` as NamedShardings: for `jit`, `device_put` and checkpoints."""
    return jax.tree.map(
        lambda one: NamedSharding(mesh, one), specs(tree, mesh), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def shard(tree, mesh: Mesh):
    """The tree sharded by the rules; host arrays are sent to their devices in pieces."""
    return jax.device_put(tree, shardings(tree, mesh))


def rows(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose first axis counts examples."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def shard_rows(tree, mesh: Mesh):
    """Host arrays whose first axis counts examples, sharded over `data`; each process passes its own share."""

    def one(array):
        share = mesh.shape[DATA] // jax.process_count() or 1
        if array.shape[0] % share:
            raise PastaError(
                f"a batch of {array.shape[0]} rows doesn't divide over {share} devices; use a multiple of {share}"
            )
        return jax.make_array_from_process_local_data(rows(mesh), array)

    return jax.tree.map(one, tree)


def create_on_mesh_of(params, create: Callable[..., Tree], *fixed: Hashable) -> Tree:
    """create(*fixed), sharded over the mesh of `params` from the start; if they have none, just created.

    Programs run where their parameters are, since jitted functions follow their arguments. Nothing else needs to know
    about a mesh.
    """
    sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return create(*fixed)
    static = tuple(range(len(fixed)))
    results = shardings(jax.eval_shape(lambda: create(*fixed)), sharding.mesh)
    return jax.jit(create, static_argnums=static, out_shardings=results)(*fixed)


def on_each_device(function: Callable[..., Tree], axes, result_axes, *arrays) -> Tree:
    """function(*arrays), called on each device with its own lanes and heads: for kernels, which XLA doesn't divide.

    `axes` and `result_axes` are trees of strings with a letter per dimension: b is divided over `data` and k over
    `model`, if the mesh divides them. Without a mesh the function gets the arrays as they are.
    """
    mesh = jax.typeof(jax.tree.leaves(arrays)[0]).sharding.mesh
    if mesh.empty:
        return function(*arrays)
    sizes = {}
    for letters, array in zip(jax.tree.leaves(axes), jax.tree.leaves(arrays), strict=True):
        sizes |= zip(letters, array.shape, strict=True)
    over = {"b": DATA, "k": MODEL}
    whole = {letter for letter, axis in over.items() if sizes[letter] % mesh.shape[axis]}

    def spec(letters: str) -> PartitionSpec:
        return PartitionSpec(*(None if letter in whole else over.get(letter) for letter in letters))

    divided = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=jax.tree.map(spec, axes),
        out_specs=jax.tree.map(spec, result_axes),
        check_vma=False,  # kernels don't declare over which axes their results vary
    )
    return divided(*arrays)
