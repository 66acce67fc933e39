"""Forms filled in: forked fields equal separate requests, and whatever is complete is valid."""

import dataclasses
import json
import math
import operator
import random
import re
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest

import pasta_jax as pasta
from pasta_jax.decode import device_loop
from pasta_jax.decode.generate import generate
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import fields_request, levels_of, prompt_ids, read, template_of
from pasta_jax.fields.form import fields_of, nested, text_of, value_of, values_in
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from pasta_jax.fields.types import schema_of
from tests.helpers.requires import requires_dev
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
MODEL = tiny_model()
CONFIG = DecodeConfig(lanes=1, rows=4, slots=2048)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Any schema that is supported, small."""
    least = rng.randrange(3)
    kinds = [
        {"type": "string"},
        {"type": "string", "minLength": least, "maxLength": least + rng.randrange(1, 5)},
        {"type": "string", "pattern": rng.choice(["^[A-Z][a-z]*$", r"^\d\d(-x)?$", "a|b"])},
        {"type": "string", "format": rng.choice(["date", "time", "uuid", "date-time"])},
        {"type": "integer"},
        {"type": "integer", "minimum": (low := rng.randint(-500, 500)), "maximum": low + rng.randrange(300)},
        {"type": "integer", "exclusiveMinimum": 0},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["integer", "null"]},
        {"enum": rng.sample(["a", "ab", 1, None, 'é"', [1, "x"], {"k": True}], 3)},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        {"const": "x"},
    ]
    if depth < 2:
        items = random_schema(rng, depth + 1)
        most = {} if rng.random() < 0.5 else {"minItems": rng.randrange(2), "maxItems": rng.randrange(2, 4)}
        kinds += [{"type": "array", "items": items} | most, object_of(rng, depth + 1), object_of(rng, depth + 1)]
    return rng.choice(kinds)


def object_of(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(["name", "año", "a b", 'q"', "x", "y", "z"], rng.randint(1, 4))
    properties = {name: random_schema(rng, depth) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


@requires_dev("jsonschema")
@pytest.mark.parametrize(
    "count", [pytest.param(12), pytest.param(1000, marks=[pytest.mark.extended], id="1000 schemas")]
)
def test_forked_fields_are_those_of_separate_requests_and_valid(count):
    import jsonschema

    validator, rng, complete = jsonschema.Draft202012Validator, random.Random(count), 0
    for number in range(count):
        schema = object_of(rng)
        form = form_of(schema)
        fields = fields_of(form, MODEL.tokenizer, MODEL.config.vocab)
        options = FillOptions(max_tokens=rng.choice([8, 40]), temperature=rng.choice([0.0, 0.7, 1.5]), seed=number)
        context = "".join(rng.choice("abc de\n") for _ in range(rng.randrange(60)))
        prompt_ids = MODEL.tokenizer.chat([("user", context)])
        own, every = template_of(MODEL, options), range(len(fields))
        together = fields_request(form, MODEL, prompt_ids, own, {}, every)
        apart = [dataclasses.replace(fields_request(form, MODEL, prompt_ids, own, {}, [n])).with_seed(n) for n in every]
        [forked] = generate(MODEL, [together], CONFIG)
        alone = [result.guests[0] for result in generate(MODEL, apart, CONFIG)]
        assert list(forked.guests) == alone, schema
        values = [value_of(field, one.text, one.complete) for field, one in zip(fields, alone, strict=True)]
        if all(value.complete for value in values):
            complete += 1
            text = text_of(form, values)
            validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
            assert nested(values) == json.loads(text)
            assert values_in(form, text) == values
    assert complete > count / 10


def test_what_is_complete_in_a_text_that_is_cut_off_stays():
    rng = random.Random(4)
    for _ in range(100):
        names = rng.sample(["a", "b", 'q"', "c"], rng.randint(1, 4))
        form = form_of({"type": "object", "properties": {name: {"type": "number"} for name in names}})
        numbers = [rng.choice(["12.5", "-0.5", "1e-9", "2.25e+3", "7"]) for _ in names]
        text = form.around[0] + "".join(map(operator.add, numbers, form.around[1:]))
        whole = values_in(form, text)
        assert [value.text for value in whole] == numbers
        for end in range(len(text)):
            for value, own in zip(values_in(form, text[:end]), whole, strict=True):
                assert value == own if value.complete else own.text.startswith(value.text), text[:end]


def test_values_are_not_drafted_and_are_those_without_drafts(monkeypatch):
    monkeypatch.setattr(device_loop, "prices_of", lambda model, state, spec: (state, np.ones(len(spec.priced_rows))))
    form = form_of(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}}}
    )
    own = template_of(MODEL, FillOptions(max_tokens=20, temperature=1.0, seed=3))
    request = fields_request(form, MODEL, MODEL.tokenizer.chat([("user", "abab")]), own, {}, range(2))
    [plain], [drafted] = (
        generate(MODEL, [request], dataclasses.replace(CONFIG, draft=draft)) for draft in ("off", "lookup")
    )
    assert drafted.guests == plain.guests
    assert drafted.drafts_fed == 0


# Each has eight of the next: 8^14 objects without a field.
CHAIN = {
    f"a{n}": {"type": "object", "properties": {str(k): {"$ref": f"#/$defs/a{n + 1}"} for k in range(8)}}
    for n in range(14)
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
OBJECTS = {"$ref": "#/$defs/a0", "$defs": CHAIN | {"a14": EMPTY}}


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, r"schema\.a\.a: \$ref .*refers to itself"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}, "refers to itself"),
        ({"type": "object"}, "without properties"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, r"schema\.a: type"),
        ({"type": "object", "properties": {"a": {}}}, r"schema\.a: type"),
        ({"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}}, "minimum: is not supported"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}, "format"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}, r"schema\.a\[\]: type"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"const": "x"}]}}}, "begin with '\"'"),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "enum"),
        ({"type": "object", "properties": {"a": {"enum": ["\ud800"]}}}, "not valid Unicode"),
        ({"type": "object", "properties": {"a": {"enum": [str(n) for n in range(100_000)]}}}, "more than 65,536 bytes"),
        ({"type": "object", "properties": {str(n): {"type": "null"} for n in range(300)}}, "more than 256 fields"),
        (OBJECTS, "the schema has too many objects; ask for fewer at a time"),
        ({"type": "string", "pattern": "(a|b)*a(a|b){25}"}, "pattern"),
        ({"type": "string", "const": 5}, 'const: no value is of the type beside it, "string"'),
        ({"type": "integer", "enum": ["a", 1.5, True]}, "enum: no value is of the type"),
        ({"const": "a", "enum": ["b"]}, "const: no value"),
        ({"const": math.inf}, "schema: const: NaN and infinity"),
        ({"type": "object", "properties": {"a": {"enum": [1, [math.nan]]}}}, r"schema\.a: enum: NaN and infinity"),
        ({"type": "integer", "minimum": math.nan}, "schema: minimum"),
        ({"const": {1}}, "the schema: no JSON"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "allOf"),
        ({"type": ["object", "null"], "properties": {"a": {"const": 1}}, "required": ["a", "b"]}, 'required "b"'),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "allOf": [{"required": ["b"]}]},
            'required "b"',
        ),
        ({"type": "integer", "minimum": 5, "allOf": [{"minimum": 0}]}, "minimum: stated twice, also beside allOf"),
        ({"$ref": "#/$defs/x", "minimum": -9, "$defs": {"x": {"type": "integer", "minimum": 0}}}, "beside \\$ref"),
        (
            {
                "type": "object",
                "properties": {"a.b": {"const": 1}, "a": {"type": "object", "properties": {"b": {"const": 1}}}},
            },
            "schema.a.b: is the name of two",
        ),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 10**9}, "maxItems"),
    ],
)
def test_what_no_finite_automaton_checks_is_refused_by_name(schema, match):
    with pytest.raises(PastaError, match=match):
        form_of(schema)


def test_many_large_fields_are_refused_and_equal_ones_are_built_once():
    def schema_of_lists(most: list[int]) -> dict[str, Any]:
        lists = [{"type": "array", "items": {"type": "integer"}, "maxItems": count} for count in most]
        return {"type": "object", "properties": {f"p{number}": one for number, one in enumerate(lists)}}

    assert len({id(leaf.automaton) for leaf in form_of(schema_of_lists([64] * 200)).leaves}) == 1
    with pytest.raises(PastaError, match=r"schema\.p\d+: the schema needs more than 32,768 states"):
        form_of(schema_of_lists(list(range(30, 64))))
    patterns = {f"p{number}": {"type": "string", "pattern": f"^{number}$"} for number in range(33)}
    with pytest.raises(PastaError, match="more than 32 patterns"):
        form_of({"type": "object", "properties": patterns})
    slow = {f"p{number}": {"type": "string", "pattern": f"^a{{{number}}}$"} for number in range(3)}
    with mock.patch("pasta_jax.fields.schema.PATTERNS_S", -1.0), pytest.raises(PastaError, match="to compile"):
        form_of({"type": "object", "properties": slow})


def test_values_of_another_type_are_no_choice():
    [leaf] = form_of({"type": ["integer", "null"], "enum": ["a", 1, True, None, 2.0]}).leaves
    assert leaf.about == "one of 1, null, 2.0"
    for text, fits in (("1", True), ("null", True), ("2.0", True), ('"a"', False), ("true", False)):
        state = leaf.automaton.walk(text.encode())
        assert (state >= 0 and bool(leaf.automaton.accepts[state])) == fits


def test_what_beside_a_reference_agrees_with_it_is_one_schema():
    schema = {"$ref": "#/$defs/x", "type": "integer", "maximum": 9, "$defs": {"x": {"type": "integer", "minimum": 5}}}
    [leaf] = form_of(schema).leaves
    assert [leaf.automaton.walk(str(number).encode()) >= 0 for number in (4, 5, 9)] == [False, True, True]


def test_objects_without_properties_are_in_the_value():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "object", "additionalProperties": False}, "b": {"const": 1}},
    }
    filled = pasta.fill(MODEL, "a", schema, max_tokens=4, rows=4)
    assert filled.value == json.loads(filled.text) == {"a": {}, "b": 1}


def test_what_orders_threads_is_refused_where_there_are_none():
    for options in ({"after": {"b": ["a"]}}, {"fork_items": True}):
        with pytest.raises(PastaError, match="orders threads"):
            pasta.fill(MODEL, "a", {"a": str, "b": str}, fork=False, **options)
    with pytest.raises(PastaError, match="flags have no place"):
        schema_of(re.compile("a b", re.VERBOSE))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: pasta.fill("smollm2_135m", "a", {"b": str}), "model 'smollm2_135m'"),
        (lambda: pasta.generate(None, "a"), "model None"),
        (lambda: pasta.fill(MODEL, 5, {"b": str}), "fill.context: .*int"),
        (lambda: pasta.fill(MODEL, ["a", 3], {"b": str}), "fill.context: .*int"),
        (lambda: pasta.fill(MODEL, {"a": "b"}, {"b": str}), "fill.context: .*dict"),
        (lambda: pasta.fill(MODEL, "\ud800", {"b": str}), "fill.context: not valid Unicode"),
        (lambda: pasta.fill(MODEL, "a", {"b": str}, instruction="\ud800"), "fill.instruction: not valid Unicode"),
        (lambda: pasta.ask(MODEL, "a", ["b"], system="\ud800"), "ask.system: not valid Unicode"),
        (lambda: pasta.fill(MODEL, "a", None), "fields: None"),
        (lambda: pasta.fill(MODEL, "a", {"b": str}, after=["b"]), "after: "),
        (lambda: pasta.fill(MODEL, "a", {"b": str}, after={"b": None}), "after: "),
        (lambda: pasta.fill(MODEL, "a", {"b": str, "c": str}, after={"b": "c"}), "after: "),
        (lambda: pasta.fill(MODEL, "a", {"b": str, "c": str}, after={"b": [["c"]]}), r"after: \['c'\]: no field"),
        (lambda: pasta.ask(MODEL, 3, ["b"]), "ask.context: .*int"),
        (lambda: pasta.ask(MODEL, "It is red.", "Who?"), "ask.questions: .*pass a list"),
        (lambda: pasta.ask(MODEL, "a", None), "ask.questions: .*NoneType"),
        (lambda: pasta.ask(MODEL, "a", []), "questions: pass a list"),
        (lambda: pasta.ask(MODEL, "a", ["b"], fork=False), "ask.fork: "),
        (lambda: pasta.ask(MODEL, "a", ["b"], instruction="c"), "ask.instruction: "),
        (lambda: pasta.generate(MODEL, "a", chat=False, system="b"), "prompt 0: system: "),
        (lambda: pasta.generate(MODEL, [1, 2], system="b"), "prompt 0: system: "),
        (lambda: pasta.load_model("smollm2_135m", adapter=5), "adapter 5"),
    ],
)
def test_misuse_is_named(call, match):
    with pytest.raises(PastaError, match=match):
        call()


def test_deep_schemas_are_refused():
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(PastaError, match="levels deep"):
        form_of(schema)
    for _ in range(100_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(PastaError, match="the schema"):
        form_of(schema)


def test_what_is_cut_off_is_named_and_left_out():
    filled = pasta.fill(MODEL, "a", {"long": str, "kind": Literal["x"]}, max_tokens=3, rows=4)
    assert filled.incomplete == ("long",)
    assert not filled.complete
    assert filled.value == json.loads(filled.text) == {"kind": "x"}
    whole = pasta.fill(MODEL, "a", {"kind": Literal["x"], "long": str}, max_tokens=14, rows=4, fork=False)
    assert whole.incomplete == ("long",)
    assert whole.value == {"kind": "x"}
    cut = pasta.fill(MODEL, "a", list[str], max_tokens=1, rows=4)
    assert (cut.value, cut.text, cut.incomplete) == (None, "null", ("the value",))


def test_fields_wait_for_those_that_they_read():
    form = form_of(schema_of(dict.fromkeys("abcd", str)))
    assert levels_of(form, {"b": ["a"], "c": ["a"], "d": ["b"]}) == [([0], []), ([1, 2], ["a"]), ([3], ["b"])]
    with pytest.raises(PastaError, match="a, b: wait for each other"):
        levels_of(form_of(schema_of({"a": str, "b": str})), {"a": ["b"], "b": ["a"]})
    with pytest.raises(PastaError, match="'z'"):
        levels_of(form, {"a": ["z"]})
    [field] = [field for field in fields_of(form, MODEL.tokenizer, 384) if field.leaf.name == "b"]
    assert field.before({"a": '"x"'}) == '{"a": "x", "b": "'


def test_fields_that_wait_are_those_of_separate_requests():
    schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": 6} for name in "abc"}}
    form, options = form_of(schema), FillOptions(max_tokens=40, temperature=1.5, seed=5)
    settings = {"max_tokens": 40, "rows": 4, "temperature": 1.5, "seed": 5}
    filled = pasta.fill(MODEL, "abc", schema, after={"a": ["c"]}, **settings)
    ids, texts = prompt_ids(MODEL, form, "abc", options), [value.text for value in filled.fields]
    for seed, (number, known) in enumerate([(1, {}), (2, {}), (0, {"c": texts[2]})]):
        request = fields_request(form, MODEL, ids, template_of(MODEL, options).with_seed(seed), known, [number])
        [result] = generate(MODEL, [request], CONFIG)
        [value] = read([fields_of(form, MODEL.tokenizer, MODEL.config.vocab)[number]], result)
        assert value == filled.fields[number]
    assert len(set(texts)) == 3


def test_answers_to_questions_are_those_of_separate_prompts():
    questions = ["why?", "how long?", "x"]
    replies = pasta.ask(MODEL, "some text", questions, max_tokens=8, rows=4)
    for question, reply in zip(questions, replies, strict=True):
        alone = pasta.generate(MODEL, f"some text\n\n{question}", max_tokens=8, sequential=True)
        assert reply.text == alone.text
