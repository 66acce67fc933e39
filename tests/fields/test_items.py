"""Lists of objects, each item by a thread of its own: equal to the names, then a request for each item; and valid."""

import json

import pytest

import pasta_jax as pasta
from pasta_jax.automata.automaton import Automaton, sequence, texts
from pasta_jax.automata.tokens import over_tokens
from pasta_jax.automata.vocabulary import pieces
from pasta_jax.decode.generate import generate
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.fields import schema
from pasta_jax.fields.fill import prompt_ids, template_of
from pasta_jax.fields.items import with_names
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from pasta_jax.fields.threads import Ask, request_of
from tests.helpers.requires import requires_dev
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
MODEL = tiny_model()
PERSON = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "maximum": 99}}}
PEOPLE = {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 3, "description": "all"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "boolean"}, "in": {"type": "object", "properties": {"people": PEOPLE}}},
    "$defs": {"person": PERSON},
}
ITEM = form_of(PERSON).whole
OPTIONS = {"max_tokens": 60, "rows": 4, "temperature": 1.5, "instruction": "?"}


@pytest.fixture(scope="module", autouse=True)
def short_names():
    """Names that fit into the context of the tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "NAME", 8)
        yield


@requires_dev("jsonschema")
@pytest.mark.parametrize("seed", range(3))
def test_items_are_those_of_a_request_for_each_that_has_read_the_names(seed):
    import jsonschema

    [filled] = pasta.fill(MODEL, ["abc"], SCHEMA, fork_items=True, seed=seed, **OPTIONS)
    assert filled.complete
    jsonschema.validate(json.loads(filled.text), SCHEMA)
    assert filled.value == json.loads(filled.text)
    named = pasta.fill(MODEL, "abc", named_schema(), seed=seed, **OPTIONS)
    names, found = named.value["in"]["people"], filled.value["in"]["people"]
    assert (len(names), named.value["n"]) == (len(found), filled.value["n"])
    for number, (name, item) in enumerate(zip(names, found, strict=True)):
        before = f'{{"in": {{"people": {named.fields[1].text}, {dumped(name)}:'
        assert json.loads(alone(SCHEMA, before, ITEM, seed + 2 + number)) == item
    assert filled.tokens > named.tokens
    assert filled.steps > named.steps


def named_schema() -> dict:
    """The schema of what is decoded first, by its other name: the prompt has the properties of an item."""
    about = "first a short name of each item, then its kind (one of cat, dog), age (integer); all"
    people = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 8}, "description": about}
    people |= {"minItems": 1, "maxItems": 3}
    return {
        "type": "object",
        "properties": {"n": {"type": "boolean"}, "in": {"type": "object", "properties": {"people": people}}},
    }


def alone(whole: dict, before: str, automaton: Automaton, seed: int) -> str:
    """A value's text from a request of its own."""
    options = FillOptions(**OPTIONS, seed=seed)
    ids = prompt_ids(MODEL, with_names(form_of(whole)), "abc", options)
    held = over_tokens(sequence(texts([b"", b" "]), automaton), pieces(MODEL.tokenizer, MODEL.config.vocab))
    request = request_of([Ask((*ids, *MODEL.tokenizer.encode(before)), held)], template_of(MODEL, options))
    [written] = generate(MODEL, [request], DecodeConfig(1, 4, 2048))[0].guests
    assert written.complete
    text = written.text.lstrip(" ")
    return text[: json.JSONDecoder().raw_decode(text)[1]]


def test_a_list_and_its_items_read_what_it_waits_for_and_is_read_with_its_items():
    number = {"type": "integer", "minimum": 0, "maximum": 999}
    whole = {"type": "object", "properties": {"sum": number, "all": PEOPLE | {"items": PERSON}, "n": number}}
    after = {"all": ["n"], "sum": ["all"]}
    for seed in range(2):
        filled = pasta.fill(MODEL, "abc", whole, after=after, fork_items=True, seed=seed, **OPTIONS)
        total, people, n = (value.text for value in filled.fields)
        leaves = with_names(form_of(whole)).leaves
        assert alone(whole, '{"n":', leaves[2].automaton, seed) == n
        names = alone(whole, f'{{"n": {n}, "all":', leaves[1].automaton, seed + 1)
        assert alone(whole, f'{{"all": {people}, "sum":', leaves[0].automaton, seed + 2) == total
        for place, (name, item) in enumerate(zip(json.loads(names), json.loads(people), strict=True)):
            before = f'{{"n": {n}, "all": {names}, {dumped(name)}:'
            assert json.loads(alone(whole, before, ITEM, seed + 3 + place)) == item


def dumped(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def test_a_description_that_is_no_text_says_nothing():
    """As that of another field."""
    fields = {"type": "object", "properties": {"people": PEOPLE | {"description": 7}}, "$defs": {"person": PERSON}}
    assert form_of(fields).leaves[0].items.about.endswith("integer)")


def test_lists_of_other_values_stay_one_thread_and_what_is_cut_off_is_named():
    form = form_of({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}})
    assert form.leaves[0].items is None
    assert with_names(form).leaves == form.leaves
    filled = pasta.fill(MODEL, "abc", SCHEMA, fork_items=True, max_tokens=4, rows=4)
    assert filled.incomplete == ("in.people",)
    assert filled.value == json.loads(filled.text) == {"n": filled.value["n"]}
