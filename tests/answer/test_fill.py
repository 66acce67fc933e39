"""launch.fill on a tiny model: records in order, resumed, and mistakes on one line."""

import contextlib
import itertools
import json
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from configs.fill import smollm2_135m
from pasta_jax.answer import fill as pipeline
from pasta_jax.answer.prompts import Prompt
from pasta_jax.decode.request import Event
from pasta_jax.errors import PastaError
from pasta_jax.fields import fill as fields_fill
from pasta_jax.fields.schema import form_of
from pasta_jax.runs.settings import changed
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer", "maximum": 99}}}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder with two texts; (stdout, stderr)."""
    from launch import fill

    monkeypatch.setattr(pipeline, "load", lambda source, only_decoding: tiny_model())
    monkeypatch.chdir(tmp_path)
    flags.FLAGS.mark_as_parsed()
    Path("s.json").write_text(json.dumps(SCHEMA))
    Path("t.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')

    def call(overrides: dict | None = None, **values) -> tuple[str, str]:
        with flagsaver.flagsaver(**{"schema": "s.json", "prompts_file": "t.jsonl"} | values):
            fill.main(changed(smollm2_135m(), **{"request.max_tokens": 12} | (overrides or {})))
        return capsys.readouterr()

    return call


def on_terminal(monkeypatch, term: str = "xterm") -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)


def test_the_fields_of_one_text_are_seen_as_they_grow(run, monkeypatch):
    seen = []
    monkeypatch.setattr(pipeline.LiveView, "write", lambda view, field, event: seen.append((field, event.text)))
    Path("one.jsonl").write_text('{"prompt": "one"}\n')
    run()
    assert seen == []  # two texts, and no terminal
    on_terminal(monkeypatch, "dumb")
    run(prompts_file="one.jsonl")
    assert seen == []  # nothing would be drawn until the end
    on_terminal(monkeypatch)
    run(prompts_file="one.jsonl", output="one.out")
    [record] = map(json.loads, Path("one.out").read_text().splitlines())
    kind = "".join(text for field, text in seen if field == "kind")
    assert {field for field, _ in seen} == {"kind", "n"}
    assert record["value"]["kind"] in kind


def test_what_goes_on_is_said_until_the_first_token(monkeypatch):
    calls = []
    on_terminal(monkeypatch)
    monkeypatch.setattr(pipeline, "quiet", lambda: calls.append("quiet") or contextlib.nullcontext())
    monkeypatch.setattr(pipeline.LiveView, "write", lambda view, field, event: calls.append(field))
    with pipeline.shown(tiny_model(), 1) as seen:
        assert calls == []
        for field in ("kind", "n"):
            seen(field, Event(0, 1, 65, 1, "x"))
    assert calls == ["quiet", "kind", "n"]


def test_a_stopped_run_goes_on_and_equals_one_that_was_not(run, monkeypatch):
    _, err = run(output="all.jsonl")
    records = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    assert [record["prompt"] for record in records] == ["one", "two"]
    assert all(record["value"]["kind"] in "xy" and record["value"]["n"] <= 99 for record in records)
    assert "2 texts" in err

    whole, stopped = pipeline.fill_all, []

    def one_text(*arguments):
        items = whole(*arguments)
        yield next(items)
        stopped.append(True)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "fill_all", one_text)
    with pytest.raises(KeyboardInterrupt):
        run(output="part.jsonl")
    monkeypatch.setattr(pipeline, "fill_all", whole)
    with pytest.raises(PastaError, match=r"config\.request\.max_tokens"):
        run({"request.max_tokens": 13}, output="part.jsonl")
    _, err = run(output="part.jsonl")
    assert stopped
    assert "resuming: part.jsonl.part has 1 of 2 texts" in err
    resumed = [json.loads(line) for line in Path("part.jsonl").read_text().splitlines()]
    assert [one["value"] for one in resumed] == [one["value"] for one in records]


def test_a_stopped_run_with_fields_that_wait_goes_on(run, monkeypatch):
    whole, count = fields_fill._results, itertools.count(1)

    def stopping(*arguments):
        for result in whole(*arguments):
            if next(count) == 4:  # the second text's second level
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(fields_fill, "_results", stopping)
    with pytest.raises(KeyboardInterrupt):
        run({"after": ("n:kind",)}, output="out.jsonl")
    _, err = run({"after": ("n:kind",)}, output="out.jsonl")
    assert "has 1 of 2 texts" in err
    assert [json.loads(line)["index"] for line in Path("out.jsonl").read_text().splitlines()] == [0, 1]


@pytest.mark.parametrize("changes", [{}, {"after": ("n:kind",)}, {"request.fork": False}])
def test_each_text_draws_random_numbers_of_its_own(run, changes):
    """With the same ones, all fields of like texts would be alike; resumed texts keep theirs."""
    Path("like.jsonl").write_text('{"prompt": "one"}\n' * 6)
    changes |= {"request.temperature": 1.0}
    run(changes, prompts_file="like.jsonl", output="out.jsonl")
    lines = Path("out.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert len({json.dumps(value) for value in values}) > 1
    header = {**pipeline.depends_on(changed(smollm2_135m(), **changes), tiny_model(), form_of(SCHEMA), [])}
    assert header["seed of text n"] == f"config.request.seed + {fields_fill.APART} n"
    [later] = fields_fill.fill_all(
        tiny_model(), ["one"], form_of(SCHEMA), changed(smollm2_135m(), **{"request.max_tokens": 12} | changes).request,
        pipeline.waits(changes.get("after", ())), numbers=[4],
    )  # fmt: skip
    assert later.value == values[4]


def test_without_output_records_are_printed(run):
    out, _ = run()
    assert [json.loads(line)["index"] for line in out.splitlines()] == [0, 1]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"schema": None}, "--schema is missing"),
        ({"schema": "none.json"}, "none.json"),
        ({"prompts_file": None}, "--prompts_file is missing"),
        ({"overrides": {"after": ("kind",)}}, "config.after: 'kind'"),
        ({"overrides": {"after": ("kind:z",)}}, "after: 'z'"),
        ({"overrides": {"after": ("n:kind", "n:n")}}, "config.after: 'n': stated twice"),
        ({"overrides": {"model.drafter": "pasta"}}, "config.model.drafter: fields have no drafts"),
        ({"output": "none/out.jsonl"}, "--output=none/out.jsonl: none: no such folder"),
        ({"output": "."}, "--output=.: is a folder"),
        ({"output": "t.jsonl"}, "--output=t.jsonl: is --prompts_file"),
        ({"output": "./s.json"}, "--output=s.json: is --schema"),
    ],
)
def test_mistakes_are_named(run, given, match):
    with pytest.raises(PastaError, match=match):
        run(**given)
    assert not Path("none").exists()


def test_a_text_that_is_too_long_is_named_before_the_first_is_decoded(run, monkeypatch):
    monkeypatch.setattr(pipeline, "fill_all", pytest.fail)
    Path("long.jsonl").write_text('{"prompt": "one"}\n' + json.dumps({"prompt": "word " * 3000}) + "\n")
    with pytest.raises(PastaError, match=r"^long\.jsonl.*2.*: \d+ tokens, but there is room for \d+; shorten it"):
        run(prompts_file="long.jsonl")


def test_what_is_asked_of_items_is_part_of_what_records_depend_on():
    def header(description: str, fork_items: bool) -> str:
        item = {"type": "object", "properties": {"a": {"const": 1, "description": description}, "b": {"const": 2}}}
        form = form_of({"type": "object", "properties": {"all": {"type": "array", "items": item}}})
        settings = changed(smollm2_135m(), **{"request.fork_items": fork_items})
        return pipeline.depends_on(settings, tiny_model(), form, [Prompt("x", "t")])["--schema"]

    for fork_items in (False, True):
        assert header("one", fork_items) != header("other", fork_items)
