"""What a server tells of its requests, as lines and as spans: what each took, and nothing of what was asked or said."""

import contextlib
import datetime
import http.server
import json
import sys
import threading
from types import SimpleNamespace

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.serve import run
from pasta_jax.serve.settings import ServeSettings
from tests.helpers.serving import Server, pieces, saved_adapters

QUESTION = {"messages": [{"role": "user", "content": "birds crow 7"}], "seed": 3, "temperature": 1.0}
DATE = {"name": "Date", "schema": {"type": "object", "properties": {"day": {"enum": ["crow", "gull"]}}}}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = "/v1/chat/completions"


@contextlib.contextmanager
def collector():
    """Its address, and the bodies that it has been sent."""
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
        server.shutdown()


@pytest.fixture(scope="module")
def asked(folder, tmp_path_factory) -> SimpleNamespace:
    """Answers of a server that has ended, its lines, and what it sent."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    adapters, caller = saved_adapters(folder, tmp_path_factory.mktemp("adapters")), f"00-{TRACE}-{CALLER}-01"
    with collector() as (url, bodies), Server(folder, adapters=adapters, log_format="json", spans=url) as server:
        several = server.ask(**QUESTION, model="talkative:two", n=2)
        _, headers, streamed = server.request("POST", CHAT, QUESTION | {"stream": True}, {"traceparent": caller})
        items = server.ask("/v1/responses", input="two birds", model="talkative:one", seed=5)
        fields = server.ask(**QUESTION, response_format={"type": "json_schema", "json_schema": DATE})
        server.request("POST", CHAT, QUESTION | {"model": "crow"})
        server.request("GET", "/birds/crow")
        server.request("GET", "/v1/models")
        server.request("GET", "/health")
        assert server.stop() == 0
        lines = [line for line in server.lines if line.startswith("{")]
    return SimpleNamespace(
        several=several, headers=headers, streamed=streamed, items=items, fields=fields, lines=lines, bodies=bodies
    )


@pytest.mark.slow  # starts a server process
def test_a_line_tells_what_a_response_took_and_nothing_of_its_content(asked):
    assert not any(
        word in line
        for line in asked.lines
        for word in ("crow", "birds", "gull", asked.several["choices"][0]["message"]["content"])
    )
    lines = [json.loads(line) for line in asked.lines]
    assert [(line["route"], line["status"]) for line in lines] == [
        (CHAT, 200),
        (CHAT, 200),
        ("/v1/responses", 200),
        (CHAT, 200),
        (CHAT, 404),
        ("other", 404),
        ("/v1/models", 200),
    ]
    assert len({line["id"] for line in lines}) == len(lines)
    assert lines[1]["id"] == asked.headers["x-request-id"]
    for line in lines:
        datetime.datetime.fromisoformat(line["time"])
        assert line["seconds"] >= 0
    assert [line["adapter"] for line in lines[:4]] == ["two", "", "one", ""]
    assert "adapter" not in lines[4]
    for line, answer in zip([lines[0], lines[3]], [asked.several, asked.fields], strict=True):
        assert 0 < line["first_token_seconds"] <= line["seconds"]
        assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        assert line["cached_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert line["answer_tokens"] == answer["usage"]["completion_tokens"]
    assert lines[0]["forks"] == sum(choice["pasta"]["chunks"] for choice in asked.several["choices"]) > 0
    assert lines[3]["forks"] == 0  # of one field
    assert lines[2]["answer_tokens"] == asked.items["usage"]["output_tokens"]
    about = [piece["choices"][0].get("pasta") for piece in pieces(asked.streamed)][-1]
    assert lines[1]["forks"] == about["chunks"]


@pytest.mark.slow
def test_a_request_is_a_span_of_its_caller_and_has_one_for_each_thread(asked):
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    sent = [service.ExportTraceServiceRequest.FromString(body) for body in asked.bodies]
    found = [
        span for one in sent for several in one.resource_spans for scope in several.scope_spans for span in scope.spans
    ]
    requests = [span for span in found if span.name.startswith(("POST", "GET"))]
    chat = f"POST {CHAT}"
    assert [span.name for span in requests] == [
        *(chat, chat, "POST /v1/responses", chat, chat, "GET other", "GET /v1/models"),
    ]
    whole, streamed, *_, unknown, _ = requests
    assert (streamed.trace_id.hex(), streamed.parent_span_id.hex()) == (TRACE, CALLER)
    assert not whole.parent_span_id

    def fields(span):
        return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}

    assert fields(streamed)["pasta.request_id"] == asked.headers["x-request-id"]
    assert fields(unknown)["http.response.status_code"] == 404
    usage = asked.several["usage"]
    assert fields(whole)["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    threads = [span for span in found if span.parent_span_id == whole.span_id]
    assert len(threads) == 2 + sum(choice["pasta"]["chunks"] for choice in asked.several["choices"]) > 2
    assert sum(fields(span)["pasta.tokens"] for span in threads) == usage["completion_tokens"]
    for number in (0, 1):
        own = {span.name: span for span in threads if fields(span).get("pasta.answer", 0) == number}
        main = own["main"]
        first = own.get("thread 1", main)
        assert main.start_time_unix_nano <= first.start_time_unix_nano < main.end_time_unix_nano  # beside each other
        for span in own.values():
            assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= whole.end_time_unix_nano
    assert [event.name for event in whole.events] == ["first token"]
    assert not any(word in body for body in asked.bodies for word in (b"crow", b"birds"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(PastaError, match=r"config\.spans.*pip install"):  # before anything is loaded
        run.entrance(ServeSettings(spans="http://127.0.0.1:1/v1/traces"))
