"""The door of JSON schemas: refused within a second and 200 MiB, or automata that a tokenizer of bytes can write by."""

import copy
import gc
import re
import resource
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.fields.form import fields_of
from pasta_jax.fields.schema import MOST_BYTES, form_of
from pasta_jax.files.validated import read_json
from tests.fuzz.mutations import Mutator, dumped
from tests.fuzz.run import Input
from tests.helpers.byte_tokenizer import ByteTokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20, "description": "who"},
        "code": {"type": "string", "pattern": "^[A-Z]{2,3}-(a|b)*$"},
        "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "kind": {"enum": ["a", "b", 1, None]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "size": {"type": ["number", "null"]},
        "place": {"type": "object", "properties": {"city": {"type": "string"}, "open": {"type": "boolean"}}},
    },
    "required": ["name"],
    "$defs": {"tag": {"type": "string", "maxLength": 5}},
}
REFUSED_S = 3.0  # of CPU time, until a schema is refused: patterns have two seconds, and a process of their own
REFUSED_BYTES = 200 << 20  # of memory meanwhile; a pattern's process has as much
PATTERNS = (
    *(
        "(a|b)*a(a|b){18}",
        "(a|b)*a(a|b){9}",
        "(a+)+$",
        "((a{0,50}){0,50}){0,50}",
        "(.*a){20}",
        "[^x]{0,999}",
        "(",
        "^$",
    ),
    *(
        r"\p{L}{99}",
        "(?=a)",
        r"(a)\1",
        "(?i)straße",
        "\ud800",
        "x" * 1001,
        "(?:(?:a?){30}){30}",
        ".{0,30}.{0,30}",
        "[^",
    ),
    *("[\x00-\U0010ffff]{0,50}", "(" * 400 + ")" * 400, "a|" * 400, r"\x{110000}", r"\b", "a{0,4294967296}", "{", "*"),
)
LEAVES = (
    *({"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "string", "format": "date-time"}),
    *({"type": "string", "maxLength": 1 << 20}, {"type": "integer", "minimum": -(10**18), "maximum": 10**18}),
    *(
        {"const": "\udc00"},
        {"enum": ["\ud83d", "a"]},
        {"const": [[[[[[]]]]]]},
        {"$ref": "#/$defs/laugh0"},
        {"$ref": "#"},
    ),
)


def hostile(by: Mutator, schema: Any) -> bytes:
    """Deep, wide, huge, catastrophic or without end."""
    schema = copy.deepcopy(schema)
    count, leaf = by.choice((2, 5, 17, 64, 257, 1500)), copy.deepcopy(by.choice(LEAVES))
    if by.often(0.3):
        leaf = {"type": "string", "pattern": by.choice(PATTERNS)}
    elif by.often(0.3):
        texts = [f"{number:0{by.choice((1, 3, 9))}}" + by.choice(("", "é", "\ud800")) for number in range(count)]
        leaf = {"enum": texts if by.often(0.8) else ["x" * 50 * count]}
    if by.often(0.5):  # many times the same, or nearly
        depth = by.choice((1, 2, 3, 6))
        for _ in range(depth):
            most = by.choice((None, 0, 1, 2, 64, 65))
            leaf = {"type": "array", "items": leaf} | ({} if most is None else {"maxItems": most})
    if by.often(0.3):
        for _ in range(min(count, 100)):  # json.dumps has a limit too; tree mutations have lists 3,000 deep
            leaf = by.choice(
                ({"type": "array", "items": leaf}, {"type": "object", "properties": {"x": leaf}}, {"anyOf": [leaf]})
            )
    if by.often(0.4):
        wide = {
            f"p{number}": leaf | {by.choice(("description", "maxItems", "minimum")): number} for number in range(count)
        }
        leaf = by.choice(({"type": "object", "properties": wide}, {"anyOf": list(wide.values())}))
    levels = by.choice((1, 4, 8, 15))  # each has two of the next
    for level in range(levels):
        below = {"$ref": f"#/$defs/laugh{level + 1}"}
        schema["$defs"][f"laugh{level}"] = {"type": "object", "properties": {"a": below, "b": below}}
    schema["$defs"][f"laugh{levels}"] = by.choice(({"type": "null"}, {"$ref": "#/$defs/laugh0"}, leaf))
    schema["properties"][by.choice(("name", "tags", "\udfff", ""))] = leaf
    return dumped(schema)


def cpu_s() -> float:
    """Of this process and of those that have ended."""
    every = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in every)


def from_now_on() -> int:
    """Bytes of memory in use; the most of them is counted from here."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return most_bytes()


def most_bytes() -> int:
    """The most memory in use since `from_now_on`."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def schemas(folder: Path) -> list[Input]:
    """JSON schemas, above all hostile ones."""

    def read() -> None:
        memory, began = from_now_on(), cpu_s()  # what is collected before is no part of it
        try:
            form = form_of(read_json(path, dict[str, Any], 4 * MOST_BYTES, "correct it"))  # as launch.fill does
        except PastaError:
            took, more = cpu_s() - began, most_bytes() - memory
            assert took < REFUSED_S, f"refused after {took:.1f} s"
            assert more < REFUSED_BYTES, f"refused after {more >> 20} MiB"
            raise
        if sum(leaf.automaton.states for leaf in form.leaves) < 512:  # masks of many take seconds
            for field in fields_of(form, tokenizer, 384):
                assert field.automaton.walk(field.begun.encode()) >= 0, field.leaf.name

    path, tokenizer = folder / "schema.json", ByteTokenizer()
    return [Input(path, SCHEMA, read, hostile)]
