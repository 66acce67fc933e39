"""What compiling for a TPU topology found, as plain data and as text for people."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Literal

from pasta_jax.device.devices import Chip
from pasta_jax.tpu import program as tpu

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Largest:
    """The most lanes that fit at some number of slots, and the mesh on which they do."""

    lanes: int  # 0: not even one
    data: int
    model: int
    compiled: bool = False  # or only computed


@dataclasses.dataclass(frozen=True)
class Report:
    """The topology, the model's size on one device, and what each program needs."""

    topology: str
    device: str
    mesh: dict[str, int]  # of decoding
    training_mesh: dict[str, int]
    preset: str
    lanes: int
    rows: int
    slots: int
    used: int
    prefill: int
    bytes: Literal["of one device"]
    params: int  # in bfloat16
    state: int
    keys_values: int
    live: int  # parameters, and the keys and values in use: what a decoding step has to read
    chip: Chip | None  # one device's share of its published figures
    programs: dict[str, tpu.Program]
    refused: dict[str, str]  # programs that don't fit, and why
    largest: dict[int, Largest]  # by slots

    def plain(self) -> dict[str, object]:
        """As JSON takes it."""
        return dataclasses.asdict(self)

    def lines(self) -> Iterator[str]:
        """For people."""
        data, model = self.mesh.values()
        yield f"{self.topology}: {data * model} x {self.device}, mesh {data} x {model}, {self.preset}"
        if {"sft", "preference"} & {*self.programs, *self.refused}:
            yield f"  training: {' x '.join(f'{axis} {size}' for axis, size in self.training_mesh.items())}"
        yield (
            f"  a device: parameters {gib(self.params)}, keys and values {gib(self.keys_values)} "
            f"({self.lanes} lanes of {self.slots} slots)"
        )
        titles = ("arguments", "in place", "temp", "peak", "TFLOP", "GB moved", "estimated ms")
        yield f"  {'program':<10} {' '.join(f'{title:>12}' for title in titles)}"
        for name, one in self.programs.items():
            sizes = [gib(size) for size in (one.arguments, one.alias, one.temp, one.peak)]
            estimate = "-" if one.estimated_ms is None else f"{one.estimated_ms:.2f}"
            row = *sizes, f"{one.flops / 1e12:.3f}", f"{one.hbm_bytes / 1e9:.3f}", estimate
            yield f"  {name:<10} {' '.join(f'{value:>12}' for value in row)}"
        for name, one in self.programs.items():
            where = {"in layers": one.collectives.in_layers, "elsewhere": one.collectives.outside}
            listed = [f"{place} {counted(kinds)}" for place, kinds in where.items() if kinds]
            yield f"  {name} exchanges: {'; '.join(listed) or 'nothing'}"
        if run := self.programs.get("run"):
            yield (
                f"  a step of {self.rows} rows with {self.used} slots in use moves "
                f"{run.hbm_bytes / self.live:.3f} times the parameters, keys and values that it needs"
            )
        for name, reason in self.refused.items():
            yield f"  {name}: {reason}"
        for slots, one in self.largest.items():
            how = "compiled" if one.compiled else "computed"
            yield f"  {slots} slots: at most {one.lanes} lanes, on a mesh of {one.data} x {one.model} ({how})"
        if self.chip is not None:
            yield (
                f"  estimated: the slower of products and memory at the published {self.chip.tflops:g} TFLOP/s and "
                f"{self.chip.gb_per_s:g} GB/s of a device; nothing was run"
            )


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / GIB:.3f} GiB"


def counted(kinds: dict[str, int]) -> str:
    """Counts by kind, as text."""
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def as_json(reports: list[Report]) -> str:
    """One line: the report, or all of them."""
    if len(reports) == 1:
        return json.dumps(reports[0].plain())
    return json.dumps({"reports": [report.plain() for report in reports]})
