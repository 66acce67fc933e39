"""Lists of objects, each item by a thread of its own: equal to the names, then a request for each item; and valid."""

import json

import pytest

import pasta_jax as pasta
from pasta_jax.automata.automaton import sequence, texts
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
        assert alone(named.fields[1].text, name, seed + number) == item
    assert filled.tokens > named.tokens
    assert filled.steps > named.steps


def named_schema() -> dict:
    """The schema of what is decoded first, by its other name: the prompt has the properties of an item."""
    about = "first a short name of each item, then its kind (one of cat, dog), age (integer), all"
    people = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 8}, "description": about}
    people |= {"minItems": 1, "maxItems": 3}
    return {
        "type": "object",
        "properties": {"n": {"type": "boolean"}, "in": {"type": "object", "properties": {"people": people}}},
    }


def alone(names: str, name: str, seed: int) -> dict:
    """An item as a request of its own."""
    options = FillOptions(**OPTIONS, seed=seed)
    ids = prompt_ids(MODEL, with_names(form_of(SCHEMA)), "abc", options)
    before = f'{{"in": {{"people": {names}, {json.dumps(name, ensure_ascii=False)}:'
    [written] = generate(
        MODEL, [request_of([ask(ids, before)], template_of(MODEL, options))], DecodeConfig(1, 4, 2048)
    )[0].guests
    assert written.complete
    return json.JSONDecoder().raw_decode(written.text.lstrip(" "))[0]


def ask(ids: list[int], before: str) -> Ask:
    value = sequence(texts([b"", b" "]), form_of(PERSON).whole)
    return Ask((*ids, *MODEL.tokenizer.encode(before)), over_tokens(value, pieces(MODEL.tokenizer, MODEL.config.vocab)))


def test_lists_of_other_values_stay_one_thread_and_what_is_cut_off_is_named():
    form = form_of({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}})
    assert form.leaves[0].items is None
    assert with_names(form).leaves == form.leaves
    filled = pasta.fill(MODEL, "abc", SCHEMA, fork_items=True, max_tokens=4, rows=4)
    assert filled.incomplete == ("in.people",)
    assert filled.value == json.loads(filled.text) == {"n": filled.value["n"]}
