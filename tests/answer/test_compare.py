"""The comparison of a model's two answers: in turn, compiled before it is timed, told in one summary."""

import dataclasses
import json
from pathlib import Path

import pytest

from pasta_jax.answer import compare
from pasta_jax.answer import run as pipeline
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.traces import TOKENIZER, Chatty, tiny_model, traced

pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.fixture
def decoded(answer, monkeypatch) -> list[tuple[Model, Request, DecodeConfig]]:
    """What is decoded with a model that was trained on the tags, or for an adapter with one that was not."""
    calls, generate, trained = [], compare.generate, dataclasses.replace(tiny_model(), positions=PREDICTED)

    def noted(model, requests, config):
        calls.append((model, *requests, config))
        return generate(model, requests, config)

    monkeypatch.setattr(pipeline, "load", lambda source, **_: tiny_model() if source.adapter else trained)
    monkeypatch.setattr(compare, "generate", noted)
    return calls


def test_both_answers_are_decoded_in_turn_and_compared(answer, decoded):
    out, err = answer(prompt="hello", compare=True, output="out.jsonl", html="h.html")
    (slots,) = {config.slots for *_, config in decoded}  # what was compiled before is what is timed
    assert slots > 0
    turns = [(request.sequential, request.max_tokens) for _, request, _ in decoded]
    assert turns == [(True, 1), (False, 1)] + 3 * [(True, 24), (False, 24)]
    sequential, asynchronous = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert (sequential["sequential"], asynchronous["sequential"]) == (True, False)
    assert asynchronous["baseline_tokens"] == sequential["tokens"] == sequential["steps"]
    assert f"=== sequential\n{sequential['text']}\n" in out
    assert f"=== asynchronous\n{asynchronous['text']}\n" in out
    (steps,) = [line.split() for line in out.splitlines() if line.startswith("steps ")]
    assert steps == ["steps", str(sequential["steps"]), str(asynchronous["steps"])]
    assert "times as fast" in out
    assert f"speedup over {sequential['tokens']} sequential steps" in Path("h.html").read_text()
    assert "decodings: 6 of 6" in err
    assert "loading and compiling are not counted" in err

    out, _ = answer(prompt="hello", compare=True, json=True)
    report = json.loads(out)
    assert report["sequential"]["text"] == sequential["text"]
    times = [report[name]["prefill_ms"] + report[name]["decode_ms"] for name in ("sequential", "asynchronous")]
    assert report["realised_speedup"] == pytest.approx(times[0] / times[1], abs=1e-4)


def test_the_median_of_three_is_shown(monkeypatch):
    times = iter([5.0, 1.0, 9.0, 1.0, 7.0, 1.0, 1.0, 8.0, 8.0, 4.0, 8.0, 2.0])
    trace, _ = traced([[TOKENIZER.end_of_turn]])

    def generate(model, requests, config):
        timed = dataclasses.replace(trace, rounds=((0, 0.0), (1, next(times)))) if requests[0].max_tokens > 1 else trace
        return [Result(0, "", "stop", timed)]

    monkeypatch.setattr(compare, "generate", generate)
    side = tiny_model(), Request((1,), 4, sequential=True, rules=Rules(max_topic_tokens=1, max_chunk_tokens=1))
    results = compare.in_turn({"a": side, "b": side}, DecodeConfig(1, 2, 0), 3, {})
    assert compare.total_ms(results["a"]) == 7.0
    (first,) = generate(None, [side[1]], None)  # 1 ms, so that the times of a are 1, 4 and 2
    results = compare.in_turn({"b": side, "a": side}, DecodeConfig(1, 2, 0), 3, {"a": first})
    assert compare.total_ms(results["a"]) == 2.0


def test_the_sequential_answer_is_the_baselines_where_there_is_one(answer, decoded):
    overrides = {"baseline.path": "p", "baseline.adapter": "b", "compare_passes": 1}
    out, _ = answer(prompt="hello", compare=True, overrides=overrides)
    sides = [(model.positions, request.sequential) for model, request, _ in decoded]
    assert sides == 2 * [(None, True), (PREDICTED, False)]
    assert "=== baseline, sequential" in out


def test_a_baseline_reads_the_prompt_in_the_ids_of_its_own_tokenizer(answer, decoded, monkeypatch):
    tokenizer = Chatty()
    tokenizer.encode = lambda text: [*text.upper().encode()]
    other = dataclasses.replace(tiny_model(), name="other", tokenizer=tokenizer)
    load = pipeline.load
    monkeypatch.setattr(pipeline, "load", lambda source, **given: other if source.path else load(source, **given))
    answer(prompt="hello", compare=True, overrides={"baseline.path": "p", "compare_passes": 1})
    asked = {(model.name, bytes(request.prompt_ids)) for model, request, _ in decoded}
    assert asked == {("other", b"USER: HELLO\n"), ("tiny", b"user: hello\n")}


def test_on_a_terminal_the_first_asynchronous_answer_is_shown_while_it_is_decoded(answer, decoded):
    out, _ = answer(prompt="hello", compare=True, live="yes", overrides={"compare_passes": 1})
    # Compiled; then only the sequential one is left.
    assert [request.sequential for _, request, _ in decoded] == [True, False, True]
    assert "times as fast" in out
    assert "===" not in out
    assert out.count("sequential \x1b[2m──") == 1  # its text follows
    assert "asynchronous \x1b[2m──" not in out


def test_a_baseline_needs_a_drafter_too(answer, decoded):
    overrides = {"baseline.path": "p", "decoding.draft": "drafter"}
    with pytest.raises(PastaError, match=r"--compare: the baseline, tiny, has no drafter; set --config\.baseline"):
        answer(prompt="hello", compare=True, overrides=overrides)


def test_a_model_without_the_tags_has_nothing_to_compare(answer):
    with pytest.raises(PastaError, match="--compare: tiny was not trained on the tags, so it has no asynchronous"):
        answer(prompt="hello", compare=True)


@pytest.mark.parametrize(
    "flag",
    [
        {"sequential": True},
        {"program": "p.txt"},
        {"slow": True, "live": "yes"},
        {"prompts_file": "two.jsonl", "prompt": None},
    ],
)
def test_flags_that_contradict_it_are_named(answer, flag):
    Path("p.txt").write_text("x")
    Path("two.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}')
    with pytest.raises(
        PastaError, match=f"--compare: decodes one prompt with and without the tags; drop --{next(iter(flag))}"
    ):
        answer(**{"prompt": "x", "compare": True} | flag)
