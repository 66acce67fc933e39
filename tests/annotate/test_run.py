"""Runs interrupted anywhere end as if uninterrupted; the folder of another run is never continued."""

import dataclasses
import json
import random
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from configs import annotate as variants
from launch import annotate
from pasta_jax.annotate import annotators, pipeline, run
from pasta_jax.annotate.results import Skipped, write_results
from pasta_jax.annotate.run import Unanswered, collect_answers
from pasta_jax.annotate.settings import EndpointSettings, Weighing
from pasta_jax.annotate.verify import NOT_ENCODABLE, TEXT_CHANGED, Refusal, verify
from pasta_jax.data.pairs import Pair, Unreadable
from pasta_jax.data.records import read_records
from pasta_jax.errors import PastaError
from pasta_jax.files import packages, remote
from pasta_jax.files.jsonl import as_line
from pasta_jax.files.remote import path_of
from pasta_jax.llm.cache import Cost
from pasta_jax.llm.client import Client
from pasta_jax.progress import Progress
from pasta_jax.runs.settings import changed
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from tests.helpers import bucket
from tests.helpers.models import TINY, random_params
from tests.helpers.records import record_of, toy_records
from tests.helpers.traces import Chatty, Refusing

PAIRS = [Pair(f"id{n}", "", f"what {n}", f"answer {n} é\n", "mine") for n in range(12)]
ABOUT = {"annotator": "by hand", "code": "1"}


class Interrupted(Exception):
    pass


class Script:
    """An annotator that answers in a random order and may be interrupted."""

    def __init__(self, stop_after: int = 10**9, seed: int = 0):
        self.stop_after, self.seed = stop_after, seed
        self.answered: list[int] = []

    def __call__(self, numbers: list[int], progress: Progress):
        order = list(numbers)
        random.Random(self.seed).shuffle(order)
        for count, number in enumerate(order):
            if count == self.stop_after:
                raise Interrupted
            self.answered.append(number)
            yield number, {"text": PAIRS[number].response}


ANSWERS = [{"text": pair.response} for pair in PAIRS]


def test_an_interrupted_run_goes_on_and_another_run_is_refused(tmp_path, capsys):
    script = Script(stop_after=5)
    with pytest.raises(Interrupted):
        collect_answers(tmp_path, ABOUT, PAIRS, script)
    rest = Script(seed=9)
    assert collect_answers(tmp_path, ABOUT, PAIRS, rest) == ANSWERS, "in the order of the pairs"
    assert sorted(script.answered + rest.answered) == list(range(12))
    assert "annotating: 12 of 12" in capsys.readouterr().err
    assert collect_answers(tmp_path, ABOUT, PAIRS, pytest.fail) == ANSWERS
    for about, pairs, key in ((ABOUT | {"code": "2"}, PAIRS, "code"), (ABOUT, PAIRS[1:], "pairs")):
        with pytest.raises(PastaError, match=f"progress.jsonl: begun with {key}="):
            collect_answers(tmp_path, about, pairs, Script())


@pytest.mark.parametrize("line", ["[99, {}]", "[1]", '{"a": 1}', "[0, 1]", '[0, {"text": "", "failure": ""}]'])
def test_a_line_that_answers_none_of_the_pairs_is_refused(tmp_path, line):
    collect_answers(tmp_path, ABOUT, PAIRS, Script())
    with (tmp_path / run.PROGRESS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PastaError, match=r"line 14.*; delete that line"):
        collect_answers(tmp_path, ABOUT, PAIRS, Script())


def test_an_annotator_that_ends_early_is_reported(tmp_path):
    with pytest.raises(PastaError, match="7 pairs have no answer yet"):
        collect_answers(tmp_path, ABOUT, PAIRS, lambda numbers, _: ((n, {"text": ""}) for n in numbers[:5]))


def test_an_unanswered_pair_is_not_stored_and_is_asked_again(tmp_path):
    down = Unanswered("no connection", "refused")

    def partly(numbers: list[int], progress: Progress):
        for number, answer in Script()(numbers, progress):
            yield number, down if number in (3, 7) else answer

    answers = collect_answers(tmp_path, ABOUT, PAIRS, partly)
    assert answers == [down if number in (3, 7) else answer for number, answer in enumerate(ANSWERS)]
    assert len((tmp_path / run.PROGRESS).read_text().splitlines()) == 1 + 10
    script = Script()
    assert collect_answers(tmp_path, ABOUT, PAIRS, script) == ANSWERS
    assert sorted(script.answered) == [3, 7]


def test_the_summary_counts_everything_once(tmp_path):
    verdicts = [
        verify(p, {"text": p.response + "x" * (n < 3)}, Chatty(), 900, "by hand", "train") for n, p in enumerate(PAIRS)
    ]
    unreadable = [Unreadable("mine: line 4", "a record must be JSON")]
    left_out = [Refusal(f"id{n}", "mine", f"mine: line {n}", "duplicate prompt", "", "") for n in (5, 6)]
    skipped = Skipped(unreadable, left_out, Counter({"timeout": 3}))
    cost = Cost(7, 1_000_000, 200_000, None)
    summary = write_results(tmp_path, verdicts, skipped, "by hand", "mine", "bytes", cost)
    assert (summary.read, summary.annotated, summary.kept) == (18, 12, 9)
    assert summary.unanswered == {"timeout": 3}
    assert "all runs together: 7 requests, 1,000,000 tokens in, 200,000 out; price not set" in summary.text()
    assert summary.refused == {TEXT_CHANGED: 3}
    assert summary.unreadable == {"a record must be JSON": 1}
    assert json.loads((tmp_path / "summary.json").read_text()) == summary.json()
    expected = f"refused: {TEXT_CHANGED}: 3\n  unanswered: timeout: 3\nkept 9 records\nwith a fork 0 (0.0%)"
    assert expected in summary.text()
    forked = dataclasses.replace(summary, statistics=dataclasses.replace(summary.statistics, with_fork=9))
    assert "nearly all answers have a fork; add some without" in forked.text()
    refused = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [item["place"] for item in refused] == [
        *(f"mine: line {n}" for n in (4, 5, 6)),
        *["source, line 2, column 1"] * 3,
    ]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 9
    assert "| records | 9 |" in (tmp_path / "statistics.md").read_text()
    assert not list(tmp_path.glob("*.part"))


def test_records_at_gs_are_read_as_they_were_written(monkeypatch, tmp_path):
    """A source, its records as another run's input, and answers; short ones are left out of no run of `local`."""
    bucket.install(monkeypatch, tmp_path)
    remote.local.cache_clear()
    text, tags = "1. it carries leaves to its nest.\n2.", ('<promise topic="ant" tokens=9 /><async>', "</async>")
    answer = {"text": text, "program": text[:2] + text[2:].join(tags), "finish_reason": "stop"}  # with a stray marker
    rows = [{"prompt": f"Why {n}?"} | answer for n in range(3)]
    path_of("gs://b/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = dict(drop_evaluation=False, dataset=False, model={"preset": "toy"})
    first = changed(variants.local(), source="gs://b/a.jsonl", **common)
    assert pipeline.run(first, path_of("gs://b/first")).kept == 3
    again = changed(first, source="", records="gs://b/first/records.jsonl")
    assert pipeline.run(again, tmp_path / "again").kept == 3
    own = changed(first, annotator="own")
    assert pipeline.run(own, tmp_path / "own").kept == 3


@pytest.mark.parametrize("kind", ["a model behind an API", "own", "likelihood"])
def test_a_text_without_ids_is_refused_and_ends_no_run(kind, tmp_path, monkeypatch):
    chunk = '<promise topic="it" tokens=9 /><async> un dé pipé pour deux.</async>'
    annotated = "So:<async topic='it'> un dé pipé pour deux.</async>"
    tokenizer, pair = Refusing(), Pair.of("", "Why?", "So: un dé pipé pour deux.", "mine")
    if kind == "own":
        row = {"prompt": "Why?", "text": pair.response, "program": f"So:{chunk}", "finish_reason": "stop"}
        (tmp_path / "a.jsonl").write_text(json.dumps(row))
        annotator = annotators.by_own_answers([pair], str(tmp_path / "a.jsonl"), tokenizer)
    elif kind == "likelihood":
        monkeypatch.setattr(annotators, "load", lambda _: SimpleNamespace(tokenizer=tokenizer))
        (tmp_path / "r.jsonl").write_text(as_line(record_of(annotated, pair.response, id=pair.id)))
        annotator = annotators.by_likelihood([pair], tmp_path / "r.jsonl", ModelSource(), Weighing())
    else:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setattr(Client, "chat", lambda *_: annotated)
        annotator = annotators.by_language_model([pair], tokenizer, EndpointSettings(), tmp_path / "cache")
    [(_, answer)] = annotator.annotate([0], Progress("", 1))
    refusal = verify(pair, answer, tokenizer, 999, kind, "train")
    assert (refusal.reason, refusal.detail) == (NOT_ENCODABLE, "no ids for é")


def test_an_answer_that_is_too_long_to_weigh_is_refused_and_ends_no_run(tmp_path, monkeypatch):
    """Line by line, a text may have more ids than as a whole, which the limit of its records is about."""
    monkeypatch.setattr(annotators, "load", lambda _: SimpleNamespace(tokenizer=Chatty(), name="model"))
    annotated = "So:<async topic='a'> one thing and the other.</async><async topic='b'> and this and that too.</async>"
    plain = "So: one thing and the other. and this and that too."
    records = [record_of(annotated, plain, id="long"), record_of("So.", "So.", id="short")]
    (tmp_path / "r.jsonl").write_text("".join(as_line(record) + "\n" for record in records))
    pairs = [Pair(record.id, "", "Why?", record.response, "mine") for record in records]
    annotator = annotators.by_likelihood(pairs, tmp_path / "r.jsonl", ModelSource(), Weighing(lengths=(32,)))
    [(_, refused), (_, whole)] = annotator.annotate([0, 1], Progress("", 2))
    assert "ids to weigh, over 32; raise lengths" in refused["detail"]
    assert verify(pairs[0], refused, Chatty(), 999, "likelihood", "train").reason == annotators.UNWEIGHED
    assert whole["program"] == "So."


def test_a_model_that_cannot_be_trained_is_refused_before_annotating(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
    shutil.copy(packages.path("smollm2_135m"), tmp_path / "tokenizer.json")
    with pytest.raises(PastaError, match="unsupported model_type 'unknown'"):
        pipeline.tokenizer_for(ModelSource(path=str(tmp_path)))


def test_a_run_that_keeps_nothing_fails_and_says_where_the_reasons_are(monkeypatch, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"instruction": "Why?", "output": "So it is."}))
    for flag, value in (("OUTPUT", str(tmp_path / "run")), ("INSPECT", None), ("FORKS", False)):
        monkeypatch.setattr(annotate, flag, SimpleNamespace(value=value))
    common = dict(source=str(tmp_path / "a.jsonl"), drop_evaluation=False, dataset=False, model={"preset": "toy"})
    with pytest.raises(PastaError, match=r"run: no record was kept; refused\.jsonl there says why"):
        annotate.main(changed(variants.local(), max_tokens=1, **common))


@pytest.mark.slow
def test_likelihood_goes_on_from_any_answer(tmp_path):
    """With a tiny model of random weights, which finds half of all chunks needed; batches are others than before."""
    tokenizer = toy_tokenizer()
    config = dataclasses.replace(TINY, vocab=tokenizer.model_vocab, context=2048)
    export_model(Model("tiny", config, random_params(config, 1, scale=1.0), tokenizer), tmp_path / "model")
    records = toy_records(40)
    (tmp_path / "records.jsonl").write_text("".join(as_line(record) + "\n" for record in records))
    settings = changed(
        variants.likelihood(),
        records=str(tmp_path / "records.jsonl"),
        weighing={"lengths": (256, 1728), "max_cost": 0.001},
        max_tokens=1700,
        dataset=False,
        model={"preset": "", "path": str(tmp_path / "model")},
    )
    pipeline.run(settings, tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    progress = (tmp_path / "whole" / run.PROGRESS).read_bytes()
    (tmp_path / "cut" / run.PROGRESS).write_bytes(progress[: len(progress) * 2 // 5])
    summary = pipeline.run(settings, tmp_path / "cut")
    for name in ("records.jsonl", "refused.jsonl", "summary.json", "statistics.md", "chart.svg"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert summary.kept == len(records)
    pruned = read_records(tmp_path / "cut/records.jsonl")
    assert 0 < sum(record.forks for record in pruned) < sum(record.forks for record in records)
