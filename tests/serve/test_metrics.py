"""What /metrics counts of finished answers: promises and chunks, how long these wait, drafts."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from pasta_jax.decode import device_loop
from pasta_jax.decode.engine import Engine
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import OWN
from pasta_jax.serve.metrics import Metrics
from tests.decode.test_sampled_programs import TAGS, random_requests, talkative


def counted(results: list[Result]) -> dict[str, float]:
    """Samples by name, with the bound of a bucket."""
    metrics = Metrics(Engine(lambda: None, 1, 1))
    for result in results:
        metrics.answer(result, result.finish_reason, 1.0)
    families = text_string_to_metric_families(metrics.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in samples}


@functools.cache
def waiting() -> list[Result]:
    """With one row beside main, chunks wait for each other."""
    requests = [request.with_rules(max_chunk_tokens=100, end_stray_chunks=False) for request in random_requests(40)]
    return generate(talkative(), requests, DecodeConfig(lanes=8, rows=2, slots=80))


def test_chunks_that_wait_and_promises_are_counted():
    """Some never begin, since the answer is cut off."""
    results = waiting()
    delays, never, promised, written, errors = [], 0, 0, 0, []
    for result in results:
        trace, number, tens = result.trace, 0, [0]
        for token, thread, step in zip(trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), strict=True):
            if thread or not TAGS.is_close(token):
                continue
            number += 1
            tens.append(int(TAGS.tens(token)))
            steps = trace.step[trace.thread == number]
            never += not len(steps)
            delays += [int(steps[0]) - step] if len(steps) else []
        for number in range(1, len(trace.closed)):
            if trace.closed[number] == OWN:
                ids = trace.thread_ids(number)
                length = len(ids) + (ids[-1] != TAGS.end_async)
                promised, written = promised + 10 * tens[number], written + length
                errors.append(abs(10 * tens[number] - length))
    samples = counted(results)
    assert never > 0
    assert samples["pasta_forks_refused_total"] == never
    assert samples["pasta_fork_delay_steps_count"] == len(delays)
    assert samples["pasta_fork_delay_steps_sum"] == sum(delays)
    assert 0 < samples["pasta_fork_delay_steps_bucket0.0"] == delays.count(0) < len(delays)
    assert samples["pasta_chunks_total"] == len(delays) + never
    assert (samples["pasta_promised_tokens_total"], samples["pasta_written_tokens_total"]) == (promised, written)
    assert samples["pasta_promise_error_tokens_count"] == len(errors) > 10
    assert samples["pasta_promise_error_tokens_sum"] == sum(errors)


def quantile(samples: dict[str, float], name: str, share: float) -> float:
    """As Prometheus has it: interpolated within a bucket, the first of which begins at 0."""
    counts = {float(key.removeprefix(f"{name}_bucket")): n for key, n in samples.items() if f"{name}_bucket" in key}
    wanted = share * samples[f"{name}_count"]
    for (low, before), (high, count) in itertools.pairwise([(0.0, 0.0), *sorted(counts.items())]):
        if count >= wanted:
            return low + (high - low) * (wanted - before) / (count - before)


def test_answers_without_tags_have_a_text_token_in_a_step_on_the_dashboard():
    trace = SimpleNamespace(
        thread=np.zeros(9), token=np.arange(9), step=np.arange(1, 10), tags=TAGS, closed=(0,), steps=9,
        threads=lambda: [None],
    )  # fmt: skip
    result = SimpleNamespace(
        trace=trace,
        forks=0,
        given=4,
        copied=0,
        drafts_fed=0,
        drafts_kept=0,
        critical_path=9,
        finish_reason="stop",
        text_tokens=9,
    )
    samples = counted([result] * 10)
    for share in (0.5, 0.95):
        assert 0.99 <= quantile(samples, "pasta_text_tokens_per_step", share) <= 1.0


def test_drafts_are_counted(monkeypatch):
    monkeypatch.setattr(device_loop, "prices_of", lambda model, state, spec: (state, np.ones(len(spec.priced_rows))))
    config = DecodeConfig(lanes=8, rows=4, slots=80, draft="lookup")
    results = generate(talkative(), random_requests(8), config)
    samples = counted(results)
    assert (
        samples["pasta_drafts_total"]
        > samples["pasta_drafts_kept_total"]
        == sum(result.trace.kept_drafts for result in results)
    )


def test_a_lone_field_is_no_fork():
    result = next(result for result in waiting() if len(result.trace.closed) > 2)
    fields = [dataclasses.replace(result, guests=(None,) * count) for count in (1, 2)]
    assert [one.forks for one in fields] == [0, len(result.trace.closed) - 1]
