"""The loop of an agent, with OpenAI's own client: calls, their results, and the answer; what is refused, by message."""

import asyncio
import json
from unittest.mock import MagicMock, Mock

import pytest

import pasta_jax as pasta
from pasta_jax.serve import app
from pasta_jax.serve.protocol import Refusal, conversation, read_body
from pasta_jax.serve.session import Session
from tests.helpers.requires import requires_smollm2
from tests.helpers.serving_here import client_of
from tests.helpers.traces import Chatty, tiny_model

ASK = {"role": "user", "content": "who?"}


def function(name: str, **properties: dict) -> dict:
    """Short, as a tiny model's context is."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [function("adopt", kind={"enum": ["cat", "dog"]}), function("feed", n={"type": "integer"})]
GIVEN = {"model": "tiny", "tools": TOOLS, "seed": 1, "temperature": 1.0, "max_tokens": 20}


@pytest.fixture(scope="module")
def client():
    with client_of(tiny_model()) as client:
        yield client


def written(call) -> list[tuple[str, str]]:
    return [("name", call.function.name), ("arguments", call.function.arguments)]


def read(messages) -> list[tuple[str, str]]:
    return conversation(read_body(json.dumps({"messages": messages}).encode(), "chat").messages)


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def call(id: str, name: str = "f", arguments: object = "{}") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*several: dict, **more) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": [*several]} | more


def result(id: object = "a", text: object = "x") -> dict:
    return {"role": "tool", "tool_call_id": id, "content": text}


@pytest.fixture
def seen(monkeypatch) -> list[list[tuple[str, str]]]:
    """The conversations that the tokenizer is given."""
    conversations, chat = [], Chatty.chat
    monkeypatch.setattr(Chatty, "chat", lambda self, messages: conversations.append(messages) or chat(self, messages))
    return conversations


def test_a_second_round_reads_calls_and_results_in_the_order_of_the_calls(client, monkeypatch, seen):
    monkeypatch.setattr(app.structured, "picked", lambda _: ("feed", "adopt"))  # a tiny model's choice is arbitrary
    message = client.chat.completions.create(**GIVEN, messages=[ASK]).choices[0].message
    first, second = message.tool_calls
    parts = [{"type": "text", "text": letter} for letter in "ok"]
    messages = [ASK, message, result(second.id, "done\nuser: x"), result(first.id, parts)]
    said = [("user", "who?"), *written(first), *written(second), ("result", "ok"), ("result", "done\nuser: x")]
    answer = client.chat.completions.create(**GIVEN, messages=messages, tool_choice="none")
    assert seen[-1] == said
    dumped = [one if isinstance(one, dict) else one.model_dump() for one in messages]  # with nulls
    again = client.chat.completions.create(**GIVEN, messages=dumped, tool_choice="none")
    assert seen[-1] == said
    assert again.choices[0].message.content == answer.choices[0].message.content != ""


def test_a_call_after_a_result_is_asked_for_by_a_user_of_its_own(client, seen):
    message = client.chat.completions.create(**GIVEN, messages=[ASK], tool_choice=named("feed")).choices[0].message
    [first] = message.tool_calls
    messages = [ASK, message, result(first.id, "ok")]
    again = client.chat.completions.create(**GIVEN, messages=messages, tool_choice=named("adopt"))
    [other] = again.choices[0].message.tool_calls
    assert json.loads(other.function.arguments)["kind"] in ("cat", "dog")
    said = [("user", "who?"), *written(first), ("result", "ok")]
    assert seen[-1] == [*said, ("user", "Call the function adopt\n- kind: one of cat, dog")]
    chosen = client.chat.completions.create(**GIVEN, messages=messages, parallel_tool_calls=False)
    assert chosen.choices[0].finish_reason in ("tool_calls", "stop", "length")
    names = "- adopt: adopt\n- feed: feed\n- none: no function is needed"
    assert [*said, ("user", f"Which of these functions is needed to answer?\n{names}")] in seen
    longer = [*messages, again.choices[0].message, result(other.id, ""), ASK]
    assert client.chat.completions.create(**GIVEN, messages=longer, tool_choice="none").choices[0].message.content
    assert seen[-1] == [*said, *written(other), ("result", ""), ("user", "who?")]


def test_an_answer_may_have_text_beside_its_calls_and_arguments_that_were_cut_off():
    cut = call("a", arguments='{"a": "b')
    expected = [("user", "who?"), ("assistant", "Wait."), ("name", "f"), ("arguments", '{"a": "b'), ("result", "x")]
    assert read([ASK, calls(cut, content="Wait."), result()]) == expected
    for content in ("", None, []):
        assert read([ASK, calls(cut, content=content), result()]) == [expected[0], *expected[2:]]
    assert read([ASK, calls(content=""), ASK])[1] == ("assistant", "")


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([ASK, result()], "messages[1].tool_call_id: 'a' is no call's id"),
        ([ASK, calls(call("a")), result("b")], "messages[2].tool_call_id: 'b' is no call's id"),
        ([ASK, calls(call("a")), result(None)], "messages[2].tool_call_id: None is no call's id"),
        ([ASK, calls(call("a")), result("x\n" * 99)], "messages[2].tool_call_id: 'x\\nx"),
        ([ASK, calls(call("a")), result(), ASK, result()], "messages[4].tool_call_id: 'a' is no call's id"),
        ([ASK, calls(call("a")), result(), result()], "messages[3].tool_call_id: 'a' has a result already"),
        ([ASK, calls(call("a"), call("b")), result()], "messages[1].tool_calls: no result of 'b'"),
        ([ASK, calls(call("a")), ASK, result()], "messages[1].tool_calls: no result of 'a'"),
        ([ASK, calls(call("a"))], "messages[1].tool_calls: no result of 'a'"),
        ([ASK, calls(call("a"), call("a")), result()], "messages[1].tool_calls: two have the same id"),
        ([ASK | {"tool_calls": [call("a")]}, result()], "messages[0].tool_calls: only an assistant's"),
        ([ASK, calls(call("a", arguments={})), result()], "messages[1].tool_calls[0].function.arguments: expected"),
        ([ASK, calls(call("a") | {"type": "custom"})], "messages[1].tool_calls[0].type: "),
        ([ASK, calls({"id": "a"})], "messages[1].tool_calls[0].function: missing"),
        ([ASK, calls(call("a")), result("a", None)], "messages[2].content: missing"),
        ([ASK, calls()], "messages[1].content: missing"),
        ([ASK, {"role": "assistant", "content": None, "function_call": {"name": "f"}}], "messages[1].function_call: "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_message_is_named_with_its_number_in_one_line(messages, place):
    with pytest.raises(Refusal) as refused:
        read(messages)
    assert str(refused.value).startswith(place)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
    assert (refused.value.status, refused.value.param) == (400, "messages")


@requires_smollm2
@pytest.mark.slow
def test_smollm2_answers_with_what_a_tool_returned():
    """In words, as its template knows no tools, and as `generate` answers the same words."""
    model = pasta.load_model("smollm2_135m")
    tool = {"name": "get_age", "description": "How old a person is", "parameters": {"type": "object"}}
    tool["parameters"]["properties"] = {"name": {"type": "string", "description": "The person's name"}}
    given = {"model": model.name, "tools": [{"type": "function", "function": tool}], "temperature": 0}
    question = {"role": "user", "content": "How old is Ada?"}
    with client_of(model) as client:
        asked = client.chat.completions.create(**given, messages=[question], tool_choice=named("get_age"))
        [one] = asked.choices[0].message.tool_calls
        assert json.loads(one.function.arguments).keys() == {"name"}
        messages = [question, asked.choices[0].message, result(one.id, "Ada is 36 years old.")]
        answer = client.chat.completions.create(**given, messages=messages, tool_choice="none", max_tokens=30)
    words = [
        question,
        {"role": "assistant", "content": f"Call get_age with {one.function.arguments}"},
        {"role": "user", "content": "get_age returned: Ada is 36 years old."},
    ]
    assert answer.choices[0].message.content == pasta.generate(model, words, max_tokens=30, sequential=True).text


def test_text_fields_apply_where_no_function_is_called():
    tools = b'"tools": [{"type": "function", "function": {"name": "f"}}]'
    body = b'{"messages": [{"role": "user", "content": "a"}], %s, "tool_choice": "%s", "stop": "x"}'
    for choice in (b"none", b"auto"):
        assert read_body(body % (tools, choice), "chat").stops == ("x",)
    with pytest.raises(Refusal, match="applies to text, not to fields"):
        read_body(body % (tools, b"required"), "chat")


def test_what_goes_on_with_a_request_has_its_place_and_the_rest_of_its_time():
    async def ask() -> None:
        first = Session(service, [None], [Mock()], 1)
        second = Session(service, [None, None], [Mock(), Mock()], 1, first)  # one place, as the first had
        assert second._deadline == first._deadline
        await asyncio.sleep(0)

    service = MagicMock(**{"settings.limits.answer_s": 9.0})
    asyncio.run(ask())
    assert [call.args[-1] for call in service.engine.submit.call_args_list] == [False, True, False]
