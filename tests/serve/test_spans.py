"""Spans that a server sends to a collector: of each request and its threads, and nothing of what was asked or said."""

import http.server
import sys
import threading

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.serve import run
from pasta_jax.serve.settings import ServeSettings
from tests.helpers.serving import Server

QUESTION = {"messages": [{"role": "user", "content": "birds crow 7"}], "seed": 3, "temperature": 1.0}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
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


@pytest.mark.slow  # starts a server process
def test_a_request_is_a_span_of_its_caller_and_has_one_for_each_thread(collector, folder):
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    url, bodies = collector
    with Server(folder, spans=url) as server:
        answer = server.ask(**QUESTION, n=2)
        caller = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        status, headers, _ = server.request("POST", "/v1/chat/completions", QUESTION | {"stream": True}, caller)
        assert status == 200
        server.request("GET", "/crow")
        server.request("GET", "/health")
        assert server.stop() == 0
    sent = [service.ExportTraceServiceRequest.FromString(body) for body in bodies]
    found = [
        span for one in sent for several in one.resource_spans for scope in several.scope_spans for span in scope.spans
    ]
    whole, streamed, unknown = [span for span in found if span.name.startswith(("POST", "GET"))]
    assert [whole.name, streamed.name, unknown.name] == [*["POST /v1/chat/completions"] * 2, "GET other"]
    assert (streamed.trace_id.hex(), streamed.parent_span_id.hex()) == (TRACE, CALLER)
    assert not whole.parent_span_id

    def fields(span):
        return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}

    assert fields(streamed)["pasta.request_id"] == headers["x-request-id"]
    assert fields(unknown)["http.response.status_code"] == 404
    usage = answer["usage"]
    assert fields(whole)["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    threads = [span for span in found if span.parent_span_id == whole.span_id]
    assert len(threads) == 2 + sum(choice["pasta"]["chunks"] for choice in answer["choices"]) > 2
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
    assert not any(word in body for body in bodies for word in (b"crow", b"birds"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(PastaError, match=r"config\.spans.*pip install"):  # before anything is loaded
        run.entrance(ServeSettings(spans="http://127.0.0.1:1/v1/traces"))
