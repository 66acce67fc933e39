"""Cards: what a reader of a written model is told, and completing it later."""

import dataclasses
import json

import pytest

from pasta_jax.data.sources import origin
from pasta_jax.errors import PastaError
from pasta_jax.judges.verdicts import TERMS
from pasta_jax.lang.structure import Positions
from pasta_jax.weights import card
from pasta_jax.weights.card import Card, Training
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import trained_on

TRAINING = Training(
    command="python -m launch.sft --config=configs/sft.py:smollm2_135m --workdir=runs/a",
    seed=7,
    data=(origin("sharegpt"), origin("mine.jsonl")),
    settings={"train": {"learning_rate": 0.001}},
    revision="abc123",
)
ADAPTER = Card("adapter", "smollm2_135m", Positions("constant", 9), 49_152, TRAINING, {"fork rate": 0.71234})


def test_a_card_states_base_positions_command_seed_settings_data_figures_and_limits(tmp_path):
    card.write(tmp_path, ADAPTER)
    text = (tmp_path / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    assert header.splitlines()[:3] == [
        "base_model: HuggingFaceTB/SmolLM2-135M-Instruct",
        "license: other",
        "library_name: peft",
    ]
    for words in (
        "`smollm2_135m`", "`constant 9`", TRAINING.command, "Seed 7", "abc123", '"learning_rate": 0.001',
        "answers by ChatGPT; no license is stated", "mine.jsonl: its terms are not recorded", "| fork rate | 0.7123 |",
        *card.LIMITS, card.ELSEWHERE,
    ):  # fmt: skip
        assert words in body


@pytest.mark.parametrize(
    ("sources", "license"),
    [
        (["alpaca_rows", "preferences"], "apache-2.0"),
        (["alpaca_rows", "sharegpt"], "other"),
        (["mine.jsonl"], "other"),
    ],
)
def test_the_base_s_license_covers_only_what_was_trained_on_data_of_stated_terms(sources, license):
    training = dataclasses.replace(TRAINING, data=tuple(map(origin, sources)))
    text = card.text(dataclasses.replace(ADAPTER, training=training))
    assert f"\nlicense: {license}\n" in text
    assert (card.CHECK_TERMS in text) == (license == "other")


def test_what_is_trained_from_other_weights_keeps_the_terms_of_their_data():
    training = dataclasses.replace(TRAINING, data=(*trained_on(ModelSource(adapter="pasta")), origin("alpaca_rows")))
    assert "license: other" in card.text(dataclasses.replace(ADAPTER, training=training))
    assert trained_on(ModelSource("smollm2_135m")) == ()


def test_what_a_judge_learnt_from_counts_too():
    judge = Card("judge", "smollm2_135m", None, 49_152, dataclasses.replace(TRAINING, data=(TERMS,)), limits=("A.",))
    text = card.text(judge)
    for words in ("license: other", "Reward model, from `smollm2_135m`", TERMS, "launch.judges", "- A."):
        assert words in text
    preferred = dataclasses.replace(TRAINING, data=(origin("alpaca_rows"), f"in the judge: {TERMS}"))
    assert "license: other" in card.text(dataclasses.replace(ADAPTER, training=preferred))


def test_the_snippet_for_peft_makes_room_for_the_tags():
    assert "model.resize_token_embeddings(49220, mean_resizing=False)" in card.text(ADAPTER)


@pytest.mark.parametrize(
    ("base", "source", "config", "theirs", "header"),
    [
        ("smollm2_135m", "", "smollm2_135m", card.HUB["smollm2_135m"][0], card.HUB["smollm2_135m"][0]),
        (
            "gemma_2b",
            "/m/g.gguf",
            "local --config.model.path=/m/g.gguf",
            card.HUB["gemma_2b"][0],
            card.HUB["gemma_2b"][0],
        ),
        ("Mine", "/m y/Mine", "local --config.model.path='/m y/Mine'", "/m y/Mine", None),
        ("Llama", "org/Llama", "local --config.model.path=org/Llama", "org/Llama", "org/Llama"),
    ],
)
def test_an_adapter_is_used_on_its_own_base(base, source, config, theirs, header):
    text = card.text(dataclasses.replace(ADAPTER, base=base, source=source))
    (command,) = (line for line in text.splitlines() if "launch.decode" in line)
    words = f"--config=configs/decode.py:{config} --config.model.adapter=FOLDER --prompt='Hi!'"
    assert command == f"python -m launch.decode {words}"
    assert f'from_pretrained("{theirs}")' in text
    assert (f"base_model: {header}\n" in text) if header else ("base_model" not in text)


def test_a_card_is_completed_later(tmp_path):
    card.write(tmp_path, ADAPTER)
    assert card.read(tmp_path) == ADAPTER
    card.write(tmp_path, dataclasses.replace(card.read(tmp_path), figures={"speedup": "1.4 (all), 1.6 (forked)"}))
    assert "| speedup | 1.4 (all), 1.6 (forked) |" in (tmp_path / "README.md").read_text()


def test_a_gguf_file_is_no_base_that_peft_finds():
    of_file = dataclasses.replace(ADAPTER, base="mine", source="/home/me/mine.gguf")
    assert of_file.base_for_peft == "mine"
    assert dataclasses.replace(of_file, source="me/mine").base_for_peft == "me/mine"


def test_a_model_without_tags_or_training_says_so():
    text = card.text(Card("model", "mine", None, 256))
    assert "answers sequentially" in text
    assert "## Training" not in text
    assert card.ELSEWHERE not in text
    assert "base_model" not in text


@pytest.mark.parametrize("content", [None, "[", json.dumps({"kind": "model"}), json.dumps({"kind": 3})])
def test_an_unreadable_card_is_refused_in_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / card.FIELDS).write_text(content)
    with pytest.raises(PastaError, match=r"card\.json: .*; (choose|export)") as caught:
        card.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_settings_name_no_folder_of_the_machine_and_no_infinity(tmp_path, monkeypatch):
    @dataclasses.dataclass
    class Settings:
        adapter: str
        elsewhere: str
        weight: float

    monkeypatch.chdir(tmp_path)
    settings = Settings(str(tmp_path / "checkpoints" / "a"), f"/data{tmp_path}/b", float("inf"))
    plain = {"adapter": "checkpoints/a", "elsewhere": f"/data{tmp_path}/b", "weight": "Infinity"}
    assert card.plain(settings) == plain
