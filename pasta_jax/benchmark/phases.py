"""Where the time of a program goes, by phase: the profiler's events of each operation, named by its source's scope.

An operation of a compiled program carries the scopes (`jax.named_scope`) of the source it comes from. Operations of
several threads that run at the same moment share that moment.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from jax.profiler import ProfileData

Phase = Literal["products", "attention", "write", "layers, rest", "head", "sampling", "threads", "other", "between"]
PHASES: tuple[Phase, ...] = get_args(Phase)
SHOWN: Mapping[Phase, str] = {
    "products": "products with the layers' matrices",
    "attention": "attention to the pool",
    "write": "writing keys, values and slots",
    "layers, rest": "norms, rotary positions, activations",
    "head": "the head's product",
    "sampling": "sampling and its rules",
    "threads": "picking and advancing threads",
    "other": "operations without a scope",
    "between": "between operations",
}
_MATRICES = {"qkv", "out", "gate_up", "down"}
_THREADS = {"open", "pick", "advance", "count_rows"}
_OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = [^=]*? ([\w\-]+)\((.*)$", re.MULTILINE)
_SCOPES = re.compile(r'metadata=\{[^}]*?op_name="([^"]*)"')
_OF_PRODUCTS: Mapping[Phase, Phase] = {"layers, rest": "products", "sampling": "head"}  # if their user is in the former
_FAR = 8  # users of users to look at
_CONTAINERS = {"while", "conditional", "call"}  # their events span those of what they run

Span = tuple[int, int, Phase]  # begin and end in nanoseconds


def phase_of(scopes: str) -> Phase:
    """The phase of an operation by its scopes, as `jit(run)/while/body/model/Layer/qkv/dot_general`."""
    parts = set(scopes.split("/"))
    if "write" in parts:
        return "write"
    if "model" in parts:
        if "attention" in parts:
            return "attention"
        return "products" if parts & _MATRICES else "layers, rest"
    if "sample" in parts:
        return "head" if "head" in parts else "sampling"
    return "threads" if parts & _THREADS else "other"


def phases_of(program: str) -> dict[str, Phase]:
    """The phase of each operation of a compiled program, given in XLA's text form; without those that run others.

    XLA drops the scopes of some operations, products among them: those count with the first operation that uses them.
    """
    phases: dict[str, Phase] = {}
    products, users = set(), {}
    for name, code, rest in _OPERATION.findall(program):
        if code in _CONTAINERS:
            continue
        for operand in re.findall(r"%([\w.\-]+)", rest):
            users.setdefault(operand, name)
        scopes = _SCOPES.search(rest)
        phases[name] = phase_of(scopes[1] if scopes else "")
        if code == "dot" or "ynn_fusion" in name:
            products.add(name)
    resolved = {}
    for name, phase in phases.items():
        user = name
        for _ in range(_FAR):
            if phases.get(user, "other") != "other" or user not in users:
                break
            user = users[user]
        found = phases.get(user, "other")
        resolved[name] = _OF_PRODUCTS.get(found, found) if name in products and phase == "other" else found
    return resolved


def spans(profile: Path, phases: Mapping[str, Phase]) -> list[Span]:
    """The events of these operations in a profile's folder, of all threads of the host or of the first device."""
    [path] = profile.glob("plugins/profile/*/*.xplane.pb")
    data = ProfileData.from_file(str(path))
    planes = [plane for plane in data.planes if plane.name.startswith("/device:")][:1]
    planes = planes or [plane for plane in data.planes if plane.name == "/host:CPU"]
    return [
        (round(event.start_ns), round(event.start_ns + event.duration_ns), phases[event.name])
        for plane in planes
        for line in plane.lines
        for event in line.events
        if event.name in phases
    ]


def split(spans: Iterable[Span]) -> dict[Phase, float]:
    """Milliseconds of each phase, from the first event to the last; they add up to the time that passed."""
    changes = sorted(
        change for begin, end, phase in spans if end > begin for change in ((begin, 1, phase), (end, -1, phase))
    )
    total: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
    running: dict[Phase, int] = dict.fromkeys(PHASES, 0)
    before = changes[0][0] if changes else 0
    for moment, change, phase in changes:
        count = sum(running.values())
        for one, number in running.items() if count else ():
            total[one] += (moment - before) * number / count / 1e6
        if not count:
            total["between"] += (moment - before) / 1e6
        running[phase] += change
        before = moment
    return total
