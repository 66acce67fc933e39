"""What compiling for a TPU topology found, as plain data and as text for people."""

import json
from collections.abc import Iterator
from typing import Any

Report = dict[str, Any]  # made by compile.py

GIB = 2**30


def lines(report: Report) -> Iterator[str]:
    """The report for people."""
    data, model = report["mesh"].values()
    programs, refused = report["programs"], report["refused"]
    yield f"{report['topology']}: {data * model} x {report['device']}, mesh {data} x {model}, {report['preset']}"
    if {"sft", "preference"} & {*programs, *refused}:
        yield f"  training: {' x '.join(f'{axis} {size}' for axis, size in report['training_mesh'].items())}"
    yield (
        f"  a device: parameters {gib(report['params'])}, keys and values {gib(report['keys_values'])} "
        f"({report['lanes']} lanes of {report['slots']} slots)"
    )
    titles = ("arguments", "in place", "temp", "peak", "TFLOP", "GB moved", "estimated ms")
    yield f"  {'program':<10} {' '.join(f'{title:>12}' for title in titles)}"
    for name, one in programs.items():
        sizes = [gib(one[size]) for size in ("arguments", "alias", "temp", "peak")]
        estimate = "-" if one["estimated_ms"] is None else f"{one['estimated_ms']:.2f}"
        row = *sizes, f"{one['flops'] / 1e12:.3f}", f"{one['hbm_bytes'] / 1e9:.3f}", estimate
        yield f"  {name:<10} {' '.join(f'{value:>12}' for value in row)}"
    for name, one in programs.items():
        where = {"in layers": one["collectives"]["in_layers"], "elsewhere": one["collectives"]["outside"]}
        counts = {place: ", ".join(f"{n} {kind}" for kind, n in kinds.items()) for place, kinds in where.items()}
        listed = [f"{place} {count}" for place, count in counts.items() if count]
        yield f"  {name} exchanges: {'; '.join(listed) or 'nothing'}"
    if run := programs.get("run"):
        yield (
            f"  a step of {report['rows']} rows with {report['used']} slots in use moves "
            f"{run['hbm_bytes'] / report['live']:.3f} times the parameters, keys and values that it needs"
        )
    for name, reason in refused.items():
        yield f"  {name}: {reason}"
    for slots, one in report["largest"].items():
        how = "compiled" if one["compiled"] else "computed"
        yield f"  {slots} slots: at most {one['lanes']} lanes, on a mesh of {one['data']} x {one['model']} ({how})"
    if chip := report["chip"]:
        yield (
            f"  estimated: the slower of products and memory at the published {chip['tflops']:g} TFLOP/s and "
            f"{chip['gb_per_s']:g} GB/s of a device; nothing was run"
        )


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / GIB:.3f} GiB"


def as_json(reports: list[Report]) -> str:
    """One line: the report, or all of them."""
    return json.dumps(reports[0] if len(reports) == 1 else {"reports": reports})
