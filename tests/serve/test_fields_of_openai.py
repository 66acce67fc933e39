"""Penalties, biases and log-probabilities over HTTP, as the official client asks for them."""

import json
import math

import openai
import pytest
from openai.types import chat, completion_create_params, responses

from pasta_jax.serve.protocol import read_body
from pasta_jax.serve.responses import read_response_body
from tests.helpers.serving import Server, pieces

pytestmark = pytest.mark.slow  # starts a server process
QUESTION = [{"role": "user", "content": "birds crow 7"}]
OPTIONS = {"model": "talkative", "messages": QUESTION, "seed": 3, "temperature": 1.0, "max_tokens": 40}


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder, decoding__forks="admitted") as server:
        yield server


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_logprobs_are_of_the_text_whole_and_streamed(client):
    choice = client.chat.completions.create(**OPTIONS, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    spelled = bytes(byte for token in content for byte in token.bytes).decode("utf-8", "replace")
    assert spelled.replace("\ufffd", "") == choice.message.content.replace("\ufffd", "")
    assert len(content) == choice.pasta["text_tokens"]
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1 + 1e-4
        assert token.logprob <= token.top_logprobs[0].logprob + 1e-6
    streamed = client.chat.completions.create(**OPTIONS, logprobs=True, top_logprobs=3, stream=True)
    last = [part.choices[0].logprobs for part in streamed if part.choices and part.choices[0].logprobs]
    assert [token.logprob for part in last for token in part.content] == [token.logprob for token in content]
    plain = client.chat.completions.create(**OPTIONS).choices[0]
    assert (plain.message.content, plain.logprobs) == (choice.message.content, None)


def test_logprobs_of_completions(client):
    choice = client.completions.create(model="talkative", prompt="birds", max_tokens=12, seed=1, logprobs=2).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == len(choice.logprobs.tokens)
    assert all(len(likely) <= 2 for likely in choice.logprobs.top_logprobs)


def test_logprobs_end_where_a_stop_text_cuts(client):
    whole = client.chat.completions.create(**OPTIONS, logprobs=True).choices[0]
    stop = next(piece for piece in whole.message.content.split()[1:] if piece.isascii())
    cut = client.chat.completions.create(**OPTIONS, logprobs=True, stop=stop).choices[0]
    assert len(cut.message.content) < len(whole.message.content)
    tokens = [token.token for token in whole.logprobs.content]
    assert [token.token for token in cut.logprobs.content] == tokens[: len(cut.logprobs.content)]
    assert len(cut.logprobs.content) < len(tokens)


def test_a_bias_decides_and_penalties_change_answers(client):
    greedy = OPTIONS | {"temperature": 0}
    plain = client.chat.completions.create(**greedy, logprobs=True).choices[0]
    biased = client.chat.completions.create(**greedy, logprobs=True, logit_bias={"122": 100}).choices[0]
    assert len({token.token for token in biased.logprobs.content}) == 1
    assert len({token.token for token in plain.logprobs.content}) > 1
    texts = {
        client.chat.completions.create(**greedy, **penalty).choices[0].message.content
        for penalty in ({}, {"presence_penalty": 2}, {"frequency_penalty": 2}, {"frequency_penalty": -2})
    }
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias: 'x' is no id"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"01": 1, "1": 1}}, "logit_bias: '01' is no id"),
        ({"logit_bias": {"99999999": 1}}, "is no id"),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
    ],
)
def test_what_is_wrong_is_named(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**OPTIONS, **fields)


def test_conversations_and_values_that_openai_takes(client, server):
    say = [("system", "a"), ("developer", "b"), ("assistant", "c"), ("user", "d"), ("user", "e")]
    messages = [{"role": role, "content": text} for role, text in say]
    assert client.chat.completions.create(**OPTIONS | {"messages": messages}).choices[0].finish_reason
    sampled = client.chat.completions.create(**OPTIONS | {"top_p": 0}).choices[0].message.content
    assert sampled == client.chat.completions.create(**OPTIONS | {"temperature": 0}).choices[0].message.content
    assert client.completions.create(model="talkative", prompt=[[40, 41, 42]], max_tokens=2).usage.prompt_tokens == 3
    status, headers, content = server.request("POST", "/v1/chat/completions", OPTIONS | {"stream": True})
    assert (status, headers["x-accel-buffering"]) == (200, "no")
    assert pieces(content)


@pytest.mark.parametrize(
    ("read", "fields", "asked"),
    [
        (lambda body: read_body(body, "chat"), chat.completion_create_params, {"messages": QUESTION}),
        (lambda body: read_body(body, "text"), completion_create_params, {"prompt": "a"}),
        (read_response_body, responses.response_create_params, {"input": "a"}),
    ],
)
def test_whatever_openai_takes_as_null_is_taken_and_options_of_its_cache_are_ignored(read, fields, asked):
    base = next(value for name, value in vars(fields).items() if name.endswith("CreateParamsBase"))
    optional = [name for name, kind in base.__annotations__.items() if "Optional[" in str(kind)]
    assert len(optional) > 10
    options = {"prompt_cache_options": {"ttl": "30m"}}
    read(json.dumps(dict.fromkeys(optional) | options | asked).encode())
