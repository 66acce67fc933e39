"""The commands of teaching: which records each annotation keeps."""

import itertools

import pytest

import configs.teach
from pasta_jax.runs.settings import changed
from pasta_jax.teaching.stages import stages


def annotations(tmp_path, **changes) -> dict:
    settings = changed(configs.teach.local(), **{"model.path": "mine"} | changes)
    return {stage.name: stage.settings() for stage in stages(settings, tmp_path) if stage.script == "annotate"}


COMBINATIONS = [*itertools.product((True, False), (True, False), (0, 20))]


@pytest.mark.parametrize(("filtered", "weigh", "corrected"), COMBINATIONS)
def test_no_record_is_set_aside_and_none_is_longer_than_what_is_trained_on(filtered, weigh, corrected, tmp_path):
    changes = {"filtered": filtered, "weigh": weigh, "corrected": corrected, "training.lengths": (512, 4096)}
    found = annotations(tmp_path, **changes)
    assert len(found) == 1 + weigh + bool(corrected)
    assert {(one.validation_percent, one.max_tokens) for one in found.values()} == {(0, 4096)}
    if weigh:
        weighed = found["independent chunks"]
        assert weighed.weighing.lengths == (512, 4096)
        assert weighed.form == (found["records"].form if filtered else None)


def test_no_two_answers_share_a_seed(tmp_path):
    """A prompt's is counted from its sample's: with neighbouring ones, prompts would repeat each other's draws."""
    settings = changed(
        configs.teach.local(), **{"model.path": "mine", "seed": 5, "answers.samples": 3, "answers.temperature": 0.7}
    )
    seeds = [stage.settings().request.seed for stage in stages(settings, tmp_path) if stage.name.startswith("answers")]
    assert len(seeds) == 3
    assert min(after - before for before, after in itertools.pairwise(seeds)) >= 10**6


def test_answers_with_forks_are_kept_by_the_rules_of_those_without(tmp_path):
    """Evaluation prompts were dropped before, and their sets need not be installed."""
    found = annotations(tmp_path, corrected=20)
    records, corrected = found["records"], found["corrected chunks"]
    for name in ("prompt_words", "response_words", "drop_evaluation", "max_tokens", "model", "form"):
        assert getattr(corrected, name) == getattr(records, name), name
    assert not corrected.drop_evaluation
