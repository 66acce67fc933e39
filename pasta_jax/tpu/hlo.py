"""What a program compiled for TPUs does in a step, read from its text: operations of products, and bytes of HBM.

The compiler's own cost analysis counts each loop's body once. Here a loop counts as often as it runs, if its condition
compares a counter with a constant. Of other loops, which are those of decoding steps for different numbers of rows,
the costliest counts, once; of branches, the costliest, except that no request is taken to have a repetition penalty.
Values that the compiler keeps in the core's memory, whose layout names a memory space as in `S(1)`, cost no bytes.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator

from pasta_jax.decode.sampling import PENALTY

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(?P<name>\S+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(
    r"^  (?P<root>ROOT )?%(?P<name>\S+) = (?P<shape>\(.*?\)|\S+) (?P<op>[a-z][\w-]*)\((?P<rest>.*)$"
)
_ARRAY = re.compile(r"\b(?P<type>pred|token|[a-z]+\d+\w*)\[(?P<dims>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?")
_CALLED = re.compile(r"(?:calls|body|to_apply)=%([^\s,})]+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]*)\}|true_computation=%([^\s,]+), false_computation=%([^\s,]+))")
# What moves nothing: names for a value, or the end of what has begun before.
_FREE = {
    *("while", "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"),
    *("copy-done", "slice-done", "all-reduce-done", "all-gather-done", "collective-permute-done", "async-done"),
}
_SAME = ("bitcast", "reshape", "transpose", "copy", "convert")
_SLICES = ("dynamic-slice", "slice", "gather")
_WINDOW = {"stride": "1", "lhs_dilate": "1", "rhs_dilate": "1", "pad": "0_0"}  # where a convolution states no other
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is written into operand 0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one device."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: int) -> "Cost":
        """That many of them."""
        return Cost(self.flops * count, self.bytes * count)


@dataclasses.dataclass(frozen=True)
class Array:
    """An array's element type, dimensions and whether it is in HBM."""

    type: str
    dims: tuple[int, ...]
    in_hbm: bool

    @property
    def bytes(self) -> float:
        """Its size, without padding."""
        digits = re.search(r"\d+", self.type)
        return math.prod(self.dims) * (1 if digits is None else int(digits[0]) / 8)

    @property
    def hbm(self) -> float:
        """Its bytes in HBM."""
        return self.bytes if self.in_hbm else 0.0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    op: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool


Computation = dict[str, Instruction]
Kernel = Callable[[Instruction, list[Array]], Cost]  # the cost of a call of one of our kernels


def cost(text: str, kernels: dict[str, Kernel]) -> Cost:
    """The cost of a compiled program; `kernels` by the beginning of their names."""
    entry = re.search(r"^ENTRY %(\S+)", text, re.MULTILINE)[1]
    return _Walk(dict(_computations(text)), kernels).total(entry)


def cost_of_step(text: str, kernels: dict[str, Kernel]) -> Cost:
    """The cost of one turn of a decoding loop: of the one for the most rows."""
    walk = _Walk(dict(_computations(text)), kernels)
    bodies = [body for inside in walk.computations for body, turns in walk.loops(inside) if turns is None]
    innermost = [body for body in bodies if not any(turns is None for _, turns in walk.loops(body))]
    return max(map(walk.total, innermost), key=_greatest)


def sorts(text: str) -> int:
    """How many instructions sort, in a call without a repetition penalty."""
    entry = re.search(r"^ENTRY %(\S+)", text, re.MULTILINE)[1]
    walk = _Walk(dict(_computations(text)), {})
    reached, left = set(), [entry]
    while left:
        if (name := left.pop()) not in reached:
            reached.add(name)
            left += itertools.chain.from_iterable(map(walk.called, walk.computations[name].values()))
    return sum(one.op == "sort" for name in reached for one in walk.computations[name].values())


def _greatest(cost: Cost) -> tuple[float, float]:
    return cost.bytes, cost.flops


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays of a shape, which may be a tuple."""
    found = []
    for match in _ARRAY.finditer(shape):
        dims = tuple(int(dim) for dim in match["dims"].split(",") if dim)
        found.append(Array(match["type"], dims, not re.search(r"S\([1-9]\d*\)", match["layout"] or "")))
    return tuple(found)


def _computations(text: str) -> Iterator[tuple[str, Computation]]:
    name, inside = "", {}
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            name, inside = match["name"], {}
        elif line.startswith("}"):
            yield name, inside
        elif match := _INSTRUCTION.match(line):
            arguments, _, attributes = match["rest"].partition(")")
            operands = tuple(re.findall(r"%([^\s,)]+)", arguments))
            number = arguments if match["op"] in ("parameter", "constant") else ""
            inside[match["name"]] = Instruction(
                match["name"], match["op"], arrays(match["shape"]), operands, number + attributes, bool(match["root"])
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Walk:
    computations: dict[str, Computation]
    kernels: dict[str, Kernel]
    totals: dict[str, Cost] = dataclasses.field(default_factory=dict)  # those known already

    def total(self, name: str) -> Cost:
        """The cost of a computation with all that it calls."""
        if name not in self.totals:
            self.totals[name] = self._total(name)
        return self.totals[name]

    def loops(self, name: str) -> list[tuple[str, int | None]]:
        """The body of each loop of a computation, and how often it runs."""
        found = []
        for one in self.computations[name].values():
            if one.op == "while":
                body, condition = (
                    re.search(rf"{kind}=%([^\s,]+)", one.attributes)[1] for kind in ("body", "condition")
                )
                found.append((body, self._turns(condition)))
        return found

    def called(self, one: Instruction) -> list[str]:
        """The computations that an instruction may run."""
        if one.op != "conditional":
            return re.findall(r"(?:calls|body|condition|to_apply)=%([^\s,})]+)", one.attributes)
        names = re.findall(r"%([^\s,}]+)", _BRANCHES.search(one.attributes)[0])
        return [min(names, key=lambda name: _greatest(self.total(name)))] if f"/{PENALTY}/" in one.attributes else names

    def _total(self, name: str) -> Cost:
        total, inside = Cost(), self.computations[name]
        for one in inside.values():
            if one.op == "conditional":
                total += max(map(self.total, self.called(one)), key=_greatest)
            elif one.op == "call":
                total += self.total(_called(one))
            elif one.op not in _FREE:
                total += self._one(one, inside)
        loops = self.loops(name)
        for body, turns in loops:
            total += self.total(body).times(turns or 0)
        return total + max((self.total(body) for body, turns in loops if turns is None), key=_greatest, default=Cost())

    def _turns(self, condition: str) -> int | None:
        """How often a loop runs whose condition is `counter < constant`; None: unknown."""
        inside = self.computations[condition]
        root = next(one for one in inside.values() if one.is_root)
        if root.op == "fusion" and len(root.operands) == 2:
            comparison = next(one for one in self.computations[_called(root)].values() if one.is_root)
        else:
            comparison = root
        limits = [inside[name] for name in root.operands if inside[name].op == "constant"]
        if comparison.op != "compare" or "direction=LT" not in comparison.attributes or len(limits) != 1:
            return None
        return int(re.match(r"\d+", limits[0].attributes)[0])

    def _one(self, one: Instruction, inside: Computation) -> Cost:
        operands = [inside[name].arrays[0] for name in one.operands if inside[name].arrays]
        for name, kernel in self.kernels.items():
            if one.op == "custom-call" and one.name.startswith(name):
                return kernel(one, operands)
        if one.op == "fusion":
            called = self.computations[_called(one)]
            read = sum(self._read_by(one, at) for at, array in enumerate(operands) if array.in_hbm)
            return Cost(self._products(called), read + self._written(called, one.arrays))
        if one.op in _SLICES:
            return Cost(0.0, one.arrays[0].hbm + one.arrays[0].bytes * operands[0].in_hbm)
        if one.op == "slice-start":
            return Cost(0.0, one.arrays[1].hbm + one.arrays[1].bytes * operands[0].in_hbm)
        if one.op in _UPDATES:
            return Cost(0.0, 2 * operands[_UPDATES[one.op]].hbm)
        if one.op.endswith("-start"):
            result = one.arrays[0 if one.op == "copy-start" else min(1, len(one.arrays) - 1)]
            return Cost(0.0, operands[0].hbm + result.hbm)
        flops = _product(one, inside) if one.op in ("convolution", "dot") else 0.0
        return Cost(flops, sum(array.hbm for array in (*operands, *one.arrays)))

    def _products(self, inside: Computation) -> float:
        flops = 0.0
        for one in inside.values():
            if one.op in ("convolution", "dot"):
                flops += _product(one, inside)
            elif one.op == "fusion":
                flops += self._products(self.computations[_called(one)])
        return flops

    def _read_by(self, fusion: Instruction, at: int) -> float:
        """Bytes that a fusion reads of its operand `at`."""
        inside = self.computations[_called(fusion)]
        parameters = {int(re.match(r"\d+", one.attributes)[0]): one for one in inside.values() if one.op == "parameter"}
        return self._read(inside, parameters[at].name)

    def _read(self, inside: Computation, name: str) -> float:
        """Bytes that a fusion reads of its parameter `name`: of one that is only sliced, the slices."""
        whole, read = inside[name].arrays[0].bytes, 0.0
        if inside[name].is_root:
            return whole
        for user in (one for one in inside.values() if name in one.operands):
            if user.op in _SLICES and user.operands[0] == name:
                read += user.arrays[0].bytes
            elif user.op in _UPDATES and user.operands[0] == name:
                continue
            elif user.op in _SAME or (user.op == "fusion" and self._is_same(user)):
                read += self._read(inside, user.name)
            elif user.op == "fusion":
                read += sum(self._read_by(user, at) for at, operand in enumerate(user.operands) if operand == name)
            else:
                return whole
        return min(read, whole)

    def _is_same(self, fusion: Instruction) -> bool:
        """Whether a fusion only stores its operand in another way, of which only slices are computed."""
        inner = self.computations[_called(fusion)].values()
        return len(fusion.operands) == 1 and all(one.op == "parameter" or one.op in _SAME for one in inner)

    def _written(self, inside: Computation, results: tuple[Array, ...]) -> float:
        """Bytes that a fusion writes: of a result that is updated in place, the update."""
        root = next(one for one in inside.values() if one.is_root)
        roots = [inside[name] for name in root.operands] if root.op == "tuple" else [root]
        written = 0.0
        for result, one in zip(results, roots, strict=False):
            while one.op in ("bitcast", "convert", "copy") and one.operands:
                one = inside[one.operands[0]]
            update = inside[one.operands[_UPDATES[one.op]]].arrays[0].bytes if one.op in _UPDATES else result.bytes
            written += update if result.in_hbm else 0.0
        return written


def _called(one: Instruction) -> str:
    return _CALLED.search(one.attributes)[1]


def _product(one: Instruction, inside: Computation) -> float:
    """Operations of a product, which on a TPU is a convolution: two for each pair of elements that it multiplies."""
    left, right = (inside[name].arrays[0].dims for name in one.operands)
    result = one.arrays[0].dims
    if one.op == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)[1]
        return 2.0 * math.prod(result) * math.prod(left[int(dim)] for dim in contracted.split(",") if dim)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    window = dict(re.findall(r"(\w+)=(\S+?)[ }]", re.search(r"window=(\{[^}]*\})|$", one.attributes)[0]))
    inputs = right[labels[2].index("i")]
    pairs = 2.0 * result[labels[3].index("b")] * result[labels[3].index("f")] * inputs
    for at, digit in enumerate(sorted(filter(str.isdigit, labels[3]))):
        along = {name: window[name].split("x")[at] if name in window else value for name, value in _WINDOW.items()}
        stride, spread, reach, low = (int(value.split("_")[0]) for value in along.values())
        sizes = left[labels[1].index(digit)], right[labels[2].index(digit)], result[labels[3].index(digit)]
        pairs *= _pairs(*sizes, stride, spread, reach, low)
    return pairs


@functools.cache
def _pairs(left: int, right: int, result: int, stride: int, spread: int, reach: int, low: int) -> int:
    """Pairs of a result's place and a kernel's place, along one axis, that meet an element and not padding."""
    places = (out * stride + inner * reach - low for out in range(result) for inner in range(right))
    return sum(0 <= place <= (left - 1) * spread and place % spread == 0 for place in places)
