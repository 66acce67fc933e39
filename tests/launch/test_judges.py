"""Proxy judges, as a user compares them with known preferences and as the preference stage builds them."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from configs import judges as configs
from launch import judges
from pasta_jax.errors import PastaError
from pasta_jax.judges import agreement as pipeline
from pasta_jax.judges.checked import CheckedJudge
from pasta_jax.judges.judge import Agreement, Entry
from pasta_jax.preference import score
from pasta_jax.preference.artifacts import Artifacts
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.settings import PreferenceSettings
from pasta_jax.preference.stage import Stage, as_judged, judge_for, judge_inputs
from pasta_jax.runs.settings import changed
from tests.helpers.requires import requires_data
from tests.helpers.traces import PROGRAM, TOKENIZER

PAIRS = [("q", "a b c d e", "a b c d " * 3), ("q", "x", "y")]


def preference_settings(kind: str, source: str) -> PreferenceSettings:
    return changed(PreferenceSettings(), judge={"kind": kind, "agreement": 2}, prompts={"source": source})


def first(judge, *texts: str) -> float:
    question, *answers = texts
    return judge(question, *map(Entry, answers)).first


@requires_data
def test_the_command_prints_a_line_per_judge_and_json_last(capsys):
    judges.main(changed(configs.offline(), pairs=8))
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["rules", "repetition"]
    assert all("a proxy; agrees with" in line and "of 8 known preferences" in line for line in lines)
    assert "50.0% of 8 known preferences (8 of them undecided), no better than chance" in lines[0]
    report = json.loads(last)
    assert (report["pairs"], list(report["judges"])) == (8, ["rules", "repetition"])
    assert report["judges"]["repetition"].keys() == {"pairs", "agreed", "tied", "near_chance"}


def test_the_report_holds_the_agreement_of_each_kind(monkeypatch):
    monkeypatch.setattr(pipeline, "known_preferences", lambda: [*PAIRS, ("q", "not", "read")])
    report = pipeline.measure(changed(configs.tiny(), pairs=2))
    assert report == pipeline.AgreementReport(2, {"repetition": Agreement(pairs=2, agreed=0.75, tied=1)})


def test_the_verdicts_of_a_person(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    good, looping = {"text": "a b c d e", "topics": ["x"]}, "a b c d " * 3
    records = [
        {"prompt": "q", "first": looping, "second": good, "verdict": "second"},
        {"prompt": "q", "first": good, "second": looping, "verdict": "second"},
        {"prompt": "q", "first": "x", "second": "y", "verdict": "tie"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert pipeline.read_pairs(path)[0] == ("q", Entry("a b c d e", topics=("x",)), Entry(looping))
    report = pipeline.measure(changed(configs.tiny(), file=str(path)))
    assert report.fields()["ties"] == 1
    assert report.judges == {"repetition": Agreement(pairs=2, agreed=0.5, tied=0)}
    report = pipeline.measure(changed(configs.tiny(), file=str(path), pairs=2))
    assert (report.pairs, report.ties) == (2, 0)  # of those that are read
    path.write_text('{"prompt": "q", "first": "x", "second": "y", "verdict": "both"}')
    with pytest.raises(PastaError, match=r"verdicts.jsonl: line 1: .*; write prompt, first, second, and as verdict"):
        pipeline.read_pairs(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"pairs": -1}, "config.pairs: "), ({"kinds": ("length",)}, "unknown value 'length'; choose from rules")],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(PastaError, match=message):
        changed(configs.tiny(), **changes)


@requires_data
def test_the_stage_judges_by_the_rules_of_its_own_questions(tmp_path):
    path, bare = tmp_path / "prompts.jsonl", tmp_path / "bare.jsonl"
    record = {"instruction": "q", "output": "x", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path.write_text(json.dumps(record))
    bare.write_text('{"instruction": "q", "output": "x"}')
    by_rules = preference_settings("rules", str(path))
    judge = judge_for(by_rules, {}, tmp_path)
    assert first(judge, "q", "so", "so, so") > first(judge, "other", "so", "so, so") == 0.5
    before = judge_inputs(by_rules)
    path.write_text(json.dumps(record | {"instruction_id_list": ["startend:quotation"]}))
    assert judge_inputs(by_rules) != before
    with pytest.raises(PastaError, match=r"bare.jsonl: no question has rules to judge by"):
        judge_for(preference_settings("rules", str(bare)), {}, tmp_path)


def test_verdicts_of_another_reward_model_in_the_same_folder_are_asked_for_again(tmp_path):
    asked = changed(preference_settings("reward", "preferences"), **{"judge.reward.model": str(tmp_path)})
    found = []
    for place in ("model.safetensors", "fold-0/report.json", "fold-0/model/model.safetensors"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        for content in "ab":
            (tmp_path / place).write_text(content)
            found.append(judge_inputs(asked)["reward"])
    assert len({*found}) == 6
    (tmp_path / "fold-0/checkpoints").mkdir()
    (tmp_path / "fold-0/checkpoints/x.json").write_text("not read")
    assert judge_inputs(asked)["reward"] == found[-1]


def test_the_stage_shows_judges_how_answers_ended_and_their_topics(tmp_path):
    checked = preference_settings("checked", "preferences")
    assert judge_inputs(checked)["checked"]["checks"]["weights"]["finished"] == 1.0
    seen = []
    judge = CheckedJudge(
        checked.judge.checked.checks, {}, lambda pairs: seen.append(pairs) or [-1.0] * len(pairs), None
    )
    model = SimpleNamespace(tokenizer=TOKENIZER)
    stage = Stage(checked, Artifacts(tmp_path), model, model, model, (), (), {}, judge)
    candidate = Candidate(tuple(PROGRAM.ids(TOKENIZER)), "text", 4, 2, chunks=3, whole=False, ended=True)
    answers = as_judged(stage, "q", (candidate, "reference"))
    assert answers == [Entry("text", False, ("first", "second", "last")), Entry("reference")]
    assert seen == [[("q", "text"), ("q", "reference")]]
    assert as_judged(dataclasses.replace(stage, judge=None), "q", (candidate, "reference")) == answers


def test_the_stage_states_how_often_its_proxy_agrees_with_known_preferences(tmp_path, monkeypatch, capsys):
    by_repetition = preference_settings("repetition", "preferences")
    judge = judge_for(by_repetition, {}, tmp_path)
    monkeypatch.setattr(score, "known_preferences", lambda: PAIRS)
    model = SimpleNamespace()
    stage = Stage(by_repetition, Artifacts(tmp_path), model, model, model, (), (), {}, judge)
    assert score.judge_agreement(stage) == Agreement(pairs=2, agreed=0.75, tied=1)
    assert "repetition, a proxy; agrees with 75.0% of 2" in capsys.readouterr().err
