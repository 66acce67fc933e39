"""What is sampled in a round: so many answers at the temperature of samples, and one of the baseline without tags."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs import preference
from pasta_jax.preference import sample
from pasta_jax.preference.artifacts import Artifact, Artifacts
from pasta_jax.preference.sample import sample_baseline, sample_round
from pasta_jax.preference.settings import SampleSettings
from pasta_jax.preference.stage import RoundModel, Stage
from pasta_jax.weights.rules import Defaults


@pytest.fixture
def asked(monkeypatch) -> list[tuple]:
    """(step, model, answers to each prompt, request) of what would be decoded."""
    calls = []

    def decode(stage, step, model, fingerprint, prompts, count, request):
        calls.append((step, model, count, request))
        return Artifact(Path(), [], "")

    monkeypatch.setattr(sample, "decode", decode)
    monkeypatch.setattr(sample, "for_decoding", lambda model: model)
    return calls


def test_what_is_sampled(asked, tmp_path):
    settings = dataclasses.replace(preference.tiny(), sample=SampleSettings(count=5))
    sft, baseline, model = SimpleNamespace(defaults=Defaults()), SimpleNamespace(params={}), SimpleNamespace()
    stage = Stage(settings, Artifacts(tmp_path), sft, sft, baseline, (), (), {}, None)
    sample_baseline(stage, ())
    for number in range(2):
        sample_round(stage, RoundModel(number, {}, ""), model)
    steps, models, counts, requests = map(list, zip(*asked, strict=True))
    assert (steps, models, counts) == (["baseline", "sample", "sample"], [baseline, model, model], [1, 5, 5])
    assert [request.sequential for request in requests] == [True, False, False]
    assert [request.rules.temperature for request in requests] == [0.0, 1.0, 1.0]
    assert len({request.rules.seed for request in requests}) == 3  # a round draws anew
