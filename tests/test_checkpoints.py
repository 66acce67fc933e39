"""The adapters of checkpoints/: small enough for a repository, with a card that says what they are, for our base."""

import pytest

from pasta_jax.lang.structure import PREDICTED
from pasta_jax.weights import card
from pasta_jax.weights.source import ModelSource, load_with_adapter
from tests import ROOT
from tests.helpers.requires import requires_smollm2

ROOT = ROOT / "checkpoints"
ADAPTERS = sorted(path.parent for path in ROOT.glob("*/adapter_config.json"))
MAX_BYTES = 12 * 2**20


def test_there_are_models_that_fork_and_their_baseline():
    preferred = {"pasta_balanced", "pasta_lambda_1", "pasta_lambda_4", "pasta_lambda_inf", "pasta_parallel"}
    assert {"pasta", "pasta_sft", "baseline_sft", *preferred} == {path.name for path in ADAPTERS}


@pytest.mark.parametrize("folder", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_is_small_and_has_a_card(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) < MAX_BYTES
    training = card.read(folder)
    assert training is not None
    text = (folder / "README.md").read_text()
    for section in ("## Training", "## Figures", "## Limits"):
        assert section in text
    assert "/tmp" not in text
    assert '"/' not in text  # a path of the machine that trained it
    assert "no license is stated" in text  # the terms of what it was trained on


@requires_smollm2
@pytest.mark.parametrize("folder", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_belongs_to_the_packaged_base(folder):
    """Loading refuses an adapter whose base has other weights or another tokenizer."""
    source = ModelSource("smollm2_135m", "", str(folder), "", 40, "auto", True)
    base, adapter, about = load_with_adapter(source)
    assert base.positions == (None if folder.name == "baseline_sft" else PREDICTED)
    assert base.defaults.temperature == 0.6
    assert base.defaults.max_topic_words == 3
    assert base.defaults.distinct_topics
    assert about.rank == 16
    assert len(adapter["layers"]) == base.config.layers
