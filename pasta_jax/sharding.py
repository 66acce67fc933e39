"""Where every array lies on a mesh of devices: the one file that names mesh axes.

    data    lanes: requests decoded, or examples trained on, side by side
    model   key/value heads, feed-forward rows, vocabulary rows

A rule is a pattern for the end of a leaf's path and the mesh axes of the leaf's last dimensions; the first pattern that
fits decides. Dimensions before them, as the layers of stacked parameters, stay whole on every device. A leaf that no
rule fits is an error: an array that nobody thought about would silently lie on every device.

A dimension that its mesh axis doesn't divide stays whole too. With one or three key/value heads on eight devices (Gemma
2B and 270M, SmolLM2) every device therefore does all the attention, from a whole pool, and feed-forward and vocabulary
are still divided.
"""

import re
from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pasta_jax.errors import PastaError

DATA, MODEL = "data", "model"

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    # parameters, also as an optimizer's moments mirror them
    (r"tag_rows/(embed|head)", ()),
    (r"(embed|head)", (MODEL, None)),  # [V, E]
    (r"\w+_norm/weight", ()),
    (r"qkv/(kernel|lora_b)", (MODEL, None, None, None)),  # [K, G + 2, D, E or rank]
    (r"gate_up/(kernel|lora_b)", (MODEL, None)),  # [2F, E or rank]; gate and up rows by turns
    (r"out/kernel", (None, MODEL)),  # [E, K * G * D]; only where K divides, see specs
    (r"down/(kernel|lora_a)", (None, MODEL)),  # [E or rank, F]
    (r"(qkv|gate_up|out)/lora_a", ()),
    (r"(out|down)/lora_b", ()),
    # the decode state, and the scripts that replays force on it
    (r"kv/[01](/\d+)?", (DATA, MODEL, None, None)),  # [B, K, S, D]; an array for all layers, or one for each
    (r"pool/(chunk|epoch|main|position|token|step)", (DATA, None)),
    (r"threads/\w+", (DATA, None)),
    (r"(pool/fill|live|finish|step|spawned|topic|highest)", (DATA,)),
    (r"request/(sampling/)?\w+", (DATA,)),
    (r"prompted", (DATA, None)),
    (r"hidden", (DATA, None, None)),
    (r"(tokens|start)", (DATA, None)),
)


def make_mesh(data: int, model: int, devices=None) -> Mesh:
    """A mesh of data * model devices: of the given ones, or of all there are."""
    devices = jax.devices() if devices is None else devices
    if data < 1 or model < 1 or data * model != len(devices):
        raise PastaError(
            f"mesh {data} x {model}: there are {len(devices)} devices; choose data and model whose product is that"
        )
    # Explicit axes, the default, would want a sharding at every gather.
    return jax.make_mesh((data, model), (DATA, MODEL), axis_types=(AxisType.Auto,) * 2, devices=devices)


def specs(tree, mesh: Mesh):
    """The PartitionSpec of every leaf of parameters, adapters, optimizer or decode states."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    shapes = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

    def one(path: str) -> PartitionSpec:
        shape = shapes[path]
        axes = axes_of(path, len(shape))
        if re.search(r"(^|/)out/kernel$", path):
            # Its inputs would often divide where the heads don't. XLA would then divide the pool as well, as far as it
            # goes, and gather all of it at the end of every call.
            qkv = path.removesuffix("out/kernel") + "qkv/kernel"
            if qkv not in shapes:
                raise PastaError(f"{path}: {qkv}, which says how many heads there are, isn't beside it")
            axes = axes if shapes[qkv][-4] % mesh.shape[MODEL] == 0 else [None] * len(shape)
        axes = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True)]
        while axes and axes[-1] is None:  # as XLA writes the same; else every program would be looked up twice
            axes.pop()
        return PartitionSpec(*axes)

    return jax.tree.unflatten(treedef, map(one, shapes))


def axes_of(path: str, ndim: int) -> list[str | None]:
    """The rule's axes for one leaf. Scalars have nothing to divide and need no rule."""
    if ndim == 0:
        return []
    axes = next((axes for pattern, axes in RULES if re.search(rf"(^|/){pattern}$", path)), None)
    if axes is None:
        raise PastaError(f"{path}: no rule says where it lies on a mesh; add one to RULES in pasta_jax/sharding.py")
    if len(axes) > ndim:
        raise PastaError(f"{path}: its rule is for {len(axes)} dimensions and it has {ndim}; mend either")
    return [None] * (ndim - len(axes)) + list(axes)


def shardings(tree, mesh: Mesh):
    """The same as NamedShardings: what `jit`, `device_put` and checkpoints take."""
    return jax.tree.map(
        lambda one: NamedSharding(mesh, one), specs(tree, mesh), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def shard(tree, mesh: Mesh):
    """The tree with every array where its rule says; host arrays go to their devices in pieces."""
    return jax.device_put(tree, shardings(tree, mesh))


def rows(mesh: Mesh) -> NamedSharding:
    """Where arrays lie whose first axis counts examples."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def shard_rows(tree, mesh: Mesh):
    """Host arrays whose first axis counts examples, shared out over `data`; each process brings its own share."""

    def one(array):
        share = mesh.shape[DATA] // jax.process_count() or 1
        if array.shape[0] % share:
            raise PastaError(
                f"a batch of {array.shape[0]} rows: {share} devices can't share it equally; give a multiple of {share}"
            )
        return jax.make_array_from_process_local_data(rows(mesh), array)

    return jax.tree.map(one, tree)


def create_on_mesh_of(params, make: Callable, *fixed):
    """make(*fixed), made on the mesh on which `params` lie, no array whole on any device; without a mesh just made.

    So a program runs where its parameters are: jitted functions follow their arguments, and nothing else need know of a
    mesh.
    """
    placed = getattr(jax.tree.leaves(params)[0], "sharding", None)
    if not isinstance(placed, NamedSharding):
        return make(*fixed)
    static = tuple(range(len(fixed)))
    where = shardings(jax.eval_shape(lambda: make(*fixed)), placed.mesh)
    return jax.jit(make, static_argnums=static, out_shardings=where)(*fixed)


def on_each_device(function: Callable, axes, result_axes, *arrays):
    """function(*arrays) with each device given its own lanes and heads: for kernels, which XLA doesn't divide.

    `axes` and `result_axes` are trees of strings, a letter for each dimension: b is divided over `data` and k over
    `model`, where the mesh divides them. Arrays that lie on no mesh are given as they are.
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
        check_vma=False,  # kernels don't say over which axes their results vary
    )
    return divided(*arrays)
