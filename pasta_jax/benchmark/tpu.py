"""Compile programs for a TPU topology without a TPU, and read from the compiled program what it needs.

The process must have the environment of benchmark/tpu_environment.py before JAX is imported.
"""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import topologies

from pasta_jax.errors import PastaError
from pasta_jax.models.transformer import Layer
from pasta_jax.sharding import shardings

Tree = TypeVar("Tree")


def topology_devices(name: str) -> list[jax.Device]:
    """The devices of a topology, which need not exist."""
    one_chip = {"chips_per_host_bounds": (1, 1, 1)} if name.endswith(":1x1") else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **one_chip).devices
    except Exception as error:  # the plugin raises various types
        reason = " ".join(str(error).split())[:200]
        raise PastaError(
            f"--topology={name}: {reason}; use a name such as v5e:2x4, v6e:2x2, v5p:2x2x1, tpu7x:2x2x1"
        ) from None


def placed(tree: Tree, mesh: jax.sharding.Mesh) -> Tree:
    """The tree's shapes, sharded as pasta_jax/sharding.py divides them."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings(tree, mesh),
    )


def device_bytes(tree: object) -> int:
    """Bytes of a tree of placed shapes or arrays on one device."""
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Collective:
    """One instruction that exchanges values between devices. In a loop it is listed once."""

    kind: str
    bytes: int  # of its result on one device
    in_layers: bool  # part of a layer's code, so it runs once per layer


@dataclasses.dataclass(frozen=True)
class Collectives:
    """How often each kind of collective occurs, in a layer and outside, and the bytes of its largest result."""

    in_layers: dict[str, int]
    outside: dict[str, int]
    largest: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Program:
    """What a compiled program needs; bytes are of one device."""

    arguments: int
    alias: int  # updated in place
    temp: int
    peak: int
    collectives: Collectives
    kernels: int
    compile_s: float


def compile_program(name: str, lower: Callable[[], jax.stages.Lowered]) -> Program:
    """Lower and compile; the compiler itself rejects what does not fit into a device's memory."""
    began = time.perf_counter()
    try:
        compiled = lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = re.sub(r"\s+", " ", str(error))[:160]
        raise PastaError(f"{name} doesn't fit: {reason}; use more devices, or fewer lanes or slots") from None
    memory, text = compiled.memory_analysis(), compiled.as_text()
    return Program(
        arguments=memory.argument_size_in_bytes,
        alias=memory.alias_size_in_bytes,
        temp=memory.temp_size_in_bytes,
        peak=memory.peak_memory_in_bytes,
        collectives=summary(collectives(text)),
        kernels=text.count('custom_call_target="tpu_custom_call"'),
        compile_s=round(time.perf_counter() - began, 1),
    )


def summary(instructions: list[Collective]) -> Collectives:
    """Counts and largest results by kind."""
    kinds = sorted({one.kind for one in instructions})
    return Collectives(
        in_layers=dict(Counter(one.kind for one in instructions if one.in_layers)),
        outside=dict(Counter(one.kind for one in instructions if not one.in_layers)),
        largest={kind: max(one.bytes for one in instructions if one.kind == kind) for kind in kinds},
    )


_COLLECTIVE = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(-start)?\("
)
_IN_LAYER = f"/{Layer.__name__}/"  # in the name of every operation of a layer
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")


def collectives(program: str) -> list[Collective]:
    """The collectives in the text of a compiled program."""
    instructions = []
    for line in program.splitlines():
        if match := _COLLECTIVE.search(line):
            size = sum(_bytes(*array) for array in _ARRAY.findall(match["result"]))
            instructions.append(Collective(match["kind"], size, _IN_LAYER in line))
    return instructions


def _bytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
    size = bits // 8
    for dim in filter(None, dims.split(",")):
        size *= int(dim)
    return size
