"""LangChain and litellm get the answers that OpenAI's client gets: `pip install langchain-openai litellm` runs these.

They aren't among our requirements: they take 300 MB, and a newer certifi than our pin.
"""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.helpers.serving_here import client_of
from tests.helpers.traces import tiny_model

ASK = [{"role": "user", "content": "who?"}]
RULES = {"seed": 1, "temperature": 1.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with client_of(tiny_model()) as client:
        yield client


@pytest.fixture(scope="module")
def model(client) -> str:
    [model] = client.models.list()
    return model.id


@pytest.fixture(scope="module")
def text(client, model) -> str:
    text = client.chat.completions.create(model=model, messages=ASK, **RULES).choices[0].message.content
    assert text
    return text


def test_langchain_whole_and_streamed(client, model, text):
    openai = pytest.importorskip("langchain_openai")
    chat = openai.ChatOpenAI(model=model, base_url=str(client.base_url), api_key="none", **RULES)
    assert chat.invoke("who?").content == text
    pieces = [piece.content for piece in chat.stream("who?")]
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert chat.bind(logprobs=True).invoke("who?").response_metadata["logprobs"]["content"]


def test_langchain_by_the_responses_api(client, model):
    openai = pytest.importorskip("langchain_openai")
    body = {"seed": RULES["seed"]}
    chat = openai.ChatOpenAI(
        model=model,
        base_url=str(client.base_url),
        api_key="none",
        use_responses_api=True,
        temperature=RULES["temperature"],
        max_tokens=RULES["max_tokens"],
        extra_body=body,
    )
    asked = {"model": model, "input": ASK, "temperature": 1.0, "max_output_tokens": RULES["max_tokens"]}
    expected = client.responses.create(**asked, extra_body=body).output_text
    assert chat.invoke("who?").text == expected
    assert "".join(piece.text for piece in chat.stream("who?")) == expected


@pytest.mark.filterwarnings("ignore")  # of what it imports
def test_litellm_whole_and_streamed(client, model, text, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches prices
    litellm = pytest.importorskip("litellm")
    asked = {"model": f"openai/{model}", "base_url": str(client.base_url), "api_key": "none", "messages": ASK} | RULES
    assert litellm.completion(**asked).choices[0].message.content == text
    pieces = [piece.choices[0].delta.content or "" for piece in litellm.completion(**asked, stream=True)]
    assert "".join(pieces) == text
    assert len(pieces) > 2
