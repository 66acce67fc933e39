"""Trace files: JSON in a documented, versioned format (docs/API.md), validated field by field when read."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pasta_jax.decode.state import FINISH_NAMES
from pasta_jax.decode.trace import CLOSED_NAMES, Trace
from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.validated import MIB, parse_json, read_bytes
from pasta_jax.lang.structure import POLICIES
from pasta_jax.lang.tags import TagIds

FORMAT = "pasta_jax.trace"
VERSION = 1
MOST_BYTES = 32 * MIB  # a token takes about 40 bytes
MOST_TOKENS, MOST_THREADS = 2**18, 2**12
T = TypeVar("T")
_COLUMNS = {"id": "token", "thread": "thread", "step": "step", "position": "position"}
_CLOSED = {name: code for code, name in CLOSED_NAMES.items()}
_NAMES = {int: "an int", str: "a str", bool: "a bool", list: "a list", dict: "a dict"}
_FINISH = {name: code for code, name in FINISH_NAMES.items()}
_REMEDY = "write it again with --trace"


def to_json(trace: Trace) -> str:
    """The trace as JSON text, one key per line."""
    fields = _stored(trace) | _derived(trace)
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _stored(trace: Trace) -> dict[str, Any]:
    columns = {key: getattr(trace, name).tolist() for key, name in _COLUMNS.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": trace.model,
        "replayed": trace.replayed,
        "rows": trace.rows,
        "policy": trace.policy,
        "tags_base": trace.tags.base,
        "prompt": trace.prompt,
        "prompt_ids": list(trace.prompt_ids),
        "finish": trace.finish_reason,
        "steps": trace.steps,
        "closed": [CLOSED_NAMES[code] for code in trace.closed],
        "rounds": [list(pair) for pair in trace.rounds],
        "tokens": columns | {"text": list(trace.text)},
    }


def _derived(trace: Trace) -> dict[str, Any]:
    """Values that follow from the stored ones, for readers without this package; verified when read."""
    program = trace.program()
    return {
        "text": program.strip(),
        "program": program.render(),
        "threads": [dataclasses.asdict(thread) for thread in trace.threads()],
        "text_tokens": trace.text_tokens,
        "critical_path": trace.critical_path,
        "parallelism": round(trace.parallelism, 6),
    }


def save(trace: Trace, path: Path) -> None:
    """Write a trace file, whole or not at all."""
    write_whole(path, to_json(trace))


def load(path: Path) -> Trace:
    """Read a trace file; any other file is refused with an error that names it."""
    return from_json(read_bytes(path, MOST_BYTES, "pass a file written with --trace"), str(path))


def from_json(text: str | bytes, name: str) -> Trace:
    """Parse a trace; `name` stands for the text in errors."""
    fields = parse_json(text, name, _REMEDY)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise PastaError(f'{name}: not a trace (its "format" is not {FORMAT!r}); pass a file written with --trace')
    if fields.get("version") != VERSION:
        raise PastaError(
            f"{name}: format version {fields.get('version')!r}, this version of pasta_jax reads {VERSION}; {_REMEDY}"
        )
    trace = _Reader(name, fields).trace()
    try:
        derived = _derived(trace)
    except (PastaError, IndexError) as error:  # an IndexError: a chunk that `closed` lacks
        raise PastaError(f"{name}: tokens: not a well-formed answer ({error}); {_REMEDY}") from None
    known = _stored(trace).keys() | derived.keys()
    for key in sorted(known ^ fields.keys()):
        raise PastaError(f"{name}: {key}: {'missing' if key in known else 'unknown key'}; {_REMEDY}")
    for key, value in derived.items():
        if fields[key] != value:
            raise PastaError(f"{name}: {key}: does not follow from the tokens, so the file was changed; {_REMEDY}")
    return trace


@dataclasses.dataclass
class _Reader:
    """Reads fields from parsed JSON and checks their types and ranges."""

    name: str
    fields: dict[str, Any]

    def trace(self) -> Trace:
        tokens = self.take("tokens", dict)
        for key in sorted(tokens.keys() - {*_COLUMNS, "text"}):
            self.demand(False, f"tokens.{key}", "unknown key")
        columns = {attribute: self.integers(tokens, key) for key, attribute in _COLUMNS.items()}
        text = self.listed(tokens, "text", str)
        closed = [self.one_of(_CLOSED, "closed", value) for value in self.take("closed", list)]
        steps, count = self.take("steps", int), len(text)
        for key, attribute in _COLUMNS.items():
            self.demand(
                len(columns[attribute]) == count,
                f"tokens.{key}",
                f"its length differs from that of tokens.text, {count}",
            )
        thread, step = columns["thread"], columns["step"]
        self.demand(len(closed) <= MOST_THREADS, "closed", f"has more than {MOST_THREADS:,} threads")
        self.demand(count <= MOST_TOKENS, "tokens.text", f"has more than {MOST_TOKENS:,} tokens")
        self.demand(steps <= count + 1, "steps", f"more than the {count} tokens, of which each step feeds one or more")
        self.demand(len(closed) > 0, "closed", "is empty, but main is a thread")
        self.demand(bool((thread < len(closed)).all()), "tokens.thread", "has a thread that is not in closed")
        self.demand(bool((np.diff(step) >= 0).all()), "tokens.step", "decreases")
        self.demand(not count or (step[0] >= 1 and step[-1] <= steps), "tokens.step", f"is not within 1 to {steps}")
        tags = TagIds(self.take("tags_base", int))
        closes = int(np.count_nonzero((thread == 0) & tags.is_close(columns["token"])))
        self.demand(closes + 1 == len(closed), "closed", f"has {len(closed)} threads for {closes} promises")
        return Trace(
            tags=tags,
            model=self.take("model", str),
            prompt=self.take("prompt", str),
            prompt_ids=tuple(self.integers(self.fields, "prompt_ids").tolist()),
            rows=self.take("rows", int),
            policy=self.one_of({name: name for name in POLICIES}, "policy", self.take("policy", str)),
            replayed=self.take("replayed", bool),
            **columns,
            text=tuple(text),
            closed=tuple(closed),
            finish=self.one_of(_FINISH, "finish", self.take("finish", str)),
            steps=steps,
            rounds=self.rounds(),
        )

    def rounds(self) -> tuple[tuple[int, float], ...]:
        rounds = self.take("rounds", list)
        are_pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in rounds)
        are_pairs = are_pairs and all(
            type(step) is int and type(ms) in (int, float) and math.isfinite(ms) for step, ms in rounds
        )
        self.demand(are_pairs, "rounds", "is not a list of [step, milliseconds]")
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(rounds))
        self.demand(rising, "rounds", "decreases")
        self.demand(not rounds or rounds[0][0] == 0, "rounds", "does not start at step 0")
        return tuple((step, float(ms)) for step, ms in rounds)

    def take(self, key: str, kind: type[T]) -> T:
        """A field of the given type."""
        self.demand(key in self.fields, key, "missing")
        self.demand(_is(self.fields[key], kind), key, f"is not {_NAMES[kind]}")
        if kind is int:
            self.demand(0 <= self.fields[key] < 2**31, key, "is out of range")
        return self.fields[key]

    def listed(self, fields: dict[str, Any], key: str, kind: type[T]) -> list[T]:
        """A list of elements of the given type."""
        values = fields.get(key)
        self.demand(
            isinstance(values, list) and all(_is(value, kind) for value in values),
            key,
            f"is not a list of {kind.__name__}",
        )
        return values

    def integers(self, fields: dict[str, Any], key: str) -> np.ndarray:
        """A list of non-negative int32 as an array."""
        values = self.listed(fields, key, int)
        self.demand(all(0 <= value < 2**31 for value in values), key, "has a number out of range")
        return np.array(values, np.int32)

    def one_of(self, known: dict[str, T], key: str, value: object) -> T:
        """The meaning of a name."""
        self.demand(isinstance(value, str) and value in known, key, f"is {value!r}, not one of {', '.join(known)}")
        return known[value]

    def demand(self, holds: bool, key: str, problem: str) -> None:
        """Refuse the file unless the condition holds."""
        if not holds:
            raise PastaError(f"{self.name}: {key}: {problem}; {_REMEDY}")


def _is(value: object, kind: type) -> bool:
    """Whether a value has exactly this type (a bool is not an int); text must also be encodable."""
    return type(value) is kind and not (kind is str and any("\ud800" <= character <= "\udfff" for character in value))
