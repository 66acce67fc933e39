"""Decoding a file of prompts: in order, resumable, in the form that AlpacaEval reads, with a page that links to all."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from pasta_jax.answer import many
from pasta_jax.answer import run as pipeline
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.view.trace_file import load
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")


def test_a_file_of_prompts_is_answered_in_order_with_and_without_tags(answer):
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n\n{"instruction": "two, é"}\n{"prompt": "three"}\n')
    out, err = answer(prompts_file="prompts.jsonl", sequential=True, lanes=2, output="base.jsonl", trace="t.json")
    assert out == ""
    assert "answers: 3 of 3" in err
    base = [json.loads(line) for line in Path("base.jsonl").read_text().splitlines()]
    assert [record["prompt"] for record in base] == ["one", "two, é", "three"]
    assert [record["index"] for record in base] == [0, 1, 2]
    assert all(record["sequential"] and record["steps"] == record["tokens"] for record in base)
    assert [load(Path(f"t-000{n}.json")).prompt for n in (1, 2, 3)] == ["one", "two, é", "three"]
    assert load(Path("t-0001.json")).rows == 1

    out, err = answer(prompts_file="prompts.jsonl", sequential=False, json=True, baseline="base.jsonl")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2]
    for record, plain in zip(records, base, strict=True):
        assert not record["sequential"]
        assert record["baseline_tokens"] == plain["tokens"]
        assert record["theoretical_speedup"] == round(plain["tokens"] / record["critical_path"], 4)
        assert Program.parse(record["program"]).strip() == record["text"]
    assert "3 answers" in err
    assert "theoretical speedup" in err

    out, _ = answer(prompts_file="prompts.jsonl", sequential=True)
    heads = [line for line in out.splitlines() if line.startswith("=== ")]
    assert heads == ["=== 1: one", "=== 2: two, é", "=== 3: three"]
    for record in base:
        assert record["text"] in out


def test_each_prompt_draws_random_numbers_of_its_own(answer):
    """With the same ones, all answers to like prompts would begin alike."""
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n' * 4)
    texts = []
    for seed in (7, 8):
        out, _ = answer("", {"request.seed": seed}, prompts_file="prompts.jsonl", sequential=True, json=True)
        texts.append([json.loads(line)["text"] for line in out.splitlines()])
    assert len({*texts[0]}) == 4
    assert texts[0][1:] == texts[1][:-1]
    out, _ = answer("one", {"request.seed": 9}, sequential=True, json=True)
    assert json.loads(out)["text"] == texts[0][2]


def test_results_are_printed_in_the_order_of_the_prompts(answer, monkeypatch):
    stream = many.stream

    def backwards(*arguments):
        return iter(list(stream(*arguments))[::-1])

    monkeypatch.setattr(many, "stream", backwards)
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n{"prompt": "three"}\n')
    out, _ = answer(prompts_file="prompts.jsonl", sequential=True, lanes=2, json=True)
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["one", "two", "three"]


def stop_after(count: int, monkeypatch) -> None:
    """Let the next run stop when it has written `count` answers, as a kill would."""
    record_of, calls = many.record_of, []

    def stops(*arguments):
        calls.append(1)
        if len(calls) > count:
            monkeypatch.setattr(many, "record_of", record_of)
            raise KeyboardInterrupt
        return record_of(*arguments)

    monkeypatch.setattr(many, "record_of", stops)


def test_nothing_is_kept_beside_a_pipe(tmp_path):
    """In /dev, only root may write another file, and all runs that write to /dev/stdout would share it."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with many.answers_file(tmp_path / "pipe", {"model": "mine"}, []):
        assert os.listdir(tmp_path) == ["pipe"]
    os.close(reader)


def answers_without_times(path: str) -> list[dict]:
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [{name: value for name, value in record.items() if not name.endswith("_ms")} for record in records]


def test_a_stopped_run_resumes_and_decodes_no_answer_twice(answer, monkeypatch):
    Path("prompts.jsonl").write_text("".join(f'{{"prompt": "{"x" * n}", "dataset": "d"}}\n' for n in range(1, 6)))
    run = {"prompts_file": "prompts.jsonl", "sequential": True, "lanes": 2}
    answer(**run, output="whole.jsonl", html="whole.html")
    part = Path("out.jsonl.part")
    stop_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        answer(**run, output="out.jsonl", html="h.html")
    assert not Path("out.jsonl").exists()
    with part.open("a") as file:
        file.write(part.read_text().splitlines()[-1][:40])  # the line that a kill cut off
    decoded, stream = [], many.stream

    def counted(model, requests, *rest):
        decoded.append(len(requests))
        return stream(model, requests, *rest)

    monkeypatch.setattr(many, "stream", counted)
    _, err = answer(**run, output="out.jsonl", html="h.html")
    assert decoded == [3]
    assert "resuming: out.jsonl.part has 2 of 5 answers" in err
    assert "answers: 5 of 5" in err
    assert answers_without_times("out.jsonl") == answers_without_times("whole.jsonl")
    assert not part.exists()
    for number in range(1, 6):
        assert Path(f"h-{number:04}.html").exists()
        assert f'href="h-{number:04}.html"' in Path("h.html").read_text()


@pytest.fixture
def stopped(answer, monkeypatch) -> dict:
    """The flags of a run that was stopped after the first of two answers."""
    run = {"prompts_file": "prompts.jsonl", "output": "out.jsonl", "sequential": True}
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    stop_after(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        answer(**run)
    return run


def test_a_missing_drafter_is_named(answer):
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    with pytest.raises(PastaError, match=r"set --config\.model\.drafter"):
        answer("", {"decoding.draft": "drafter"}, prompts_file="prompts.jsonl", output="out.jsonl")


def test_answers_in_another_precision_are_not_resumed(answer, stopped, monkeypatch):
    model = tiny_model()
    narrow = dataclasses.replace(model, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model.params))
    monkeypatch.setattr(pipeline, "load", lambda source, only_decoding, mesh: narrow)
    with pytest.raises(PastaError, match=r"^out\.jsonl\.part: begun with precision=None, now bfloat16"):
        answer(**stopped)


@pytest.mark.parametrize(
    ("values", "fingerprint", "text", "changed"),
    [
        ({"sequential": False}, "", "two", "config.request.sequential=True, now False"),
        ({"rows": 2}, "", "two", "config.decoding.rows=3, now 2"),
        ({"html": "h.html"}, "", "two", "--html=None, now h.html"),
        ({}, "f00", "two", "model=tiny , now tiny f00"),
        ({}, "", "three", "prompts=2 prompts [0-9a-f]+, now 2 prompts"),
    ],
)
def test_answers_of_another_run_are_not_resumed(answer, stopped, monkeypatch, values, fingerprint, text, changed):
    model = dataclasses.replace(tiny_model(), fingerprint=fingerprint)
    monkeypatch.setattr(pipeline, "load", lambda source, only_decoding, mesh: model)
    Path("prompts.jsonl").write_text(f'{{"prompt": "one"}}\n{{"prompt": "{text}"}}\n')
    with pytest.raises(PastaError, match=rf"^out\.jsonl\.part: begun with {changed}"):
        answer(**stopped | values)


def test_an_answer_to_another_prompt_is_not_resumed(answer, stopped):
    part = Path("out.jsonl.part")
    part.write_text(part.read_text().replace('"one"', '"two"'))
    with pytest.raises(PastaError, match=r"out\.jsonl\.part: line 2: does not belong to this run"):
        answer(**stopped)


def test_answers_are_written_as_alpaca_eval_reads_them(answer):
    Path("prompts.json").write_text('[{"instruction": "one", "dataset": "vicuna"}, {"instruction": "two"}]')
    answer(prompts_file="prompts.json", sequential=True, output="out.json")
    first, second = json.loads(Path("out.json").read_text())
    assert (first["instruction"], first["generator"], first["dataset"]) == ("one", "tiny", "vicuna")
    assert first["output"] == first["text"]
    assert "dataset" not in second
    _, err = answer(prompts_file="prompts.json", sequential=True, baseline="out.json")
    assert "theoretical speedup 1.00" in err


def test_a_system_message_without_a_chat_template_is_refused(answer):
    with pytest.raises(PastaError, match=r"config\.system: "):
        answer(prompt="x", overrides={"chat": False, "system": "be short"})
