"""Metrics of a server in Prometheus's text format: requests, queue, lanes, tokens, steps, forks, latencies."""

import functools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pasta_jax.decode.engine import Engine
from pasta_jax.decode.request import Result
from pasta_jax.decode.state import OWN
from pasta_jax.decode.trace import CLOSED_NAMES

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
PER_STEP = (0.5, 0.75, 0.9, 0.99, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8)  # without tags, exactly 1: a quantile interpolates
TOKENS = STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def responses(registry: CollectorRegistry) -> Counter:
    """The counter of responses."""
    return Counter("pasta_requests", "Responses by path and status", ("path", "status"), registry=registry)


class Metrics(Collector):
    """The counters and histograms of one server."""

    def __init__(self, engine: Engine):
        self._registry = registry = CollectorRegistry()
        self._engine = engine
        registry.register(self)
        counter = functools.partial(Counter, registry=registry)
        histogram = functools.partial(Histogram, registry=registry)
        self.responses = responses(registry)
        self.vanished = counter("pasta_vanished", "Clients that left before their answer ended")
        self.prompt_tokens = counter("pasta_prompt_tokens", "Tokens of prompts")
        self.copied = counter("pasta_prompt_tokens_copied", "Tokens of prompts that were not computed again")
        self.drafts_fed = counter("pasta_drafts", "Drafts of next tokens that were fed")
        self.drafts_kept = counter("pasta_drafts_kept", "Drafts that equal what their thread sampled")
        self.steps = counter("pasta_steps", "Steps of finished answers")
        self.critical_path = counter("pasta_critical_path_steps", "Steps of finished answers with unlimited rows")
        self.chunks = counter("pasta_chunks", "Chunks of finished answers")
        self.answers = counter("pasta_answers", "Finished answers by how they ended", ("finish",))
        self.forked = counter("pasta_forked_answers", "Finished answers with chunks")
        self.first = histogram("pasta_first_token_seconds", "From the request to its first token", buckets=SECONDS)
        self.seconds = histogram("pasta_answer_seconds", "From the request to its last token", buckets=SECONDS)
        error = "Tokens between the length of a chunk that ended itself and its promise"
        self.promise_error = histogram("pasta_promise_error_tokens", error, buckets=TOKENS)
        self.promised = counter("pasta_promised_tokens", "Promised tokens of chunks that ended themselves")
        self.written = counter("pasta_written_tokens", "Written tokens of chunks that ended themselves")
        delay = "Steps from a promise to the beginning of its chunk; 0: at once"
        self.fork_delay = histogram("pasta_fork_delay_steps", delay, buckets=STEPS)
        refused = "Promised chunks that had not begun when their answer was cut off"
        self.forks_refused = counter("pasta_forks_refused", refused)
        per_step = "Text tokens of an answer over its steps"
        self.per_step = histogram("pasta_text_tokens_per_step", per_step, buckets=PER_STEP)

    def collect(self) -> Iterator[Metric]:
        """What the engine counts itself, read when it is asked for."""
        load = self._engine.load
        yield GaugeMetricFamily("pasta_queue", "Requests that wait for a lane", load.waiting)
        yield GaugeMetricFamily("pasta_lanes", "Requests that can be decoded at a time", load.lanes)
        yield GaugeMetricFamily("pasta_lanes_in_use", "Requests that are decoded now", load.running)
        yield GaugeMetricFamily("pasta_tokens_per_second", "Tokens decoded, in the last seconds of work", load.rate)
        yield CounterMetricFamily("pasta_tokens", "Tokens decoded, tags included", load.tokens)
        yield CounterMetricFamily("pasta_rounds", "Rounds of the device loop", load.rounds)
        yield CounterMetricFamily("pasta_busy_seconds", "Seconds spent in rounds", load.busy_s)

    def answer(self, result: Result, finish: str, seconds: float) -> None:
        """Count a finished answer."""
        trace = result.trace
        self.answers.labels(finish).inc()
        self.prompt_tokens.inc(result.given or len(trace.prompt_ids))
        self.copied.inc(result.copied)
        self.drafts_fed.inc(result.drafts_fed)
        self.drafts_kept.inc(result.drafts_kept)
        self.steps.inc(trace.steps)
        self.critical_path.inc(result.critical_path)
        self.chunks.inc(result.forks)
        promised_at = trace.step[(trace.thread == 0) & trace.tags.is_close(trace.token)].tolist()
        for thread, step in zip(trace.threads()[1:], promised_at, strict=True):
            if thread.tokens:
                self.fork_delay.observe(thread.first_step - step)
            else:
                self.forks_refused.inc()
            if thread.closed == CLOSED_NAMES[OWN]:
                self.promised.inc(10 * thread.tens)
                self.written.inc(thread.length)
                self.promise_error.observe(abs(10 * thread.tens - thread.length))
        self.forked.inc(result.forks > 0)
        self.seconds.observe(seconds)
        if trace.steps:
            self.per_step.observe(result.text_tokens / trace.steps)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
