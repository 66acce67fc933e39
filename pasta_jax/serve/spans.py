"""Spans of OpenTelemetry for a collector: one for each request, within it one for each thread of its answers.

They say what the line in the log says, and when each thread ran; nothing of any content.
"""

import time

import numpy as np
from starlette.types import Scope

from pasta_jax.errors import PastaError
from pasta_jax.serve.log import Record


def require_installed() -> None:
    """Raise if the package that sends them is missing."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError:
        raise PastaError(
            "config.spans: OpenTelemetry is missing; run: pip install opentelemetry-exporter-otlp-proto-http"
        ) from None


class Spans:
    """What sends them, in a thread of its own."""

    def __init__(self, url: str):
        require_installed()  # on this machine too, as a replica's
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=Resource.create({"service.name": "pasta_jax"}))  # sends the rest at exit
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = provider.get_tracer("pasta_jax")

    def add(self, record: Record, scope: Scope, path: str, status: int) -> None:
        """Those of a request that has ended, within the client's own span if its headers name one."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        ended, seconds = time.time_ns(), record.seconds

        def at(second: float) -> int:
            return ended - int(1e9 * (seconds - second))

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        parent, method = TraceContextTextMapPropagator().extract(headers), scope["method"]
        fields = {"http.request.method": method, "http.route": path, "http.response.status_code": status}
        fields |= {"pasta.request_id": record.id}
        if record.answer_tokens:
            usage = {"input_tokens": record.prompt_tokens, "output_tokens": record.answer_tokens}
            fields |= {f"gen_ai.usage.{name}": count for name, count in usage.items()}
            fields |= {"pasta.adapter": record.adapter, "pasta.cached_tokens": record.cached_tokens}
        name, kind = f"{method} {path}", SpanKind.SERVER
        span = self._tracer.start_span(name, parent, kind, attributes=fields, start_time=at(0.0))
        if record.first_token_s is not None:
            span.add_event("first token", timestamp=at(record.first_token_s))
        inside = set_span_in_context(span)
        for answer, (end, trace) in enumerate(record.answers):
            began = end - trace.rounds[-1][1] / 1e3
            for thread in np.unique(trace.thread).tolist():
                steps = trace.step[trace.thread == thread]
                first, last = (at(began + ms / 1e3) for ms in trace.ms_at([steps[0] - 1, steps[-1]]).tolist())
                about = {"pasta.answer": answer, "pasta.tokens": len(steps)}
                name = f"thread {thread}" if thread else "main"
                self._tracer.start_span(name, inside, attributes=about, start_time=first).end(last)
        span.end(ended)
