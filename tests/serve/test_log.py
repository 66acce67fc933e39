"""The lines of a server as JSON: what each response took, as its usage says, and nothing of what was asked or said."""

import datetime
import json

import pytest

from tests.helpers.serving import Server, pieces, saved_adapters

pytestmark = pytest.mark.slow  # starts a server process

QUESTION = {"messages": [{"role": "user", "content": "birds crow 7"}], "seed": 3, "temperature": 1.0}
DATE = {"name": "Date", "schema": {"type": "object", "properties": {"day": {"enum": ["crow", "gull"]}}}}


def test_a_line_tells_what_a_response_took_and_nothing_of_its_content(folder, tmp_path):
    with Server(folder, adapters=saved_adapters(folder, tmp_path), log_format="json") as server:
        chat = "/v1/chat/completions"
        several = server.ask(**QUESTION, model="talkative:two", n=2)
        _, headers, streamed = server.request("POST", chat, QUESTION | {"stream": True})
        items = server.ask("/v1/responses", input="two birds", model="talkative:one", seed=5)
        fields = server.ask(**QUESTION, response_format={"type": "json_schema", "json_schema": DATE})
        server.request("POST", chat, QUESTION | {"model": "crow"})
        server.request("GET", "/birds/crow")
        server.request("GET", "/v1/models")
        server.request("GET", "/health")
        assert server.stop() == 0
        said = [line for line in server.lines if line.startswith("{")]

    assert not any(
        word in line for line in said for word in ("crow", "birds", "gull", several["choices"][0]["message"]["content"])
    )
    lines = [json.loads(line) for line in said]
    assert [(line["route"], line["status"]) for line in lines] == [
        (chat, 200),
        (chat, 200),
        ("/v1/responses", 200),
        (chat, 200),
        (chat, 404),
        ("other", 404),
        ("/v1/models", 200),
    ]
    assert len({line["id"] for line in lines}) == len(lines)
    assert lines[1]["id"] == headers["x-request-id"]
    for line in lines:
        datetime.datetime.fromisoformat(line["time"])
        assert line["seconds"] >= 0
    assert [line["adapter"] for line in lines[:4]] == ["two", "", "one", ""]
    assert "adapter" not in lines[4]
    for line, answer in zip([lines[0], lines[3]], [several, fields], strict=True):
        assert 0 < line["first_token_seconds"] <= line["seconds"]
        assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        assert line["cached_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert line["answer_tokens"] == answer["usage"]["completion_tokens"]
    assert lines[0]["forks"] == sum(choice["pasta"]["chunks"] for choice in several["choices"]) > 0
    assert lines[3]["forks"] == 0  # of one field
    assert lines[2]["answer_tokens"] == items["usage"]["output_tokens"]
    about = [piece["choices"][0].get("pasta") for piece in pieces(streamed)][-1]
    assert lines[1]["forks"] == about["chunks"]
