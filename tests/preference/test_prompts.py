"""Which prompts the preference stage answers, and which it holds out."""

import dataclasses
import json

import pytest

from configs import preference as preference_config
from pasta_jax.data.pairs import Pair, split_of
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import as_line
from pasta_jax.preference.stage import read_prompts
from pasta_jax.runs.settings import changed
from tests.annotate.test_form import plain
from tests.helpers.requires import requires_data


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Settings with prompts of six records, 1 and 4 of the validation split, and without evaluation sets."""
    records = [plain(f"It is {n} o'clock.", f"What time is it in town {n}?", str(9 - n)) for n in range(6)]
    split = {1: "validation", 4: "validation"}
    records = [dataclasses.replace(record, split=split.get(n, "train")) for n, record in enumerate(records)]
    (tmp_path / "records.jsonl").write_text("".join(as_line(record) + "\n" for record in records))
    monkeypatch.setattr("pasta_jax.data.sources.evaluation_prompts", set)
    prompts = {"records": str(tmp_path), "prompt_words": (1, 9), "response_words": (1, 9)}
    return lambda held_out: changed(preference_config.pasta(), prompts=prompts, evaluate={"count": held_out})


def test_held_out_prompts_are_those_that_supervised_training_held_out(chosen):
    prompts, held_out, _ = read_prompts(chosen(2))
    assert [pair.id for pair in prompts] == ["9", "7", "6", "4"]
    assert [pair.id for pair in held_out] == ["5", "8"]  # by their hash, not by their place
    assert prompts[0].source == "sharegpt"  # whose terms are on the card of what is trained
    with pytest.raises(PastaError, match=r"4 usable pairs to train on and 2 to validate, and 3 are"):
        read_prompts(chosen(3))


@requires_data
def test_the_packaged_instructions_suffice_for_the_variant_that_reads_them():
    prompts, held_out, _ = read_prompts(preference_config.smollm2_135m())
    assert (len(prompts), len(held_out)) == (967, 16)


def test_prompts_of_a_source_are_divided_by_their_hash(chosen, tmp_path, capsys):
    rows = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {2 * n}."} for n in [*range(300), 7]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_source = {"records": "", "source": str(tmp_path / "rows.jsonl")}
    prompts, held_out, _ = read_prompts(changed(chosen(3), prompts=of_source))
    assert {split_of(pair, 2) for pair in prompts} == {"train"}
    assert {split_of(pair, 2) for pair in held_out} == {"validation"}
    assert "pairs, left out: {'duplicate prompt': 1}\n" in capsys.readouterr().err


def test_prompts_of_a_file_are_the_same_however_its_path_is_spelled(chosen, tmp_path, monkeypatch):
    lines = "".join(json.dumps({"prompt": f"What is {n} plus {n}?"}) + "\n" for n in range(60))
    (tmp_path / "prompts.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    of_file = {"records": "", "prompt_words": (1, 9)}
    here, there = (
        read_prompts(changed(chosen(1), prompts=of_file | {"file": path}))
        for path in ("prompts.jsonl", str(tmp_path / "prompts.jsonl"))
    )
    assert here == there
    assert here[0][0].origin == "prompts.jsonl: line 1"


def test_what_teaching_has_chosen_is_learnt_from_whatever_is_installed_and_however_long_it_is(tmp_path, monkeypatch):
    """It dropped what is near an evaluation, if the sets were there; by now the model has learnt for hours."""

    def missing(name: str):
        raise PastaError(f"{name} is not installed")

    monkeypatch.setattr("pasta_jax.data.sources.packages.path", missing)
    texts = [f"Shorten text {n}: {'a word ' * length}" for n, length in enumerate((0, 300) * 20)] + ["Tips?"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    settings = changed(preference_config.taught(), prompts={"file": str(tmp_path / "prompts.jsonl")})
    prompts, _, _ = read_prompts(settings)
    assert [pair.instruction for pair in prompts] == [
        text for text in texts if split_of(Pair.of("", text, "", ""), 2) == "train"
    ]
    assert prompts[-1].instruction == "Tips?"
    with pytest.raises(PastaError, match="alpaca_eval is not installed"):
        read_prompts(changed(settings, prompts={"drop_evaluation": True}))
