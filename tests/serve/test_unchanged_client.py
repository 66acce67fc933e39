"""What a client of OpenAI's own servers relies on: every field of its types, and errors that name the field."""

import gzip
import json
import typing
from collections.abc import Iterator

import httpx2
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from tests.helpers.serving_here import client_of
from tests.helpers.traces import tiny_model

ASK = {"messages": [{"role": "user", "content": "who?"}], "seed": 1, "temperature": 1.0, "max_tokens": 6}
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": COUNT}} for name in ("feed", "count")]
NAMED = {"type": "function", "function": {"name": "feed"}}
EVENTS = {
    name: event
    for event in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    for name in typing.get_args(event.model_fields["type"].annotation)
}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    """A client of a server in this process that reads JSON as it is: OpenAI's takes objects that lack fields."""
    with client_of(tiny_model()) as client, httpx2.Client(base_url=str(client.base_url), trust_env=False) as http:
        yield http


def whole(http: httpx2.Client, path: str, body: dict) -> dict:
    answer = http.post(path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx2.Client, path: str, body: dict) -> list[dict]:
    answer = http.post(path, json=body | {"stream": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    found = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert found
    return found


@pytest.mark.parametrize("more", [{"logprobs": True, "top_logprobs": 2}, {"tools": TOOLS, "tool_choice": NAMED}])
def test_answers_have_every_field_that_the_clients_types_require(http, more):
    ChatCompletion.model_validate(whole(http, "chat/completions", ASK | more))
    for piece in events(http, "chat/completions", ASK | more | {"stream_options": {"include_usage": True}}):
        ChatCompletionChunk.model_validate(piece)


def test_completions_and_responses_have_them_too(http):
    Completion.model_validate(whole(http, "completions", {"prompt": "a", "max_tokens": 3, "logprobs": 2}))
    for text in ({}, {"format": {"type": "json_schema", "name": "x", "schema": COUNT}}):
        asked = {"input": "who?", "text": text, "seed": 1, "max_output_tokens": 6}
        asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        Response.model_validate(whole(http, "responses", asked))
        for event in events(http, "responses", asked):
            EVENTS[event["type"]].model_validate(event)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat/completions", ASK | {"tool_choice": "required"}, "tool_choice"),
        ("chat/completions", ASK | {"tool_choice": NAMED}, "tool_choice"),
        ("chat/completions", ASK | {"tools": TOOLS[1:], "tool_choice": NAMED}, "tool_choice"),
        ("chat/completions", ASK | {"stop": "x", "pasta": {"threads": True}}, "stop"),
        ("responses", {"input": "who?", "top_logprobs": 2, "include": []}, "top_logprobs"),
    ],
)
def test_a_refusal_names_the_field_that_is_wrong(http, path, body, field):
    refused = http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text


def test_too_many_answers_are_refused_before_a_function_is_chosen(http):
    def chosen() -> list[str]:
        lines = http.get(str(http.base_url).replace("/v1/", "/metrics")).text.splitlines()
        return [line for line in lines if line.startswith("pasta_answers_total{")]

    before = chosen()
    refused = http.post("chat/completions", json=ASK | {"tools": TOOLS, "n": 9})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert chosen() == before


def test_a_compressed_body_is_refused_as_such(http):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused = http.post("chat/completions", content=gzip.compress(json.dumps(ASK).encode()), headers=headers)
    assert refused.status_code == 415
    assert refused.json()["error"]["message"].startswith("content-encoding: ")
    assert http.post("completions", json={"prompt": "a"}, headers={"Content-Encoding": "identity"}).status_code == 200


def test_what_changes_no_answer_is_taken(http):
    predicted = {"prediction": {"type": "content", "content": "who?"}}
    answers = [whole(http, "chat/completions", ASK | more)["choices"][0]["message"] for more in ({}, predicted)]
    assert answers[0] == answers[1]
    asked = {"input": "who?", "max_output_tokens": 2, "include": ["reasoning.encrypted_content"]}
    assert whole(http, "responses", asked)["output"][0]["content"][0]["logprobs"] == []
    refused = http.post("responses", json=asked | {"top_logprobs": 2})
    assert refused.json()["error"]["param"] == "top_logprobs"
