"""Parts of the server that need no server: text up to a stop text, sockets, keys, hosts."""

import asyncio
import dataclasses
import json
import socket
from unittest.mock import AsyncMock, MagicMock, Mock, patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from pasta_jax.decode.engine import Cancelled, QueueFull
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.request import Request, Score
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.stop_texts import Cut
from pasta_jax.errors import PastaError
from pasta_jax.models.settings import MeshSettings
from pasta_jax.serve import logprobs
from pasta_jax.serve.app import with_tool
from pasta_jax.serve.choice import Choice
from pasta_jax.serve.guard import Guard, host_of, is_loopback
from pasta_jax.serve.protocol import Body, Refusal, read_body
from pasta_jax.serve.run import opened
from pasta_jax.serve.server import bound, key_from
from pasta_jax.serve.service import Preparing, Service
from pasta_jax.serve.session import Session
from pasta_jax.serve.settings import Limits, ServeSettings
from pasta_jax.serve.structured import Function, Tool
from pasta_jax.weights.settings import ModelSource
from tests.helpers.traces import Chatty, tiny_model

texts = st.text("ab\n", max_size=30)
TWO_TOOLS = Body(messages=[], tools=[Tool("function", Function(name)) for name in ("adopt", "feed")])


async def forever() -> None:
    await asyncio.Event().wait()


@example(["ab", "b"], ["abb", "b"])
@example(["abb"], ["abb", "b"])
@given(st.lists(texts, max_size=6), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_stop_text_that_is_complete_first_however_it_is_divided(pieces, stops):
    cut, whole, shown = Cut(stops), "".join(pieces), ""
    for number, piece in enumerate(pieces, start=1):
        shown += cut.push(piece)
        held = "".join(pieces[:number])[len(shown) :]
        assert cut.ended or not held or any(stop.startswith(held) for stop in stops)
    ends = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    at = min(ends)[1] if ends else None
    assert cut.ended == bool(ends)
    assert shown + cut.flush() == whole[:at]


def test_a_port_in_use_and_a_wrong_host_are_one_line():
    with bound("127.0.0.1", 0) as listening:  # as while a model is loaded
        port = listening.getsockname()[1]
        with pytest.raises(
            PastaError, match=rf"^127\.0\.0\.1:{port}: Address already in use; choose another --config\.host"
        ):
            bound("127.0.0.1", port)
    with pytest.raises(PastaError, match=r"choose another --config\.host or --config\.port$"):
        bound("192.0.2.1", 0)
    with pytest.raises(PastaError, match=r"^a\.\.b:0: not a host; choose another"):
        bound("a..b", 0)
    if socket.has_ipv6:
        with bound("::1", 0) as listening:
            assert listening.getsockname()[0] == "::1"


def test_small_writes_are_sent_at_once():
    """With Nagle's algorithm, each body and each event would wait for the client to acknowledge what came before."""

    async def option() -> int:
        seen = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = bound("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await seen

    assert asyncio.run(option())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "localhost:8000")], 200),
        ([("host", "chat.example.com"), ("origin", "https://chat.example.com")], 200),
        ([("host", "127.0.0.1:8000"), ("origin", "https://chat.example.com")], 200),  # as nginx forwards it
        ([("host", "evil.example"), ("origin", "https://chat.example.com")], 403),
        ([("host", "127.0.0.1:8000"), ("origin", "https://evil.example")], 403),
        ([("host", "127.0.0.1:8000"), ("origin", "null")], 403),
        ([("host", "localhost"), ("host", "evil.example")], 400),
        ([("host", "localhost"), ("origin", "https://evil.example"), ("origin", "http://localhost")], 400),
    ],
)
def test_a_proxy_on_this_machine_serves_the_names_in_hosts(headers, status):
    statuses = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        statuses.append(message.get("status"))

    raw = [(name.encode(), value.encode()) for name, value in headers]
    guard = Guard(app, Mock(), None, True, ServeSettings(hosts=("Chat.example.com",), log=False))
    asyncio.run(guard({"type": "http", "path": "/health", "headers": raw, "method": "GET"}, None, send))
    assert statuses[0] == status


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/metrics", 403), ("/v1/models", 403)])
def test_a_probe_names_the_address_of_its_pod(path, status):
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    guard = Guard(app, Mock(), "key", False, ServeSettings(hosts=("chat.example.com",), log=False))
    scope = {"type": "http", "path": path, "headers": [(b"host", b"10.1.2.3:8000")], "method": "GET"}
    asyncio.run(guard(scope, None, send))
    assert sent[0]["status"] == status


def test_a_full_queue_is_no_client_that_left():
    async def ask() -> None:
        Session(service, [None, None], [Mock(), Mock()], 1)

    service = MagicMock(**{"settings.limits.answer_s": 9.0})
    service.engine.submit = Mock(side_effect=[7, QueueFull("full")])
    with pytest.raises(PastaError, match="full"):
        asyncio.run(ask())
    service.engine.cancel.assert_called_once_with(7)
    service.metrics.vanished.inc.assert_not_called()


def test_an_answer_that_fails_is_no_client_that_left():
    async def ask() -> None:
        session = Session(service, [None, None], [Mock(result=None), Mock(result=None)], 1)
        with pytest.raises(PastaError, match="it failed"):
            session._read(0, [PastaError("it failed")])
        session.leave()

    service = MagicMock(**{"settings.limits.answer_s": 9.0})
    service.engine.submit = Mock(side_effect=[7, 8])
    asyncio.run(ask())
    service.engine.cancel.assert_called_once_with(8)
    service.metrics.vanished.inc.assert_not_called()


def test_a_choice_of_function_that_comes_too_late_is_no_mistake_of_the_clients():
    late = Mock(return_value=Mock(expired=True, read=AsyncMock()))
    service = Mock(model=tiny_model(), requests_for=Mock(return_value=[None]), settings=ServeSettings())
    service.preparing = Preparing(9)
    with patch("pasta_jax.serve.app.Session", late), pytest.raises(Refusal, match="in time") as refused:
        asyncio.run(with_tool(service, TWO_TOOLS, Mock(receive=forever)))
    assert refused.value.status == 503


def test_a_client_that_leaves_while_a_function_is_chosen_cancels_the_choice():
    """Like one that leaves later; nobody is asked for arguments."""
    service = MagicMock(model=tiny_model(), requests_for=Mock(return_value=[None]), settings=ServeSettings())
    service.engine.submit, service.preparing = Mock(return_value=7), Preparing(9)
    gone = Mock(receive=AsyncMock(side_effect=[{"type": "http.request"}, {"type": "http.disconnect"}]))
    with pytest.raises(ClientDisconnect):
        asyncio.run(with_tool(service, TWO_TOOLS, gone))
    service.engine.cancel.assert_called_once_with(7)
    service.metrics.vanished.inc.assert_called_once_with()
    service.requests_for.assert_called_once()


@pytest.mark.parametrize(
    ("merged", "beside", "message"),
    [
        ("pasta", ("fast=pasta",), r"^config\.adapters: .*config\.model\.adapter='pasta'.*; set .* to ''[^\n]*$"),
        ("", ("pasta",), "no name=path"),
        ("", ("a=pasta", "a=pasta"), "'a' twice"),
    ],
)
def test_adapters_that_cannot_be_are_refused_before_anything_is_loaded(merged, beside, message):
    with pytest.raises(PastaError, match=message):
        opened(ServeSettings(ModelSource("", path="nowhere", adapter=merged), adapters=beside))


def scored(token: np.ndarray, text: tuple[str, ...], in_topic: np.ndarray) -> Mock:
    """The result of an answer in one thread, with a score for each token."""
    trace = Mock(token=token, text=text, in_topic=in_topic, thread=0 * token)
    trace.order.return_value = np.arange(len(token))
    return Mock(trace=trace, scores=[Score(-1.0, ())] * len(token))


def test_a_character_that_a_tag_breaks_off_counts_in_the_text_and_one_of_a_topic_does_not():
    tags = Chatty().tags
    token = np.array([97, 195, tags.promise, 195, tags.close(1), 98])
    result = scored(token, ("a", "", "\ufffd", "", "\ufffd", "b"), np.arange(6) == 3)
    assert [end for *_, end in logprobs.drawn(result, Chatty(), "a\ufffdb")] == [1, 1, 3]


def test_offsets_are_those_of_the_text_where_a_character_has_several_tokens():
    result = scored(np.array([*"aé€b".encode()]), ("a", "", "é", "", "", "€", "b"), np.zeros(7, bool))
    written = logprobs.of_text(logprobs.drawn(result, Chatty(), "aé€b"), Chatty(), 0)
    assert written["text_offset"] == [0, 1, 1, 2, 2, 2, 3]


def test_a_character_that_begins_a_stop_text_has_no_scores():
    result = scored(np.array([*"a€b".encode()]), ("a", "", "", "€", "b"), np.zeros(5, bool))
    assert [one.id for one in logprobs.drawn(result, Chatty(), "a")] == [97]
    cut_off = scored(np.array([*"a€".encode()][:3]), ("a", "", ""), np.zeros(3, bool))
    assert len(logprobs.drawn(cut_off, Chatty(), "a")) == 3


def test_finished_answers_survive_the_end_of_the_time_for_answers():
    result = Mock(finish_reason="length")
    first, second = (Choice(Mock(), (), False) for _ in range(2))

    async def deltas() -> None:
        service = MagicMock(settings=ServeSettings())
        session = Session(service, [None, None], [first, second], 1)
        session.expired = True
        first.finish = lambda item: setattr(first, "result", item) or []
        session._read(0, [result])
        session._items.put_nowait((1, [Cancelled("before its first token")]))
        assert [delta async for delta in session.deltas()] == [(1, [])]

    with patch("pasta_jax.serve.session.Result", Mock):
        asyncio.run(deltas())
    assert (first.result, second.result, second.expired, second.finish_reason) == (result, None, True, "length")


def test_a_request_that_cannot_be_decoded_is_refused():
    tokenizer = Chatty()
    tokenizer.vocab_size = 330  # the rest pads the embedding
    model = dataclasses.replace(tiny_model(), tokenizer=tokenizer)
    settings = ServeSettings(decoding=DecodeConfig(lanes=1, rows=1, slots=64))
    service = Service("tiny", model, Mock(), Mock(), settings, Request((), 8, True))
    hello = b'{"prompt": "a", "pasta": {"sequential": %s}}'
    assert service.requests_for(read_body(hello % b"null", "text"), "text")[0].sequential
    with pytest.raises(PastaError, match=r"^rows 1: chunks need a row besides main's"):
        service.requests_for(read_body(hello % b"false", "text"), "text")
    assert service.requests_for(read_body(b'{"prompt": [255]}', "text"), "text")[0].prompt_ids == (255,)
    with pytest.raises(Refusal, match=r"^logit_bias: '9{20}' is no id"):  # int() refuses as many digits
        service.requests_for(read_body(b'{"prompt": "a", "logit_bias": {"%s": 1}}' % (b"9" * 5000), "text"), "text")
    for id in (260, 329 + 1, 10**6):  # a tag, padding, beyond
        with pytest.raises(PastaError, match=rf"^prompt: id {id} is no id of a text"):
            service.requests_for(read_body(b'{"prompt": [[%d]]}' % id, "text"), "text")
    service = dataclasses.replace(service, settings=dataclasses.replace(settings, limits=Limits(queue=1)))
    with pytest.raises(PastaError, match=r"^n: 3, but this server has room for 2"):  # and not 429: it never has more
        service.requests_for(read_body(b'{"prompt": "a", "n": 3}', "text"), "text")


def test_a_request_names_its_adapter():
    own, sequential = Request((), 8, True), Request((), 8, False)
    adapters = {"tiny:a": dataclasses.replace(sequential, adapter=1).with_rules(fork_bias=2.0), "tiny:b": own}
    settings = ServeSettings(decoding=DecodeConfig(lanes=1, rows=2, slots=64))
    service = Service("tiny", tiny_model(), Mock(), Mock(), settings, own, adapters)
    assert [card["id"] for card in service.cards()] == ["tiny", "tiny:a", "tiny:b"]

    def asked(model: str, ours: str = "{}") -> Request:
        body = b'{"prompt": "a", "model": %s, "pasta": %s}' % (model.encode(), ours.encode())
        return service.requests_for(read_body(body, "text"), "text")[0]

    for model, adapter, is_sequential, bias in [
        ("null", 0, True, 0),
        ('"tiny"', 0, True, 0),
        ('"tiny:a"', 1, False, 2),
    ]:
        request = asked(model)
        assert (request.adapter, request.sequential, request.rules.fork_bias) == (adapter, is_sequential, bias)
    assert asked('"tiny:a"', '{"fork_bias": -3}').rules.fork_bias == -3
    with pytest.raises(
        Refusal, match=r"^model 'tiny:c': not served here; use 'tiny' or 'tiny:a' or 'tiny:b'$"
    ) as error:
        asked('"tiny:c"')
    assert error.value.status == 404
    with pytest.raises(Refusal, match=r"^pasta\.fork_bias: "):
        asked('"tiny:a"', '{"fork_bias": 101}')


def test_a_schema_that_there_is_no_room_for_costs_no_work():
    """Masks of large automata take long, and are kept."""
    settings = ServeSettings(mesh=MeshSettings(data=0))  # which is one device here
    service = Service("tiny", tiny_model(), Mock(), Mock(), settings, Request((), 8, True))
    names = [f"{n:03}{'x' * 9}" for n in range(300)]
    schema = {"type": "object", "properties": {f"f{n}": {"enum": [f"{n}{name}" for name in names]} for n in range(9)}}
    for forks in (True, False):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"messages": [{"role": "user", "content": "a"}], "response_format": wanted}
        body = read_body(json.dumps(body | {"pasta": {"fork_fields": forks}}).encode(), "chat")
        compiled = patch("pasta_jax.fields.form.over_tokens", side_effect=AssertionError)
        with compiled, pytest.raises(Refusal, match=r"the schema|room for 2048|needs more than") as refused:
            service.requests_for(body, "chat", body.structure())
        assert (refused.value.code, refused.value.param) == ("invalid_schema", "response_format")


def test_a_key_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_KEY", " secret\n")
    assert key_from("SOME_KEY") == "secret"
    assert key_from("") is None
    monkeypatch.setenv("SOME_KEY", " ")
    for variable in ("SOME_KEY", "NO_SUCH_KEY"):
        with pytest.raises(PastaError, match=rf"^config\.key_variable: {variable} is not set in the environment"):
            key_from(variable)


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:80", True),
        ("127.9.9.9:1", True),
        ("LOCALHOST:8000", True),
        ("[::1]:8000", True),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("user@127.0.0.1", False),
        (r"evil.example\@localhost", False),
        ("127.0.0.1@evil.example", False),
        ("[", False),
        ("", False),
    ],
)
def test_only_loopback_is_loopback(authority, expected):
    assert is_loopback(host_of(authority)) == expected


def test_a_step_computes_at_most_twice_the_rows_that_all_clients_use():
    """At the default settings: one client alone pays for its own rows, not for those of every lane."""
    decoding = ServeSettings().decoding
    sizes = loop_spec(tiny_model(), decoding, decoding.slots, sequential=False, topics=True).packed
    assert sizes[-1] >= decoding.lanes
    for needed in range(1, sizes[-1] + 1):
        computed = next(size for size in sizes if size >= needed)
        assert computed == 1 or computed < 2 * needed
