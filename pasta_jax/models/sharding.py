"""Sharding of every array over a mesh of devices; the one file that names mesh axes.

    data    lanes: requests decoded, or examples trained on, in parallel
    fsdp    the name of `data` in training that divides parameters and moments over it too
    model   key/value heads, feed-forward rows, vocabulary rows

A rule is a pattern for the end of a leaf's path, and the mesh axes of the leaf's last dimensions; the first match
applies. Leading dimensions, such as the layers of stacked parameters, are replicated. A leaf without a rule is an
error: it would silently be replicated.

A dimension that its mesh axis doesn't divide is replicated too. With one or three key/value heads on eight devices
(Gemma 2B and 270M, SmolLM2) every device computes all of attention from a whole pool; feed-forward and vocabulary are
still divided.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pasta_jax.errors import PastaError
from pasta_jax.models.settings import MeshSettings, TrainingMeshSettings

Tree = TypeVar("Tree")

DATA, FSDP, MODEL = "data", "fsdp", "model"
GATHERED = 2**30  # bytes of an array that are gathered at once

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    # parameters, and the optimizer's moments, which have the same paths
    (r"tag_rows/(embed|head)", ()),
    (r"drafter/(\w+/kernel|ids)", ()),  # small
    (r"(embed|head)", (MODEL, FSDP)),  # [V, E]
    (r"\w+_norm/weight", ()),
    (r"qkv/kernel", (MODEL, None, None, FSDP)),  # [K, G + 2, D, E]
    (r"qkv/bias", (MODEL, None, None)),  # [K, G + 2, D]
    (r"gate_up/bias", (MODEL,)),  # [2F]
    (r"(out|down)/bias", ()),
    (r"(router|own_gate|own_out|layer_projection)/(kernel|columns|bias)", ()),
    (r"layer_embed", (MODEL, FSDP)),  # [V, L * P]
    (r"(sinks|scale)/weight", ()),
    (r"gate_up/kernel", (MODEL, FSDP)),  # [2F, E]; gate and up rows interleaved; of experts, [X, 2F, E]
    (r"out/kernel", (FSDP, MODEL)),  # [E, K * G * D]; over MODEL only where K divides, see specs
    (r"down/kernel", (FSDP, MODEL)),  # [E, F]
    (r"qkv/lora_b", (MODEL, None, None, None)),  # [K, G + 2, D, rank]
    (r"gate_up/lora_b", (MODEL, None)),  # [2F, rank]
    (r"down/lora_a", (None, MODEL)),  # [rank, F]
    (r"(qkv|gate_up|out)/lora_a", ()),
    (r"(out|down)/lora_b", ()),
    # parameters for decoding only, transposed (weights/for_cpu.py)
    (r"qkv/columns", (None, MODEL, None, None)),  # [E, K, G + 2, D]
    (r"(embed|head|gate_up)/columns", (None, MODEL)),  # [E, V], [E, 2F]
    (r"(out|down)/columns", (MODEL, None)),  # [K * G * D, E], as out/kernel; [F, E]
    (r"\w+/(panels|codes|scales)", ()),  # for one device
    # the decode state, and the scripts of replays
    (r"kv/[01](/\d+)?", (DATA, MODEL, None, None)),  # [B, K, S, D]; one array for all layers, or one per layer
    (r"pool/(chunk|epoch|main|position|token|step)", (DATA, None)),
    (r"threads/\w+", (DATA, None)),
    (r"(pool/fill|live|finish|step|spawned|topic|highest)", (DATA,)),
    (r"request/(rules/)?\w+", (DATA,)),
    (r"topics/earlier_\w+", (DATA, None)),
    (r"topics/\w+", (DATA,)),
    (r"drafts/(token|tried|right)", (DATA, None)),
    (r"drafts/\w+", (DATA,)),
    (r"extras/scored", (DATA,)),
    (r"extras/(bias|bias_id|scores/own)", (DATA, None)),
    (r"extras/scores/(top|ids)", (DATA, None, None)),
    (r"prices", ()),
    (r"prompted", (DATA, None)),
    (r"hidden", (DATA, None, None)),
    (r"(tokens|start)", (DATA, None)),
)


def decoding_mesh(settings: MeshSettings) -> Mesh | None:
    """The devices of this process to decode on; None: a single one. Those to train on are shared by all processes."""
    processes = jax.process_count() if isinstance(settings, TrainingMeshSettings) else 1
    return _mesh(settings.data // processes, settings.model, jax.local_devices(), DATA)


def training_mesh(settings: TrainingMeshSettings) -> Mesh | None:
    """The devices of all processes to train on; None: a single one."""
    data, processes = settings.data or jax.device_count() // settings.model, jax.process_count()
    if data % processes:
        raise PastaError(
            f"mesh {data} x {settings.model}: data must be a multiple of the {processes} processes; "
            f"{'set config.mesh.data to one, or to 0' if settings.data else 'lower config.mesh.model'}"
        )
    return _mesh(data, settings.model, jax.devices(), FSDP if settings.fsdp else DATA)


def devices_of(mesh: Mesh | None) -> list[jax.Device]:
    """The devices of a mesh; without one, the device that is used."""
    return jax.devices()[:1] if mesh is None else list(mesh.devices.flat)


def _mesh(data: int, model: int, devices: list[jax.Device], axis: str) -> Mesh | None:
    data = data or len(devices) // model
    return None if data == model == 1 else make_mesh(data, model, devices, axis)


def make_mesh(data: int, model: int, devices=None, axis: str = DATA) -> Mesh:
    """A mesh of data * model devices: the given ones, or all. `axis` is `data`, or `fsdp` in its place."""
    devices = jax.devices() if devices is None else devices
    if data < 1 or model < 1 or data * model != len(devices):
        raise PastaError(
            f"mesh {data} x {model}: {len(devices)} devices available; choose data and model with this product"
        )
    # Explicit axes, the default, would require a sharding at every gather.
    axes, kinds = (axis, MODEL), (AxisType.Auto,) * 2
    if len({device.process_index for device in devices}) == 1:
        with contextlib.suppress(AssertionError, NotImplementedError):  # by topologies that JAX has no order for
            return jax.make_mesh((data, model), axes, axis_types=kinds, devices=devices)
    # Processes share rows in their order, and JAX orders devices by the network between them.
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered).reshape(data, model), axes, axis_types=kinds)


def specs(tree, mesh: Mesh):
    """The PartitionSpec of every leaf of parameters, adapters, optimizer states or decode states."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    shapes = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

    def one(path: str) -> PartitionSpec:
        shape = shapes[path]
        axes = [axis if axis in (FSDP, MODEL) else axis and _rows_axis(mesh) for axis in axes_of(path, len(shape))]
        if found := re.search(r"(^|/)out/(kernel|columns)$", path):
            # Its inputs often divide where the heads don't. XLA would then divide the pool too, as far as possible, and
            # gather all of it at the end of every call.
            qkv, heads = path[: found.start()] + f"{found[1]}qkv/{found[2]}", -4 if found[2] == "kernel" else -3
            if qkv not in shapes:
                raise PastaError(f"{path}: no {qkv} beside it, which determines the number of heads; shard both")
            if shapes[qkv][heads] % mesh.shape[MODEL]:
                axes = [axis if axis != MODEL else None for axis in axes]
        divided = [axis in mesh.shape and mesh.shape[axis] > 1 for axis in axes]
        axes = [
            axis if is_divided and size % mesh.shape[axis] == 0 else None
            for axis, is_divided, size in zip(axes, divided, shape, strict=True)
        ]
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
        raise PastaError(f"{path}: no sharding rule; add one to RULES in pasta_jax/models/sharding.py")
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
    return jax.tree.map(put, tree, shardings(tree, mesh))


def put(leaf, where: NamedSharding) -> jax.Array:
    """An array in the shards of `where`; an array of this process is taken to be the same in all."""
    if jax.process_count() == 1 or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
        return jax.device_put(leaf, where)
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])


def mesh_of(tree) -> Mesh | None:
    """The mesh of a tree's arrays; None: they are on a single device."""
    sharding = getattr(jax.tree.leaves(tree)[0], "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def to_decode_with(params):
    """Trained parameters where this process decodes: on its own devices, and not divided by `fsdp`.

    Decoding would gather what `fsdp` divides in every step.
    """
    mesh = mesh_of(params)
    if mesh is None or (FSDP not in mesh.shape and jax.process_count() == 1):
        return params
    if jax.process_count() == 1:
        return shard(params, make_mesh(*mesh.devices.shape, list(mesh.devices.flat)))
    own, model = jax.local_devices(), mesh.shape[MODEL]
    if len(own) % model:
        raise PastaError(f"mesh.model {model}: to decode, it must divide the {len(own)} devices of a host")
    params = gathered(params)
    if len(own) == 1:
        return jax.device_put(params, own[0])
    leaves, where = jax.tree.leaves(params), shardings(params, make_mesh(len(own) // model, model, own))
    return jax.tree.unflatten(jax.tree.structure(params), jax.device_put(leaves, jax.tree.leaves(where)))


def gathered(tree):
    """Whole arrays on the host, in every process; all of them call it."""

    def one(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        # Every device gets what is gathered, so of large arrays a part at a time.
        size = max(1, len(leaf) * GATHERED // leaf.nbytes)
        parts = (leaf[at : at + size] for at in range(0, len(leaf), size))
        return np.concatenate([multihost_utils.process_allgather(part, tiled=True) for part in parts])

    return jax.tree.map(one, tree)


def rows(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose first axis counts examples."""
    return NamedSharding(mesh, PartitionSpec(_rows_axis(mesh)))


def sharing_rows(mesh: Mesh | None) -> int:
    """How many devices share lanes, or the rows of a batch."""
    return 1 if mesh is None else mesh.shape[_rows_axis(mesh)]


def _rows_axis(mesh: Mesh) -> str:
    """`data`, or `fsdp` in its place."""
    return FSDP if FSDP in mesh.shape else DATA


def shard_rows(tree, mesh: Mesh | None):
    """Host arrays whose first axis counts examples, sharded over `data`; each process passes its own share.

    Without a mesh they stay as they are.
    """
    if mesh is None:
        return tree

    def one(array):
        share = mesh.local_mesh.shape[_rows_axis(mesh)]
        if array.shape[0] % share:
            raise PastaError(
                f"a batch of {array.shape[0]} rows doesn't divide over {share} devices; use a multiple of {share}"
            )
        whole = array.shape[0] // share * mesh.shape[_rows_axis(mesh)], *array.shape[1:]
        return jax.make_array_from_process_local_data(rows(mesh), array, whole)

    return jax.tree.map(one, tree)


def picked_slice(array: jax.Array, start: Sequence[jax.Array | int], size: Sequence[int]) -> jax.Array:
    """A slice of an array that is one long where devices divide it.

    XLA slices what devices divide in a copy of all of it on each of them. Of a gather it exchanges the result alone.
    """
    if jax.typeof(array).sharding.mesh.empty:
        return jax.lax.dynamic_slice(array, start, size)
    return jax.vmap(lambda at: jax.lax.dynamic_slice(array, at, size))(jnp.stack(start)[None])[0]


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
    over = {"b": _rows_axis(mesh), "k": MODEL}
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
