"""The adapters of checkpoints/: small enough for a repository, with a card that says what they are, for our base."""

import os
import subprocess
import sys

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.packages import CHECKPOINTS, checkpoint
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.weights import card
from pasta_jax.weights.drafter import FILE as DRAFTER
from tests import ROOT
from tests.helpers.requires import requires_qwen, requires_smollm2

MAX_BYTES, MAX_BYTES_OF_DRAFTER = 20 * 2**20, 12 * 2**20
OWN_ANSWERS = "qwen2_5_coder_1_5b"  # trained on nothing but its base's answers


def test_each_has_a_name():
    assert sorted(path.name for path in (ROOT / "checkpoints").iterdir()) == list(CHECKPOINTS)
    assert {checkpoint(name) for name in CHECKPOINTS} == {ROOT / "checkpoints" / name for name in CHECKPOINTS}


def test_a_missing_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_LIBRARY", tmp_path)
    with pytest.raises(PastaError, match=r"checkpoints/pasta: .*; clone .* reinstall the wheel"):
        checkpoint("pasta")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_an_adapter_is_small_and_has_a_card(name):
    folder = checkpoint(name)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes.pop(DRAFTER, 0) < MAX_BYTES_OF_DRAFTER
    assert sum(sizes.values()) < MAX_BYTES
    text = (folder / "README.md").read_text()
    assert text == card.text(card.read(folder))
    of_answers = "CC BY-NC 4.0" if name.startswith(OWN_ANSWERS) else "no license is stated"
    terms = ("license: apache-2.0",) if name == OWN_ANSWERS else ("license: other", of_answers)
    for part in (*terms, "## Training", "## Figures", "## Limits"):
        assert part in text
    assert "/tmp" not in text
    assert '"/' not in text  # a path of the machine that trained it


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *(pytest.param("smollm2_135m", name, marks=requires_smollm2) for name in ("baseline_sft", "pasta")),
        *(pytest.param(OWN_ANSWERS, name, marks=requires_qwen) for name in (OWN_ANSWERS, f"{OWN_ANSWERS}_preferred")),
    ],
)
def test_an_adapter_belongs_to_the_packaged_base(base, name):
    """Loading refuses an adapter whose base has other weights or another tokenizer."""
    script = (
        f"import pasta_jax as pasta; model = pasta.load_model({base!r}, {name!r}); own = model.defaults;"
        "print(model.positions, own.temperature, own.max_topic_words, own.distinct_topics)"
    )
    # In a process with one device, where weights in blocks stay so: in float32, the 1.5B model takes 15 GB.
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{None if name == 'baseline_sft' else PREDICTED} 0.6 3 True\n"
