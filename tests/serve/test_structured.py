"""Structured answers over HTTP, with OpenAI's own client: formats, functions, streams, and what is refused."""

import itertools
import json
import re
import urllib.request
from typing import Literal
from unittest.mock import Mock

import openai
import pytest
from pydantic import BaseModel

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.serve import app
from pasta_jax.serve.protocol import Refusal, read_body
from pasta_jax.serve.service import Service
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.serve.structured import picked, structure_of
from tests.helpers.serving_here import client_of
from tests.helpers.traces import tiny_model

QUESTION = [{"role": "user", "content": "who?"}]
MODEL = "tiny"


class Person(BaseModel):
    kind: Literal["cat", "dog"]
    age: int
    nice: bool


@pytest.fixture(scope="module")
def client():
    """OpenAI's client of a server in this process."""
    with client_of(tiny_model()) as client:
        yield client


def formatted(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


@pytest.mark.parametrize("forks", [True, False])
def test_a_pydantic_model_is_parsed_forked_and_not(client, forks):
    extra = {"pasta": {"fork_fields": forks}}
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Person, temperature=1.5, seed=3, extra_body=extra, max_tokens=60
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    assert choice.pasta["incomplete"] == []
    assert choice.pasta["chunks"] == (3 if forks else 1)
    assert answer.usage.completion_tokens > 3
    assert answer.usage.critical_path == choice.pasta["critical_path"] == answer.usage.steps > 0  # a row for each
    assert choice.pasta["text_tokens"] == answer.usage.completion_tokens  # the last ones too, which are never fed


def test_the_responses_api_parses_the_same(client):
    given = {"model": MODEL, "temperature": 1.0, "extra_body": {"seed": 5}}
    parsed = client.responses.parse(**given, input="who?", text_format=Person, max_output_tokens=60)
    chat = {"messages": QUESTION, "response_format": formatted(Person.model_json_schema()), "max_tokens": 60}
    assert parsed.output_text == client.chat.completions.create(**given, **chat).choices[0].message.content
    assert isinstance(parsed.output_parsed, Person)
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    scored = client.responses.parse(**given, **include, input="who?", text_format=Person, max_output_tokens=60)
    [choice] = client.chat.completions.create(**given, **chat, logprobs=True).choices
    expected = [one.logprob for one in choice.logprobs.content]
    assert [one.logprob for one in scored.output[0].content[0].logprobs] == expected
    assert [item.pasta for item in parsed.output] == [{"thread": 0}]


def test_a_stream_has_the_same_text_in_order(client):
    given = {"model": MODEL, "messages": QUESTION, "temperature": 1.0, "seed": 5, "max_tokens": 20}
    given["response_format"] = formatted(Person.model_json_schema())
    whole = client.chat.completions.create(**given).choices[0].message.content
    pieces = [piece.choices[0].delta.content or "" for piece in client.chat.completions.create(**given, stream=True)]
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 1
    threads = client.chat.completions.create(**given, stream=True, extra_body={"pasta": {"threads": True}})
    topics = {piece.choices[0].delta.pasta["topic"] for piece in threads if piece.choices[0].delta.content}
    assert topics == {"kind", "age", "nice"}


@pytest.mark.parametrize("forks", [True, False])
def test_log_probabilities_are_those_of_what_was_drawn(client, forks):
    given = {"model": MODEL, "temperature": 1.0, "extra_body": {"seed": 5, "pasta": {"fork_fields": forks}}}
    given |= {"messages": QUESTION, "response_format": formatted(Person.model_json_schema())}
    [choice] = client.chat.completions.create(**given, max_tokens=48, logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    written = b"".join(bytes(one.bytes) for one in content).decode()
    if not forks:
        assert json.loads(written) == json.loads(choice.message.content)
    else:
        values = map(json.dumps, json.loads(choice.message.content).values())
        assert re.fullmatch(r"\W*".join(re.escape(value.strip('"')) for value in values) + r"\W*", written.lstrip(' "'))
    for one in content:
        likeliest = [other.logprob for other in one.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert one.logprob <= likeliest[0] <= 0


def test_what_is_cut_off_is_named(client):
    schema = {"type": "object", "properties": {"kind": {"const": "x"}, "text": {"type": "string", "minLength": 50}}}
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format=formatted(schema), max_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].pasta["incomplete"] == ["text"]
    assert answer.choices[0].message.content.startswith('{"kind": "x", "text": "')
    given = {"messages": QUESTION, "response_format": formatted({"type": "integer", "minimum": 10**9})}
    for forks in (True, False):  # a number that is cut off may read as a whole one
        fields = {"pasta": {"fork_fields": forks}}
        [cut] = client.chat.completions.create(model=MODEL, **given, max_tokens=3, extra_body=fields).choices
        assert (cut.finish_reason, len(cut.pasta["incomplete"])) == ("length", 1)


def test_any_object_is_json(client):
    given = {"model": MODEL, "messages": QUESTION, "response_format": {"type": "json_object"}, "temperature": 1.5}
    ended = 0
    for seed in range(1, 5):
        [choice] = client.chat.completions.create(**given, seed=seed, max_tokens=300).choices
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
            ended += 1
    assert ended


def test_a_function_is_called_with_its_arguments(client):
    tools = tools_of(adopt=Person.model_json_schema())
    given = {"model": MODEL, "messages": QUESTION, "tools": tools, "temperature": 1.5, "max_tokens": 20}
    given |= {"tool_choice": {"type": "function", "function": {"name": "adopt"}}, "seed": 1}
    [choice] = client.chat.completions.create(**given).choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "adopt"
    Person.model_validate_json(call.function.arguments)
    pieces = [piece.choices[0].delta for piece in client.chat.completions.create(**given, stream=True)]
    calls = [one for piece in pieces for one in piece.tool_calls or []]
    assert "".join(one.function.arguments or "" for one in calls) == call.function.arguments
    assert [one.function.name for one in calls if one.function.name] == ["adopt"]


def tools_of(**parameters):
    return [{"type": "function", "function": {"name": n, "parameters": one}} for n, one in parameters.items()]


class Food(BaseModel):
    grams: int
    warm: bool


TOOLS = [openai.pydantic_function_tool(one, name=name) for name, one in {"adopt": Person, "feed": Food}.items()]


@pytest.mark.parametrize("forks", [True, False])
def test_two_functions_are_called_in_one_answer_streamed_and_not(client, monkeypatch, forks):
    monkeypatch.setattr(app.structured, "picked", lambda _: ("feed", "adopt"))  # a tiny model's choice is arbitrary
    given = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "temperature": 1.5, "seed": 1, "max_tokens": 80}
    given["extra_body"] = {"pasta": {"fork_fields": forks}}
    [choice] = client.chat.completions.parse(**given).choices
    calls = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in calls] == ["feed", "adopt"]
    assert [type(call.function.parsed_arguments) for call in calls] == [Food, Person]
    assert len({call.id for call in calls}) == 2
    assert choice.pasta["chunks"] == (5 if forks else 2)
    assert choice.pasta["incomplete"] == []
    with client.chat.completions.stream(**given) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        [streamed] = stream.get_final_completion().choices
    assert [(one.name, one.arguments) for one in done] == [(one.function.name, one.function.arguments) for one in calls]
    assert [one.function.arguments for one in streamed.message.tool_calls] == [one.function.arguments for one in calls]


def test_fields_of_a_call_are_those_of_a_request_of_their_own(client, monkeypatch):
    """Also where another function is called beside it: its threads differ in what they are told, not in how."""
    monkeypatch.setattr(app.structured, "picked", lambda _: ("feed",))
    tools = [openai.pydantic_function_tool(Food, name="feed"), openai.pydantic_function_tool(Person, name="adopt")]
    given = {"model": MODEL, "messages": QUESTION, "tools": tools, "seed": 1, "max_tokens": 25}
    chosen = client.chat.completions.create(**given).choices[0].message.tool_calls
    named = {"tool_choice": {"type": "function", "function": {"name": "feed"}}}
    assert [call.function for call in chosen] == [
        call.function for call in client.chat.completions.create(**given | named).choices[0].message.tool_calls
    ]


def test_names_of_functions_are_read_also_from_a_list_that_was_cut_off():
    assert picked('{"functions": ["b", "a", "b"]}') == ("b", "a")
    assert picked('{"functions": ["b", "a') == ("b",)
    assert picked('{"functions": []}') == picked('{"function": "none"}') == ()
    assert picked('{"function": "q\\"x"}') == ('q"x',)


def test_a_function_without_arguments_is_called(client):
    tool = {"type": "function", "function": {"name": "now"}}
    given = {"model": MODEL, "messages": QUESTION, "tools": [tool], "tool_choice": "required"}
    [call] = client.chat.completions.create(**given).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("now", "{}")

    given["tools"] = tools_of(now={"type": "object", "properties": {}})
    assert client.chat.completions.create(**given).choices[0].message.tool_calls[0].function.arguments == "{}"

    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    given["tools"] = tools_of(now={"type": "object", "properties": {"options": nothing}, "required": ["options"]})
    arguments = client.chat.completions.create(**given).choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments) == {"options": {}}


def test_calls_are_the_same_whole_streamed_and_in_threads_also_where_they_are_cut_off(client, monkeypatch):
    monkeypatch.setattr(app.structured, "picked", lambda _: ("adopt", "feed"))
    given = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "temperature": 1.5, "seed": 1}
    counts = set()
    for most in (1, 3, 25):
        whole = client.chat.completions.create(**given, max_tokens=most).choices[0].message.tool_calls
        counts.add(len(whole))
        for extra in ({}, {"pasta": {"threads": True}}):
            said, names = {}, {}
            for piece in client.chat.completions.create(**given, max_tokens=most, stream=True, extra_body=extra):
                for call in piece.choices[0].delta.tool_calls or []:
                    said[call.index] = said.get(call.index, "") + (call.function.arguments or "")
                    names[call.index] = names.get(call.index, "") + (call.function.name or "")
            assert [*names.values()] == ["adopt", "feed"][: len(names)]  # as clients join the pieces
            texts = [call.function.arguments for call in whole]
            assert [said[number] for number in sorted(said) if said[number] or not number] == texts
    assert counts == {1, 2}


def service_of(slots: int, **settings) -> Service:
    settings = ServeSettings(decoding=DecodeConfig(lanes=1, rows=1, slots=slots), **settings)
    return Service(MODEL, tiny_model(), Mock(), Mock(), settings, Request((), 3, True))


def asked(service: Service, names: tuple[str, ...] = (), **fields) -> Request:
    body = read_body(json.dumps({"messages": QUESTION} | fields).encode(), "chat")
    chosen = structure_of(None, body.tools, names, body.extension.fork_fields) if names else body.structure()
    return service.requests_for(body, "chat", chosen)[0]


@pytest.mark.parametrize("forks", [True, False])
def test_a_prompt_that_leaves_no_room_is_told_so(forks):
    long = [{"role": "user", "content": "x" * 100}]
    fields = {"response_format": formatted(Person.model_json_schema()), "pasta": {"fork_fields": forks}}
    with pytest.raises(Refusal, match=r"\d+ tokens, but the pool of 64 must also hold .*; shorten") as refused:
        asked(service_of(64), messages=long, **fields)
    assert refused.value.code == "context_length_exceeded"


def test_a_pool_beyond_the_models_context_leaves_room_for_what_fits():
    """Plain chat would be answered too."""
    long = [{"role": "user", "content": "x" * 300}]
    request = asked(
        service_of(4096), messages=long, response_format=formatted(Person.model_json_schema()), max_tokens=400
    )
    longest = len(request.prompt_ids) + max(len(guest.ids) for guest in request.guests)
    assert 100 < request.max_tokens == tiny_model().config.context - longest


def test_each_call_has_max_tokens_where_its_fields_do_not_fork():
    fields = {"tools": TOOLS, "max_tokens": 7, "pasta": {"fork_fields": False}}
    for names in (("adopt",), ("adopt", "feed")):
        request = asked(service_of(2048), names, **fields)
        assert (len(request.guests), request.max_tokens) == (len(names), 7)


def test_a_server_may_have_a_seed_of_its_own():
    service = service_of(64, request=RequestSettings(seed=7))
    assert (asked(service).rules.seed, asked(service, seed=3).rules.seed) == (7, 3)


def test_answers_to_one_request_share_no_random_numbers(client):
    """Field i of one would otherwise be drawn like field i + 1 of the one before."""
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcd"}}
    given = {"model": MODEL, "messages": QUESTION, "temperature": 2, "seed": 1, "max_tokens": 12, "n": 3}
    answers = client.chat.completions.create(**given, response_format=formatted(schema)).choices
    rows = [list(json.loads(answer.message.content).values()) for answer in answers]
    assert not any(before[1:] == after[:-1] for before, after in itertools.pairwise(rows))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_model_chooses_among_functions_or_none(client, choice):
    """A tiny model's choice is arbitrary, but the same each time, and always one of those that it has."""
    tools = tools_of(adopt=Person.model_json_schema(), feed=Person.model_json_schema())
    given = {"model": MODEL, "messages": QUESTION, "tools": tools, "tool_choice": choice, "seed": 1, "max_tokens": 20}
    answers = [client.chat.completions.create(**given).choices[0] for _ in range(2)]
    names = [[call.function.name for call in answer.message.tool_calls or []] for answer in answers]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0]) >= (choice == "required")
    assert set(names[0]) <= {"adopt", "feed"}
    given["parallel_tool_calls"] = False
    [answer] = client.chat.completions.create(**given).choices
    assert len(answer.message.tool_calls or []) <= 1
    assert (answers[0].message.content is None) == bool(names[0])


def test_usage_and_metrics_tell_of_the_answer_that_names_a_function(client):
    """The prompt that asks for a name, and the name, are computed as the answer is."""
    tools = tools_of(a=Person.model_json_schema(), b=Person.model_json_schema())
    given = {"model": MODEL, "messages": QUESTION, "tools": tools, "seed": 1, "max_tokens": 20}
    given["parallel_tool_calls"] = False
    chosen = client.chat.completions.create(**given, tool_choice="required")
    named = {"type": "function", "function": {"name": chosen.choices[0].message.tool_calls[0].function.name}}
    alone = client.chat.completions.create(**given, tool_choice=named)
    assert chosen.choices[0].message.tool_calls[0].function == alone.choices[0].message.tool_calls[0].function
    for count in ("prompt_tokens", "completion_tokens", "total_tokens", "steps", "critical_path"):
        assert getattr(chosen.usage, count) > getattr(alone.usage, count) > 0
    *_, last = client.chat.completions.create(
        **given, tool_choice="required", stream=True, stream_options={"include_usage": True}
    )
    assert last.usage.completion_tokens == chosen.usage.completion_tokens
    counted = prompt_tokens(client)
    again = client.chat.completions.create(**given, tool_choice="required")
    assert prompt_tokens(client) - counted == again.usage.prompt_tokens


def prompt_tokens(client) -> float:
    with urllib.request.urlopen(str(client.base_url).replace("/v1/", "/metrics")) as response:
        text = response.read().decode()
    assert 'pasta_answers_total{finish="choice"}' in text
    return float(re.search(r"^pasta_prompt_tokens_total (\S+)", text, re.M)[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"response_format": formatted({"type": "object", "properties": {"a": {"$ref": "#"}}})}, "refers to itself"),
        ({"response_format": {"type": "json_schema"}}, "json_schema: missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": formatted({"enum": [f"{n:03}" + "x" * 9 for n in range(300)]})}, "room for 1024"),
        ({"response_format": formatted(Person.model_json_schema()), "stop": ["x"]}, "stop"),
        ({"tool_choice": "required"}, "without tools"),
        ({"tools": tools_of(now={}, adopt={"properties": {"a": {"$ref": "#"}}})}, "function adopt: .*refers to itself"),
        ({"tools": [*tools_of(now={}), *tools_of(now={})]}, "two functions have the same name"),
        ({"tools": tools_of(none={})}, "'none' says that no function is called"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, given, message):
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, **given)
    assert refused.value.code != "context_length_exceeded"  # at which clients drop messages
