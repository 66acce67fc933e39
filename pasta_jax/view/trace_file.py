"""Trace files: JSON in a documented, versioned format (docs/API.md), validated field by field when read."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from pasta_jax.decode.state import FINISH_NAMES
from pasta_jax.decode.trace import CLOSED_NAMES, Trace
from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.validated import MIB, Count, Finite, parse_json, read_bytes, typed
from pasta_jax.lang.structure import POLICIES
from pasta_jax.lang.tags import TagIds

FORMAT = "pasta_jax.trace"
VERSION = 1
MOST_BYTES = 32 * MIB  # a token takes about 40 bytes
MOST_TOKENS, MOST_THREADS = 2**18, 2**12
_SAME = ("model", "replayed", "rows", "policy")  # as in a trace
_COLUMNS = {"id": "token", "thread": "thread", "step": "step", "position": "position"}
_CLOSED = {name: code for code, name in CLOSED_NAMES.items()}
_FINISH = {name: code for code, name in FINISH_NAMES.items()}
_REMEDY = "write it again with --trace"


class _Tokens(Struct, forbid_unknown_fields=True):
    id: list[Count]
    thread: list[Count]
    step: list[Count]
    position: list[Count]
    text: Annotated[list[str], Meta(max_length=MOST_TOKENS)]


class _File(Struct, forbid_unknown_fields=True):
    format: str
    version: int
    model: str
    replayed: bool
    rows: Count
    policy: Literal[POLICIES]
    tags_base: Count
    prompt: str
    prompt_ids: list[Count]
    finish: Literal[tuple(_FINISH)]
    steps: Count
    closed: Annotated[list[Literal[tuple(_CLOSED)]], Meta(min_length=1, max_length=MOST_THREADS)]  # main is a thread
    rounds: list[tuple[Count, Finite]]
    tokens: _Tokens
    # These follow from the others (`_derived`).
    text: Any
    program: Any
    threads: Any
    text_tokens: Any
    critical_path: Any
    parallelism: Any


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
        **{name: getattr(trace, name) for name in _SAME},
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
    trace = _trace(typed(fields, _File, name, _REMEDY), name)
    try:
        derived = _derived(trace)
    except (PastaError, IndexError) as error:  # an IndexError: a chunk that `closed` lacks
        raise PastaError(f"{name}: tokens: not a well-formed answer ({error}); {_REMEDY}") from None
    for key, value in derived.items():
        if fields[key] != value:
            raise PastaError(f"{name}: {key}: does not follow from the tokens, so the file was changed; {_REMEDY}")
    return trace


def _trace(file: _File, name: str) -> Trace:
    """The stored fields as a trace, if they agree with each other."""

    def demand(holds: bool, key: str, problem: str) -> None:
        if not holds:
            raise PastaError(f"{name}: {key}: {problem}; {_REMEDY}")

    columns = {attribute: np.array(getattr(file.tokens, key), np.int32) for key, attribute in _COLUMNS.items()}
    count, steps, tags = len(file.tokens.text), file.steps, TagIds(file.tags_base)
    for key, attribute in _COLUMNS.items():
        same = len(columns[attribute]) == count
        demand(same, f"tokens.{key}", f"its length differs from that of tokens.text, {count}")
    thread, step = columns["thread"], columns["step"]
    demand(steps <= count + 1, "steps", f"more than the {count} tokens, of which each step feeds one or more")
    demand(bool((thread < len(file.closed)).all()), "tokens.thread", "has a thread that is not in closed")
    demand(bool((np.diff(step) >= 0).all()), "tokens.step", "decreases")
    demand(not count or (step[0] >= 1 and step[-1] <= steps), "tokens.step", f"is not within 1 to {steps}")
    closes = int(np.count_nonzero((thread == 0) & tags.is_close(columns["token"])))
    demand(closes + 1 == len(file.closed), "closed", f"has {len(file.closed)} threads for {closes} promises")
    rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(file.rounds))
    demand(rising, "rounds", "decreases")
    demand(not file.rounds or file.rounds[0][0] == 0, "rounds", "does not start at step 0")
    return Trace(
        **{name: getattr(file, name) for name in _SAME},
        tags=tags,
        prompt=file.prompt,
        prompt_ids=tuple(file.prompt_ids),
        **columns,
        text=tuple(file.tokens.text),
        closed=tuple(_CLOSED[name] for name in file.closed),
        finish=_FINISH[file.finish],
        steps=steps,
        rounds=tuple(file.rounds),
    )
