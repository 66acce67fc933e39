"""Room for a model's lanes on a topology, computed from shapes: the most that fit, and a topology for what doesn't."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from pasta_jax.decode.state import empty_state
from pasta_jax.device.devices import Chip
from pasta_jax.models import transformer
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.sharding import DATA, MODEL
from pasta_jax.tpu import program as tpu
from pasta_jax.tpu.report import GIB

USABLE = 0.97  # of a chip's memory; the compiler keeps some for itself
SLOTS = (1024, 2048, 4096, 8192)
LARGER = {2: ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"), 3: ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")}


@dataclasses.dataclass(frozen=True)
class Largest:
    """The most lanes that fit at some number of slots, and the mesh on which they do."""

    lanes: int  # 0: not even one
    data: int
    model: int
    compiled: bool = False  # or only computed


@dataclasses.dataclass(frozen=True)
class Room:
    """A topology and the model that is to run on it, in bfloat16."""

    config: TransformerConfig
    topology: str
    devices: int
    chip: Chip | None

    def lanes(self, slots: int, data: int, model: int, temp_of_lane: float) -> int:
        """The most lanes of so many slots on a mesh; `temp_of_lane` are bytes that one more lane costs a device."""
        mesh = AbstractMesh((data, model), (DATA, MODEL))
        state = functools.partial(empty_state, self.config, data, slots, jnp.bfloat16, stacked=True)
        init = functools.partial(transformer.init, self.config, stacked=True)
        params = tpu.device_bytes(tpu.placed(jax.eval_shape(init, jax.random.key(0)), mesh)) // 2  # shapes in float32
        lane = tpu.device_bytes(tpu.placed(jax.eval_shape(state), mesh)) + temp_of_lane
        return max(int((USABLE * self.chip.gib * GIB - params) // lane), 0) * data

    def best(self, slots: int, devices: int, temp_of_lane: float) -> Largest:
        """The most lanes on any mesh of so many devices; of equal ones, on that which divides lanes the least."""
        meshes = [(data, devices // data) for data in range(1, devices + 1) if devices % data == 0]
        counts = [(self.lanes(slots, *mesh, temp_of_lane), -mesh[0], mesh) for mesh in meshes]
        lanes, _, (data, model) = max(counts)
        return Largest(lanes, data, model)

    def search(self, slots: int, temp_of_lane: float) -> dict[int, Largest]:
        """The most lanes by slots, up to the model's context."""
        if self.chip is None:
            return {}
        sizes = sorted({*(size for size in SLOTS if size <= self.config.context), slots})
        return {size: self.best(size, self.devices, temp_of_lane) for size in sizes}

    def suggestion(self, slots: int) -> str:
        """What to use where nothing fits: another mesh, or the smallest larger topology of the same kind."""
        if self.chip is None:
            return ""
        kind, _, size = self.topology.partition(":")
        chips = math.prod(map(int, size.split("x")))
        for larger in (size, *LARGER[size.count("x") + 1]):
            devices = self.devices * math.prod(map(int, larger.split("x"))) // chips
            if devices >= self.devices and (found := self.best(slots, devices, 0.0)).lanes:
                mesh = f"mesh of {found.data} x {found.model}"
                return f"; {kind}:{larger} holds {found.lanes} lanes of {slots} slots on a {mesh}"
        return "; no topology of this kind holds a lane"
