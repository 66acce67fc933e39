"""Judges that ask nobody, as a user compares them with given preferences and as the preference stage makes them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from configs import preference as preference_config
from configs.judges import get_config
from launch import judges, preference
from launch.preference_stage import Stage, judge_of, judged_by
from pasta_jax.errors import PastaError
from pasta_jax.judges import minilm
from pasta_jax.pipelines.artifacts import Steps
from tests.requires import requires_data

PAIRS = [("q", "known", "off"), ("q", "yours", "mine")]


@pytest.fixture(autouse=True)
def embedding(monkeypatch):
    """Stands for MiniLM: what is near to what is said here."""
    vectors = {"q": [1, 0, 0], "known": [0, 1, 0], "mine": [0.8, 0.6, 0], "yours": [0.6, 0.8, 0], "off": [0.3, 0, 0.95]}
    embed = lambda texts: np.array([vectors[text] for text in texts], np.float32)  # noqa: E731
    monkeypatch.setattr(minilm, "load_minilm", lambda: embed)


def stage(folder, kind: str, source: str) -> Stage:
    config = preference_config.get_config("smollm2_135m")
    config.judge.kind, config.judge.agreement, config.prompts.source = kind, 2, source
    model = SimpleNamespace(config=None, tokenizer=SimpleNamespace(tags=None), params={})
    return Stage(config, Steps(folder), model, model, (), (), {}, None)


def first(judge, *texts: str) -> float:
    return judge(*texts).first


@requires_data
def test_the_command_prints_a_line_a_judge_and_json_last(capsys):
    judges.main(get_config("tiny"))
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["repetition", "length"]
    assert all("a proxy; agrees with" in line and "of 8 given preferences" in line for line in lines)
    found = json.loads(last)
    assert (found["pairs"], list(found["judges"])) == (8, ["repetition", "length"])
    assert found["judges"]["length"].keys() == {"pairs", "agreed", "tied", "near_chance"}


@requires_data
def test_rules_have_no_opinion_on_questions_that_have_none(capsys):
    config = get_config("tiny")
    config.kinds = ("rules",)
    judges.main(config)
    assert "50.0% of 8 given preferences (8 of them undecided), no better than chance" in capsys.readouterr().out


@pytest.mark.parametrize(("changed", "said"), [({"pairs": 0}, "--config.pairs=0"), ({"kinds": ("llm",)}, "no 'llm'")])
def test_what_cannot_be_compared_is_refused(changed, said):
    config = get_config("tiny")
    config.update(changed)
    with pytest.raises(PastaError, match=said):
        judges.main(config)


def test_the_stage_judges_by_the_rules_of_its_own_questions(tmp_path):
    path, bare = tmp_path / "asked.jsonl", tmp_path / "bare.jsonl"
    record = {"instruction": "q", "output": "x", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path.write_text(json.dumps(record))
    bare.write_text('{"instruction": "q", "output": "x"}')
    asked = stage(tmp_path, "rules", str(path))
    judge = judge_of(asked, {})
    assert first(judge, "q", "so", "so, so") > first(judge, "other", "so", "so, so") == 0.5
    before = judged_by(asked)
    path.write_text(json.dumps(record | {"instruction_id_list": ["startend:quotation"]}))
    assert judged_by(asked) != before
    with pytest.raises(PastaError, match=r"bare.jsonl: no question has rules to judge by"):
        judge_of(stage(tmp_path, "rules", str(bare)), {})


def test_relevance_knows_references_but_not_where_it_is_compared_with_preferences(tmp_path, monkeypatch, capsys):
    asked = stage(tmp_path, "relevance", "preferences")
    judge = judge_of(asked, {"q": "known"})
    assert first(judge, "q", "yours", "mine") == pytest.approx(0.5)  # 0.7 on average either way
    assert first(judge, "q", "known", "off") > 0.5
    monkeypatch.setattr("pasta_jax.data.sources.given_preferences", lambda: PAIRS)
    report = {}
    preference.say_agreement(Stage(**(vars(asked) | {"judge": judge})), report)
    assert report["judge_agreement"]["agreed"] == 0
    assert "relevance, a proxy; agrees with 0.0% of 2" in capsys.readouterr().err
