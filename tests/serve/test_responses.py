"""The Responses API with the official client: the answer of chat completions, as items that joined are the answer."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterator

import pytest

from pasta_jax.decode.request import Event, Request, Result, Score
from pasta_jax.decode.state import OPEN
from pasta_jax.decode.trace import Trace, spell_next
from pasta_jax.serve.choice import Choice
from pasta_jax.serve.responses import ResponseBody, ResponseWriter
from pasta_jax.tokenizers.tokenizer import Detokenizer
from tests.helpers.traces import TOKENIZER, random_traces, traced

QUESTION = [{"role": "user", "content": "two birds"}]
OPTIONS = {"model": "talkative", "seed": 3, "temperature": 1.0}
PATH = "/v1/responses"


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def ask(client, stream: bool = False, seed: int = 3, **more):
    extra = {"seed": seed, "pasta": more.pop("pasta", {})}
    fixed = {"model": "talkative", "temperature": 1.0, "input": "two birds", "max_output_tokens": 40}
    return client.responses.create(**fixed | more, stream=stream, extra_body=extra)


def test_items_joined_are_the_answer_of_chat_completions(server, client):
    chat = server.ask(**OPTIONS, messages=QUESTION, max_tokens=40)
    response = ask(client)
    choice = chat["choices"][0]
    assert response.output_text == choice["message"]["content"]
    assert (response.object, response.model, response.error) == ("response", "talkative", None)
    assert response.usage.output_tokens == chat["usage"]["completion_tokens"]
    threads = [item.pasta["thread"] for item in response.output]
    assert sorted({*threads} - {0}) == [*range(1, choice["pasta"]["chunks"] + 1)]
    assert all(after != 0 for thread, after in itertools.pairwise(threads) if thread == 0)
    assert choice["finish_reason"] == "length"
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    plain = ask(client, pasta={"sequential": True}, instructions="Sing.", metadata={"order": "7"})
    assert (plain.metadata, response.metadata) == ({"order": "7"}, {})
    assert [item.pasta for item in plain.output] == [{"thread": 0}]


def test_a_stream_has_the_events_of_each_item_in_order_and_ends_with_the_response(client):
    alternating = [checked_stream(client, seed) for seed in range(3, 8)]
    assert any(alternating), "items of several threads alternate"


def test_items_have_the_log_probabilities_of_their_tokens(server, client):
    chat = server.ask(**OPTIONS, messages=QUESTION, max_tokens=40, logprobs=True, top_logprobs=2)
    expected = [token["logprob"] for token in chat["choices"][0]["logprobs"]["content"]]
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    *_, last = ask(client, stream=True, **asked)
    for response in (ask(client, **asked), last.response):
        parts = [item.content[0] for item in response.output]
        assert [token.logprob for part in parts for token in part.logprobs] == expected
        assert all("".join(token.token for token in part.logprobs).endswith(part.text) for part in parts)
        assert all(len(token.top_logprobs) == 2 for part in parts for token in part.logprobs)
        assert len([part for part in parts if part.logprobs]) > 1
    status, _, content = server.request("POST", PATH, {"input": "a", "top_logprobs": 2})
    assert (status, json.loads(content)["error"]["param"]) == (400, "top_logprobs")


def checked_stream(client, seed: int) -> bool:
    """Check the events of an answer; whether those of its items alternate."""
    whole = ask(client, seed=seed).to_dict()
    events = [one.to_dict() for one in ask(client, stream=True, seed=seed)]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["type"] for one in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"
    without_ids = [[{**item, "id": ""} for item in one["output"]] for one in (whole, last["response"])]
    assert without_ids[0] == without_ids[1]
    kinds, texts, order = {}, {}, []
    for one in events[2:-1]:
        index = one["output_index"]
        kinds.setdefault(index, []).append(one["type"].removeprefix("response."))
        order.append(index)
        if one["type"] == "response.output_text.delta":
            texts[index] = texts.get(index, "") + one["delta"]
        if one["type"] == "response.output_item.done":
            assert one["item"] == last["response"]["output"][index]
            assert one["item"]["content"][0]["text"] == texts.get(index, "")
    for several in kinds.values():
        assert several[:2] == ["output_item.added", "content_part.added"]
        assert several[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
        assert set(several[2:-3]) <= {"output_text.delta"}
    return order != sorted(order)


def events_of(trace: Trace) -> Iterator[Event]:
    """As they are reported while it is decoded: with whole characters only."""
    readers = collections.defaultdict(lambda: Detokenizer(TOKENIZER))
    for token, thread, step in zip(trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), strict=True):
        yield Event(0, thread, token, step, spell_next(readers[thread], TOKENIZER.tags, token))


def test_items_have_their_own_tokens_and_all_text_where_an_answer_is_cut_off_within_characters():
    asked = ResponseBody("why?", include=["message.output_text.logprobs"])
    for untimed, *_ in random_traces(300):
        trace = dataclasses.replace(untimed, rounds=((0, 0.0),))
        scores = tuple(Score(-float(number), ()) for number in range(len(trace.token)))
        result = Result(0, trace.program().strip(), trace.finish_reason, trace, scores=scores)
        choice = Choice(TOKENIZER.tags, (), threads=True)
        writer = ResponseWriter("toy", asked, Request((), 1, sequential=False), choice, TOKENIZER)
        deltas = [delta for event in events_of(trace) for delta in choice.push(event)]
        for delta in [*deltas, *choice.finish(result)]:
            collections.deque(writer.push(delta), 0)
        collections.deque(writer.finish(), 0)
        items = [(item["pasta"]["thread"], item["content"][0]) for item in writer.whole()["output"]]
        assert "".join(part["text"] for _, part in items) == result.text
        at = [(thread, -int(token["logprob"])) for thread, part in items for token in part["logprobs"]]
        assert all(trace.thread[number] == thread for thread, number in at)
        silent = trace.in_topic | trace.tags.is_tag(trace.token)
        assert [number for _, number in at] == [number for number in trace.order().tolist() if not silent[number]]
        for item in writer.whole()["output"]:
            if number := item["pasta"]["thread"]:
                assert (item["status"] == "completed") == (trace.closed[number] != OPEN)


def test_an_empty_answer_is_one_item_without_text():
    """As `response.output[0].content[0].text` is read."""
    trace = dataclasses.replace(traced([[TOKENIZER.end_of_turn]])[0], rounds=((0, 0.0),))
    choice = Choice(TOKENIZER.tags, (), threads=True)
    writer = ResponseWriter("toy", ResponseBody("why?"), Request((), 1, sequential=False), choice, TOKENIZER)
    assert choice.finish(Result(0, trace.program().strip(), trace.finish_reason, trace)) == []
    assert len(list(writer.finish())) == 5  # it begins, and ends
    [item] = writer.whole()["output"]
    assert (item["status"], item["content"][0]["text"], item["pasta"]) == ("completed", "", {"thread": 0})


def test_the_clients_own_accumulation_of_a_stream_is_the_response(client):
    with client.responses.stream(
        model="talkative", input="two birds", temperature=1.0, max_output_tokens=40, extra_body={"seed": 3}
    ) as stream:
        for _ in stream:
            pass
        snapshot = stream._state._ResponseStreamState__current_snapshot
    assert snapshot.output_text == ask(client).output_text


def test_a_conversation_goes_on_with_the_items_of_its_answer(server, client):
    first = ask(client, max_output_tokens=20)
    items = [json.loads(item.model_dump_json(exclude_none=True)) for item in first.output]
    for item in items:
        item.pop("pasta"), item.pop("status")
        for part in item["content"]:
            part.pop("annotations"), part.pop("logprobs", None)
    question = {"role": "user", "content": [{"type": "input_text", "text": "more"}]}
    second = ask(client, input=[{"role": "user", "content": "two birds"}, *items, question])
    turns = [*QUESTION, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "more"}]
    chat = server.ask(**OPTIONS, messages=turns, max_tokens=40)
    assert second.output_text == chat["choices"][0]["message"]["content"]
    assert second.usage.input_tokens == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "neutral",
    [
        {"parallel_tool_calls": True},
        {"reasoning": {"effort": "low"}},
        {"stream_options": {}},
        {"text": {"verbosity": "low"}, "tools": []},
    ],
)
def test_what_asks_for_nothing_here_is_taken(server, neutral):
    assert server.request("POST", PATH, {"input": "two birds", "max_output_tokens": 1} | neutral)[0] == 200


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"input": "x" * 300}, "the pool of"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "no open question"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools: is not supported"),
        ({"messages": QUESTION}, "messages: unknown field"),
        ({"input": []}, "input: missing or empty"),
        ({"input": " "}, "input: the last text is blank"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "role": "user", "content": "x"}]}, "input[0].type"),
        ({"temperature": 9}, "temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema: missing"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "schema: type: null"),
        ({"metadata": {"order": 7}}, "metadata[...]: expected `str`"),
        ({"model": "other"}, "not served here"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(server, change, place):
    status, _, content = server.request("POST", PATH, {"input": "two birds"} | change)
    assert status in (400, 404)
    error = json.loads(content)["error"]
    assert place in error["message"]
    assert error["param"] == next(iter(change))
