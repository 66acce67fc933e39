"""Compile programs for a TPU topology without a TPU, and read from the compiled program what it needs.

The process must have the environment of tpu/environment.py before JAX is imported.
"""

import dataclasses
import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh

from pasta_jax.device.devices import Chip
from pasta_jax.errors import PastaError
from pasta_jax.models.kernels import pool_tpu
from pasta_jax.models.sharding import DATA, FSDP, make_mesh, shardings
from pasta_jax.models.transformer import Layer
from pasta_jax.tpu import hlo

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


def topology_mesh(devices: list[jax.Device], data: int, fsdp: bool = False) -> Mesh:
    """A mesh of all devices, `data` times the rest; with `fsdp` to train on, parameters divided over `data` too."""
    return make_mesh(data, len(devices) // data, devices, FSDP if fsdp else DATA)


def placed(tree: Tree, mesh: Mesh | AbstractMesh) -> Tree:
    """The tree's shapes, sharded as pasta_jax/models/sharding.py divides them."""
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


class DoesNotFit(PastaError):
    """The compiler rejected a program because of its memory."""


def compile_program(name: str, lower: Callable[[], jax.stages.Lowered], chip: Chip | None, used: int) -> dict[str, Any]:
    """Lower and compile a program; what it needs, in bytes of one device. The compiler rejects what does not fit there.

    `used` is the number of slots in use of each lane, for the bytes of a step.
    """
    began = time.perf_counter()
    try:
        compiled = lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = re.sub(r"\s+", " ", str(error))[:160]
        raise DoesNotFit(f"{name} doesn't fit: {reason}") from None
    memory, text = compiled.memory_analysis(), compiled.as_text()
    cost = hlo.cost_of_step if name.startswith("run") else hlo.cost
    needs = cost(text, kernel_costs(used))
    return {
        "arguments": memory.argument_size_in_bytes,
        "alias": memory.alias_size_in_bytes,  # updated in place
        "temp": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "flops": needs.flops,  # of products, in one call; of a decoding loop, in one step of all rows
        "hbm_bytes": needs.bytes,  # read and written in the same
        "estimated_ms": None if chip is None else round(roofline_ms(needs, chip), 3),  # nothing was measured
        "collectives": summary(collectives(text)),
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "sorts": hlo.sorts(text),  # without a repetition penalty
        "compile_s": round(time.perf_counter() - began, 1),
    }


def roofline_ms(needs: hlo.Cost, chip: Chip) -> float:
    """The time that products and memory take at their published peak, if they overlap and nothing else takes any."""
    return 1e3 * max(needs.flops / (1e12 * chip.tflops), needs.bytes / (1e9 * chip.gb_per_s))


def kernel_costs(used: int) -> dict[str, hlo.Kernel]:
    """The costs of our kernels by the operands of a call; without them a kernel's operands would count as read."""

    def pool(one: hlo.Instruction, operands: list[hlo.Array]) -> hlo.Cost:
        (lanes, heads, queries, size), keys = operands[-3].dims, operands[-2]
        slots = math.prod(keys.dims[-2:]) // size
        slot_bytes = keys.bytes / math.prod(keys.dims) * heads * size
        block = pool_tpu.block_of(slots, int(slot_bytes))
        read = lanes * min(-(-used // block) * block, slots)
        small = sum(array.hbm for array in (*operands[:-4], operands[-3], *one.arrays))
        integers = read * 4 * 4.0 * operands[-4].in_hbm
        return hlo.Cost(4.0 * read * heads * queries * size, 2 * read * slot_bytes + integers + small)

    def blocks(products: int, one: hlo.Instruction, operands: list[hlo.Array]) -> hlo.Cost:
        """Attention by blocks: `products` of each pair of blocks; every operand is counted once."""
        (pairs,), (lanes, heads, groups, length, size) = operands[0].dims, operands[7].dims
        block = length // ((math.isqrt(8 * pairs + 1) - 1) // 2)
        flops = 2.0 * products * lanes * heads * groups * size * pairs * block**2
        return hlo.Cost(flops, sum(array.hbm for array in (*operands, *one.arrays)))

    products = {"forward_kernel": 2, "queries_kernel": 3, "keys_kernel": 4}
    return {"pool_kernel": pool} | {name: functools.partial(blocks, count) for name, count in products.items()}


def summary(instructions: list[Collective]) -> dict[str, dict[str, int]]:
    """By kind, how many are in a layer's code and how many outside, and the bytes of the largest result."""
    kinds = sorted({one.kind for one in instructions})
    return {
        "in_layers": dict(Counter(one.kind for one in instructions if one.in_layers)),
        "outside": dict(Counter(one.kind for one in instructions if not one.in_layers)),
        "largest": {kind: max(one.bytes for one in instructions if one.kind == kind) for kind in kinds},
    }


_COLLECTIVE = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?P<start>-start)?"
    r"\((?P<operands>[^)]*)\)(?:.*?channel_id=(?P<channel>\d+))?"
)
_IN_LAYER = f"/{Layer.__name__}/"  # in the name of every operation of a layer


def collectives(program: str) -> list[Collective]:
    """The collectives in the text of a compiled program. One beside other work is in it several times, by a channel."""
    instructions = {}
    for number, line in enumerate(program.splitlines()):
        if match := _COLLECTIVE.search(line):
            results = hlo.arrays(match["result"])
            if match["start"] and match["kind"] != "all-reduce":  # operands, results, and counters
                count = match["operands"].count("%")
                results = results[count : 2 * count]
            one = Collective(match["kind"], int(sum(array.bytes for array in results)), _IN_LAYER in line)
            instructions.setdefault(match["channel"] or f"line {number}", one)
    return list(instructions.values())
