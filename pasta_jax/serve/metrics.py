"""Metrics of a server in Prometheus's text format: requests, queue, lanes, tokens, steps, forks, latencies."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pasta_jax.decode.engine import Engine
from pasta_jax.decode.request import Result

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
PER_STEP = (1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8)


class _OfEngine(Collector):
    """What the engine counts itself, read when it is asked for."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load
        yield GaugeMetricFamily("pasta_queue", "Requests that wait for a lane", load.waiting)
        yield GaugeMetricFamily("pasta_lanes", "Requests that can be decoded at a time", load.lanes)
        yield GaugeMetricFamily("pasta_lanes_in_use", "Requests that are decoded now", load.running)
        yield GaugeMetricFamily("pasta_tokens_per_second", "Tokens decoded, in the last seconds of work", load.rate)
        yield CounterMetricFamily("pasta_tokens", "Tokens decoded, tags included", load.tokens)
        yield CounterMetricFamily("pasta_rounds", "Rounds of the device loop", load.rounds)
        yield CounterMetricFamily("pasta_busy_seconds", "Seconds spent in rounds", load.busy_s)


class Metrics:
    """The counters and histograms of one server."""

    def __init__(self, engine: Engine):
        self._registry = registry = CollectorRegistry()
        registry.register(_OfEngine(engine))
        self.responses = Counter(
            "pasta_requests", "Responses by path and status", ("path", "status"), registry=registry
        )
        self.vanished = Counter("pasta_vanished", "Clients that left before their answer ended", registry=registry)
        self.prompt_tokens = Counter("pasta_prompt_tokens", "Tokens of prompts", registry=registry)
        self.copied = Counter(
            "pasta_prompt_tokens_copied", "Tokens of prompts that were not computed again", registry=registry
        )
        self.steps = Counter("pasta_steps", "Steps of finished answers", registry=registry)
        self.chunks = Counter("pasta_chunks", "Chunks of finished answers", registry=registry)
        self.answers = Counter("pasta_answers", "Finished answers by how they ended", ("finish",), registry=registry)
        self.forked = Counter("pasta_forked_answers", "Finished answers with chunks", registry=registry)
        self.first = Histogram(
            "pasta_first_token_seconds", "From the request to its first token", buckets=SECONDS, registry=registry
        )
        self.seconds = Histogram(
            "pasta_answer_seconds", "From the request to its last token", buckets=SECONDS, registry=registry
        )
        self.per_step = Histogram(
            "pasta_text_tokens_per_step", "Text tokens of an answer over its steps", buckets=PER_STEP, registry=registry
        )

    def answer(self, result: Result, finish: str, seconds: float) -> None:
        """Count a finished answer."""
        trace = result.trace
        self.answers.labels(finish).inc()
        self.prompt_tokens.inc(len(trace.prompt_ids))
        self.copied.inc(result.copied)
        self.steps.inc(trace.steps)
        self.chunks.inc(len(trace.closed) - 1)
        self.forked.inc(len(trace.closed) > 1)
        self.seconds.observe(seconds)
        if trace.steps:
            self.per_step.observe(trace.text_tokens / trace.steps)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
