"""Python types as schemas: each says what it says alone, also within others."""

import dataclasses
import datetime
import enum
import math
from typing import Annotated, Generic, Literal, NotRequired, Required, TypedDict, TypeVar

import msgspec
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import prompt_for
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.types import schema_of


class Person(TypedDict):
    name: str
    born: datetime.date


@dataclasses.dataclass
class Owner:
    name: str
    born: datetime.date


T = TypeVar("T")


class Pair(TypedDict, Generic[T]):
    second: T
    first: int


C = TypeVar("C", Owner, Pair)


class Chosen(TypedDict, Generic[C]):
    one: C
    all: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Car:
    colour: Colour
    owner: Owner
    doors: Literal[3, 5]
    used: bool | None = None


class Typed(TypedDict):
    colour: Colour
    owner: Owner


class Keywords(TypedDict):
    type: Literal["a", "b"]
    enum: str


class Partly(TypedDict, total=False):
    when: NotRequired[datetime.time]
    at: datetime.datetime
    who: Required[str]


class Within(TypedDict):
    x: "Within"


def test_types_become_fields_in_their_order():
    form = form_of(schema_of(Car))
    assert [leaf.name for leaf in form.leaves] == ["colour", "owner.name", "owner.born", "doors", "used"]
    assert "".join(form.around) == '{"colour": , "owner": {"name": , "born": }, "doors": , "used": }'
    assert [leaf.about for leaf in form_of(schema_of(Person)).leaves] == ["string", "string, YYYY-MM-DD"]
    for within in (list[Person], dataclasses.make_dataclass("Team", [("head", Person)]), Person | None):
        assert [*schema_of(within)["$defs"]["Person"]["properties"]] == ["name", "born"]
    for within in (Pair[int], list[Pair[str]], Pair[list[Pair[str]]] | None):
        pairs = [one["properties"] for one in schema_of(within)["$defs"].values()]
        assert {tuple(names) for names in pairs} == {("second", "first")}
    mixed = form_of(schema_of({"who": "the owner", "n": int, "tags": list[str], "in": {"x": float}}))
    assert [leaf.about for leaf in mixed.leaves] == ["string, the owner", "integer", "array", "number"]
    assert prompt_for(mixed, "Text.\n", "Do it.").splitlines()[:4] == [
        "Text.",
        "",
        "Do it.",
        "- who: string, the owner",
    ]
    assert list(form_of(schema_of(list[Chosen[Owner]])).leaves)  # its variable alone is no type of fields


def test_a_prompt_says_what_a_value_looks_like_within_others_and_choices_as_json():
    for kind, about in (
        (datetime.date | None, "string, YYYY-MM-DD, or null"),
        (list[datetime.date], "array of string, YYYY-MM-DD"),
        (int | str, "integer or string"),
        (list[str], "array"),
        (list[Owner], "array"),
        (list[Colour] | None, "array of one of blue, red, or null"),
        (Literal["a", None], "one of null, a"),
        ({"enum": [*range(99)]}, f"one of {', '.join(map(str, range(20)))}, …"),
        ({"enum": [True, "é", ["é"]]}, 'one of true, é, ["é"]'),
        ({"type": ["integer", "null"], "description": "which"}, "integer or null, which"),
    ):
        assert [leaf.about for leaf in form_of(schema_of({"x": kind})).leaves] == [about]


def test_descriptions_of_choices_objects_and_items_are_said_and_set_apart():
    """After a comma, a description would be one more choice."""
    kind = {"enum": ["gift", "stock"], "description": "what for"}
    item = {"type": "object", "properties": {"kind": kind, "n": {"type": "integer"}}}
    address = {"type": "object", "properties": {"street": {"type": "string"}}, "description": "not billing"}
    said = "object with kind (one of gift, stock; what for), n (integer)"
    for schema, about in (
        (kind, "one of gift, stock; what for"),
        ({"type": "array", "items": {"enum": ["a"]}, "description": "labels"}, "array of one of a; labels"),
        ({"type": "array", "items": {"type": "string", "description": "a label"}}, "array of string, a label"),
        ({"type": "array", "items": item}, f"array of {said}"),
        ({"anyOf": [item, {"type": "null"}], "description": "the order"}, f"{said}, or null; the order"),
        (address, "string (x: not billing)"),
        ({"type": "object", "properties": {"y": address}, "description": "all"}, "string (x: all) (y: not billing)"),
    ):
        root = {"type": "object", "properties": {"x": schema}, "description": "the same for all fields"}
        assert [leaf.about for leaf in form_of(root).leaves] == [about]


def test_a_default_says_nothing_also_where_json_has_no_such_number():
    number = dataclasses.make_dataclass("number", [("x", float, math.nan), ("y", int, 3)])
    assert [leaf.about for leaf in form_of(schema_of(number)).leaves] == ["number", "integer"]
    schema = {"type": "number", "default": math.inf, "examples": [-math.inf]}
    assert form_of(schema_of({"x": schema})).leaves[0].about == "number"


def test_pydantic_models_are_schemas():
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", name=(str, ...), age=(int, pydantic.Field(ge=0, le=150)))
    assert [leaf.name for leaf in form_of(schema_of(model)).leaves] == ["name", "age"]


def test_fields_of_a_mapping_have_definitions_of_their_own():
    other = dataclasses.make_dataclass("Owner", [("age", Annotated[int, msgspec.Meta(ge=0)]), ("colour", Colour)])
    form = form_of(schema_of({"a/b": Owner, "x": {"~": list[other], "y": other}, "c": Colour}))
    names = ["a/b.name", "a/b.born", "x.~", "x.y.age", "x.y.colour", "c"]
    assert [leaf.name for leaf in form.leaves] == names
    assert form.leaves[4].automaton.key == form.leaves[5].automaton.key
    assert [leaf.name for leaf in form_of(schema_of(Typed)).leaves] == ["colour", "owner.name", "owner.born"]
    tree = {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"enum": ["#"]}}}
    assert [leaf.name for leaf in form_of(schema_of({"a": tree, "b": {"c": tree}})).leaves] == ["a.t", "b.c.t"]


def test_a_field_may_have_the_name_of_a_keyword():
    for fields, names in (
        ({"type": Literal["a", "b"], "name": "who"}, ["type", "name"]),
        ({"type": "what kind", "const": "which"}, ["type", "const"]),
        ({"enum": "those named", "anyOf": list[str], "properties": "of it"}, ["enum", "anyOf", "properties"]),
        ({"properties": {"name": str}}, ["properties.name"]),
        ({"properties": {"size": "the size"}, "owner": "who owns"}, ["properties.size", "owner"]),
        ({"properties": {"home": {"properties": {"size": int}}}}, ["properties.home.properties.size"]),
        ({"const": "the constant", "name": "who"}, ["const", "name"]),
        (Keywords, ["type", "enum"]),
        ({"const": "text"}, ["the value"]),
        ({"type": ["string", "null"], "maxLength": 3}, ["the value"]),
        ({"const": "text", "description": "what"}, ["the value"]),
    ):
        assert [leaf.name for leaf in form_of(schema_of(fields)).leaves] == names
    for schema, match in (  # a schema's mistakes stay those of a schema
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "schema: type"),
        ({"type": "object", "properties": {"a": "string"}}, r'schema\.a: "string" is no schema'),
        ({"type": "string", "contentEncoding": "base64"}, "schema: contentEncoding"),
    ):
        with pytest.raises(PastaError, match=match):
            form_of(schema_of(schema))


def test_times_have_a_zone_and_are_no_other_text():
    """To msgspec, a time that may lack its zone is any text. All keys of a TypedDict are written."""
    leaves = form_of(schema_of(Partly)).leaves
    assert [leaf.name for leaf in leaves] == ["when", "at", "who"]
    assert [leaf.automaton.walk(b'"x') < 0 for leaf in leaves] == [True, True, False]
    assert leaves[0].automaton.walk(b'"12:00:00Z"') >= 0
    zoned = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    [leaf] = form_of(schema_of({"x": list[zoned] | None})).leaves
    assert leaf.automaton.walk(b'["x') < 0 <= leaf.automaton.walk(b'["2')
    inner = dataclasses.make_dataclass("inner", [("at", datetime.datetime), ("end", zoned)])
    for fields in (inner, {"x": datetime.datetime | None}, list[datetime.time]):
        with pytest.raises(PastaError, match=r"fields: datetime\.\w+: write Annotated"):
            schema_of(fields)


def test_what_a_type_says_to_others_is_refused_or_read():
    pydantic = pytest.importorskip("pydantic")
    bounded = Annotated[int, pydantic.Field(ge=0)]
    inner = dataclasses.make_dataclass("inner", [("age", bounded)])
    for fields in ({"age": bounded}, inner, {"all": list[inner] | None}, Annotated[str, "who"]):
        with pytest.raises(PastaError, match=r"fields: .*: is not read in Annotated"):
            schema_of(fields)
    read = pydantic.dataclasses.dataclass(inner)
    for fields in (read, {"x": read}, dataclasses.make_dataclass("outer", [("x", read)])):
        [leaf] = form_of(schema_of(fields)).leaves
        assert leaf.automaton.walk(b"-") < 0 <= leaf.automaton.walk(b"7")


def test_no_types_are_named():
    pydantic, name = pytest.importorskip("pydantic"), "Nope"
    unknown = dataclasses.make_dataclass("unknown", [("x", name)])
    for fields, match in (
        (None, "None"),
        (["name"], "name"),
        (TypedDict("names", {"x": name}), "Nope"),
        (unknown, "Nope"),
        ({"a": unknown}, "Nope"),
        (pydantic.create_model("model", x=(name, ...)), "not fully defined"),
        ({1: str}, "1"),
        (Within, "within"),
        (
            dataclasses.make_dataclass("outer", [(x, dataclasses.make_dataclass("A", [(x, int)])) for x in "ab"]),
            "A.* another type has",
        ),
    ):
        with pytest.raises(PastaError, match=f"fields: .*{match}"):
            schema_of(fields)


def test_a_reference_is_a_fragment_of_an_address():
    """Percent-encoded, and with indices of lists."""
    defined = {"A B": {"enum": ["x"]}, "a/b": {"anyOf": [{"type": "null"}, {"const": 7}]}}
    references = {"first": "#/$defs/A%20B", "second": "#/$defs/a~1b/anyOf/1"}
    properties = {name: {"$ref": reference} for name, reference in references.items()}
    form = form_of({"type": "object", "properties": properties, "$defs": defined})
    assert [leaf.about for leaf in form.leaves] == ["one of x", "value"]
    for wrong in ("#/$defs/a~1b/anyOf/2", "#/$defs/a~1b/anyOf/x", f"#/$defs/a~1b/anyOf/{'9' * 5000}", "#/$defs/A B/0"):
        with pytest.raises(PastaError, match="not in the schema"):
            form_of({"type": "object", "properties": {"f": {"$ref": wrong}}, "$defs": defined})
