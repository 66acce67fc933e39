"""The whole of teaching on a random model of another family: what it writes, and that a killed run ends the same."""

import dataclasses
import json
import operator
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from absl import flags
from safetensors.numpy import load_file

import configs.teach
import pasta_jax as pasta
from pasta_jax.answer.prompts import read_prompts_file
from pasta_jax.command.configs import load as load_config
from pasta_jax.command.flags import config_named, parse
from pasta_jax.data import sources
from pasta_jax.data.prompt_sets import no_fork
from pasta_jax.errors import PastaError
from pasta_jax.files.workdir import claim
from pasta_jax.models.transformer import causal, trunk
from pasta_jax.runs.settings import changed, read
from pasta_jax.teaching import plan, prompts, run
from pasta_jax.teaching import stages as of_stages
from pasta_jax.teaching.settings import PromptsSettings
from pasta_jax.teaching.stages import stages
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights import card
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load
from tests import ROOT
from tests.helpers.families import VARIANTS
from tests.helpers.forked import Forked, command
from tests.helpers.models import QWEN2, random_params

TOKENIZER = toy_tokenizer()
CONFIG = dataclasses.replace(QWEN2, vocab=TOKENIZER.model_vocab)
QUESTIONS = [f"Name {number} things." for number in range(2, 14)]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's model that ends its turn often, and their prompts."""
    folder = tmp_path_factory.mktemp("teach")
    params = random_params(CONFIG, 5)
    ids = np.asarray([TOKENIZER.chat([("user", QUESTIONS[0])])])
    place = np.arange(ids.shape[1])[None]
    hidden_E = np.asarray(trunk(params, CONFIG, ids, place, causal(place), place)[0])[0].mean(0)
    params["head"][TOKENIZER.end_of_turn] = 6 * hidden_E / np.sum(hidden_E**2)
    export_model(Model("mine", CONFIG, jax.device_put(params), TOKENIZER), folder / "mine")
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in QUESTIONS)
    (folder / "mine.jsonl").write_text(lines)
    return folder


def start(folder: Path, workdir: str) -> Forked:
    named = f"--config.model.path={folder / 'mine'}", f"--config.prompts.file={folder / 'mine.jsonl'}"
    named += ("--config.answers.samples=2",)
    return command(folder, "teach", "--config=configs/teach.py:tiny", *named, f"--workdir={folder / workdir}")


def rows(path: Path) -> list[dict]:
    return [*map(json.loads, path.read_text().splitlines())]


@pytest.fixture(scope="module")
def whole(folder) -> tuple[Path, str]:
    """The folder of an uninterrupted run, and what it printed."""
    return folder / "whole", start(folder, "whole").finish()


@pytest.mark.slow
def test_one_command_leads_from_prompts_to_an_adapter_and_a_page(folder, whole):
    workdir, printed = whole
    trained, held_out = (
        [row["prompt"] for row in rows(workdir / name)] for name in ("prompts.jsonl", "held_out.jsonl")
    )
    assert sorted(trained + held_out) == sorted(QUESTIONS)
    assert (workdir / "evaluation/report.html").is_file()
    assert (workdir / "side_by_side.md").read_text().count("**As it was**") == len(held_out) == 2
    source = ModelSource(path=str(folder / "mine"), adapter=str(workdir / "sft/adapter"))
    assert load(source, only_decoding=True).positions is not None
    [data] = card.read(workdir / "sft/adapter").training.data
    assert data == "answers of mine, under the terms of that model"
    again = start(folder, "whole")
    assert again.finish().partition("adapter:")[2] == printed.partition("adapter:")[2]
    assert again.errors().count("done before") == 5
    answered = [[row["text"] for row in rows(workdir / name)] for name in ("answers.jsonl", "answers-1.jsonl")]
    assert sum(map(operator.ne, *answered)) > len(trained) / 2
    complete = [row["text"] for row in rows(workdir / "complete.jsonl")]
    assert len(complete) > len(trained) / 2
    assert {*complete} <= {*answered[0], *answered[1]}
    reasons = [row["reason"] for row in rows(workdir / "records/refused.jsonl")]
    assert "duplicate prompt" not in " ".join(reasons)


@pytest.mark.slow
def test_each_stage_is_the_command_that_is_printed(folder, whole, monkeypatch):
    """Its words say the settings that the stage has here."""
    monkeypatch.setattr(of_stages, "sharing_rows", lambda _: 1)  # there, one device
    workdir, printed = whole
    named = {"model.path": str(folder / "mine"), "prompts.file": str(folder / "mine.jsonl"), "answers.samples": 2}
    commands = [words for words in map(shlex.split, printed.splitlines()) if words[:2] == ["python", "-m"]]
    scripts = ["decode", "decode", "annotate", "sft", "evaluate"]
    assert [words[2] for words in commands] == [f"launch.{script}" for script in scripts]
    for stage, words in zip(stages(changed(configs.teach.tiny(), **named), workdir), commands, strict=True):
        name, rest = config_named(words[2:], "")
        values = flags.FlagValues()
        for flag in stage.flags:
            flags.DEFINE_string(flag, None, "", flag_values=values)
            assert f'"{flag}",' in (ROOT / f"launch/{stage.script}.py").read_text()
        others, config = parse(values, rest, load_config(name, ROOT)[1])
        settings = stage.settings()
        assert read(config, type(settings)) == settings
        assert ({flag: values[flag].value for flag in stage.flags}, others[1:]) == (
            {flag: str(value) for flag, value in stage.flags.items()},
            [],
        )


@pytest.mark.slow
def test_a_preference_round_starts_from_the_adapter_and_the_evaluation_then_reads_its_own(folder, whole):
    workdir, _ = whole
    settings = changed(
        configs.teach.tiny(), preference_rounds=1, model=dict(path=str(folder / "mine")), training=dict(lengths=(256,))
    )
    before, [stage, evaluation] = load_file(workdir / "sft/adapter" / WEIGHTS), stages(settings, workdir)[-2:]
    assert (stage.name, evaluation.changes["model.adapter"]) == ("preference", str(workdir / "preference/adapter"))
    assert run.adapter_of(settings, workdir) == workdir / "preference/adapter"
    assert [one.gib > 0 for one in plan.estimate(settings, workdir) if one.stage.name == "preference"] == [True]
    command(folder, "preference", *shlex.split(stage.command)[3:]).finish()
    after = load_file(stage.done)
    assert after.keys() == before.keys()
    assert any((after[name] != before[name]).any() for name in before)
    assert "judged by checked" in card.read(stage.done.parent).training.data[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "places",
    [
        ("step",),
        pytest.param(("answers\n", "records\n", "training\n", "evaluation\n"), marks=pytest.mark.extended),
    ],
)
def test_a_run_killed_in_every_stage_ends_with_the_same_adapter(folder, whole, places):
    killed = f"killed{len(places)}"
    process = start(folder, killed)
    process.wait(lambda: "answers\n" in process.errors())
    process.send_signal(signal.SIGINT)  # ends a stage that keeps its answers as it goes, and not after hours
    process.finish(130)
    assert not (folder / killed / "answers.jsonl").exists()
    for place in places:
        process, metrics = start(folder, killed), folder / killed / "sft/metrics.jsonl"
        while not (metrics.exists() and metrics.read_text() if place == "step" else place in process.errors()):
            assert process.poll() is None, process.errors()
        process.kill()
    start(folder, killed).finish()
    ours, theirs = (load_file(folder / name / "sft/adapter" / WEIGHTS) for name in (killed, "whole"))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("held_out", [20, 28])  # of 228 prompts, each eighth: whichever these are, all of one kind
def test_prompts_are_chosen_evenly_and_none_is_one_of_an_evaluation(folder, held_out):
    reserved = no_fork()[0]
    rows = [*(f"List {n} birds." for n in range(300)), *(f"Who was king {n}?" for n in range(300)), reserved]
    (folder / "many.jsonl").write_text("".join(json.dumps({"instruction": text}) + "\n" for text in rows))
    settings = PromptsSettings(file=str(folder / "many.jsonl"), count=200, held_out=held_out, parts=0.75)
    chosen = prompts.choose(settings)
    assert (len(chosen.train), len(chosen.held_out)) == (200, held_out)
    assert not {*chosen.train} & {*chosen.held_out}
    assert reserved not in chosen.train + chosen.held_out
    assert {reason: count for reason, count in chosen.left_out.items() if count} == {
        "like one of an evaluation set": 1,
        "beyond config.prompts.count": 400 - held_out,
    }
    for part in (chosen.train[:40], chosen.train, chosen.held_out):
        assert sum(text.startswith("List") for text in part) == pytest.approx(0.75 * len(part), abs=3)
    assert prompts.choose(settings) == chosen


def test_prompts_that_differ_in_case_alone_are_one_and_each_set_that_is_there_is_reserved(folder, monkeypatch):
    rows = [{"prompt": f"{word} is king {n}?{end}"} for n in range(30) for word, end in (("Who", ""), ("who", " "))]
    monkeypatch.setattr(prompts, "_is_there", lambda name: name == "mt_bench")
    reserved = [{"instruction": "Who is the king number seven?", "output": "Nobody."}]
    monkeypatch.setattr(sources, "rows_of", lambda name: [(name, row) for row in reserved])
    path = folder / "twice.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "who is the King number seven"}]))
    chosen = prompts.choose(PromptsSettings(file=str(path), count=200, held_out=7))
    assert sorted(chosen.train + chosen.held_out) == sorted(f"Who is king {n}?" for n in range(30))
    assert len(chosen.held_out) == 7


def test_prompts_that_differ_in_punctuation_alone_are_one(folder):
    rows = [{"prompt": f"List {n} tips for saving water{end}"} for n in range(30) for end in (".", "", " !")]
    path = folder / "thrice.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "?"}, {"prompt": "!"}]))
    chosen = prompts.choose(PromptsSettings(file=str(path), count=200, held_out=7))
    assert sorted(chosen.train + chosen.held_out) == sorted(["!", "?", *(row["prompt"] for row in rows[::3])])
    assert chosen.left_out["the same words as another"] == 60


def test_what_is_left_out_of_a_file_is_told(folder, capsys):
    path = folder / "told.jsonl"
    texts = [*QUESTIONS, QUESTIONS[0].upper(), no_fork()[3], "Name things. " * 200]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    settings = changed(configs.teach.tiny(), **{"model.path": str(folder / "mine"), "prompts.file": str(path)})
    run.choose_prompts(settings)
    told = (
        "10 prompts to learn from, 2 to evaluate on; left out: without ids, or too long for config.training.lengths: "
    )
    assert f"{told}1, like one of an evaluation set: 1, the same words as another: 1\n" in capsys.readouterr().err
    assert plan.counts(settings, folder / "new") == (10, 2)


def test_other_prompts_in_the_same_file_are_refused_when_a_run_goes_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "stages", lambda *_: [])
    path, workdir = tmp_path / "mine.jsonl", tmp_path / "run"
    settings = changed(configs.teach.tiny(), **{"model.path": str(folder / "mine"), "prompts.file": str(path)})
    path.write_text((folder / "mine.jsonl").read_text())
    for _ in range(2):
        run.run(settings, workdir)
    path.write_text(path.read_text().replace("Name", "Describe"))
    with pytest.raises(PastaError, match=r"mine\.jsonl: .* was started with other prompts; use another workdir"):
        run.run(settings, workdir)
    path.unlink()  # the choice is in the workdir
    run.run(settings, workdir)


def test_what_cannot_be_taught_is_refused_before_the_work(folder, tmp_path, monkeypatch):
    for changes, message in (
        ({"model.path": str(tmp_path / "none")}, "none: not found; use a GGUF file, a folder"),
        ({"model.path": ""}, "no model named"),
        (
            {"model.path": str(folder / "mine"), "prompts.file": str(tmp_path / "none.jsonl")},
            "none.jsonl: No such file",
        ),
        (
            {"model.path": str(folder / "mine"), "answers.samples": 2, "answers.temperature": None},
            r"config\.answers\.samples: at temperature 0",
        ),
        ({"model.path": str(folder / "mine"), "model.adapter": "pasta"}, r"config\.model\.adapter: the stages don't"),
        ({"model.preset": "smollm2"}, "unknown model preset 'smollm2'; choose one of gemma_7b, "),
        ({"training.epochs": 1}, r"config\.training: set either steps or epochs, and the other to 0"),
        ({"training.lengths": (512, 256)}, r"lengths \(512, 256\): must be one or more ascending numbers"),
        ({"training.adapter.rank": 0}, r"config\.training\.adapter\.rank 0: what is taught is an adapter"),
        ({"training.adapter.alpha": 0.0}, r"config\.training\.adapter alpha 0: its pairs would learn nothing"),
    ):
        with pytest.raises(PastaError, match=message):
            plan.estimate(changed(configs.teach.tiny(), **changes), tmp_path)
    named = {"model.path": str(folder / "mine"), "prompts.file": str(folder / "mine.jsonl")}
    with pytest.raises(PastaError, match=r"config\.prompts: of 12 none is held out to evaluate with"):
        run.run(changed(configs.teach.tiny(), **named, **{"prompts.held_out": 0}), tmp_path)
    with pytest.raises(PastaError, match=r"config\.prompts\.sources: alpaca: unknown; choose from sharegpt, "):
        run.choose_prompts(changed(configs.teach.tiny(), **named | {"prompts.file": "", "prompts.sources": "alpaca"}))
    monkeypatch.setattr(of_stages, "config_of", lambda _: VARIANTS["qwen3_moe"])
    with pytest.raises(PastaError, match=r"config\.training\.adapter targets gate_up, down: matrices of experts"):
        run.run(changed(configs.teach.tiny(), **named), tmp_path)
    assert not (tmp_path / "config.json").exists()  # other settings are still accepted


def test_a_later_round_of_preferences_without_pairs_ends_them_and_not_the_teaching(folder, tmp_path, monkeypatch):
    """Its first round has left an adapter, with which the next start went on."""
    settings = changed(configs.teach.tiny(), preference_rounds=2, model=dict(path=str(folder / "mine")))
    [stage] = [one for one in stages(settings, tmp_path) if one.script == "preference"]
    monkeypatch.setattr(run.preference, "run", lambda *_: SimpleNamespace(no_pairs="all are alike"))
    with pytest.raises(PastaError, match="all are alike; or teach without preference_rounds"):
        run.perform(stage, None)
    stage.done.parent.mkdir(parents=True)
    stage.done.touch()
    assert run.perform(stage, None)


def test_the_plan_counts_what_is_left(folder, tmp_path):
    settings = changed(configs.teach.qwen(), **{"prompts.file": str(folder / "mine.jsonl")})
    found = {one.stage.name: one for one in plan.estimate(settings, tmp_path)}
    assert [*found] == ["answers", "records", "training", "evaluation"]
    assert [found[name].stage.settings().model.bits for name in found] == [8, 16, 16, 8]  # only decoding rounds inputs
    assert found["answers"].tokens == (12 - 3) * 0.5 * 350  # of 12, a quarter is held out
    assert found["evaluation"].tokens == 3 * 3 * 0.5 * 350
    assert 5 < found["training"].gib < 10
    assert 1 < found["answers"].gib < 4
    (tmp_path / "answers.jsonl").write_text("")
    done = {one.stage.name: one.hours for one in plan.estimate(settings, tmp_path)}
    assert done["answers"] == 0 < done["training"]


def test_the_function_reads_texts_as_prompts_and_refuses_blank_ones(folder, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "run", lambda *one, given: asked.extend((*one, given)) or one[1] / "adapter")
    assert pasta.teach(folder / "mine", QUESTIONS, tmp_path, **{"training.steps": 3}) == tmp_path / "adapter"
    settings, workdir, lines = asked
    assert (settings.model.path, settings.training.steps, workdir) == (str(folder / "mine"), 3, tmp_path)
    assert [json.loads(line)["prompt"] for line in lines.splitlines()] == QUESTIONS
    for model, place, message in (({}, tmp_path, "model dict: expected a preset"), ("x", None, "workdir None")):
        with pytest.raises(PastaError, match=message):
            pasta.teach(model, QUESTIONS, place)
    for texts, message in (([" "], "not blank"), ([], "at least one"), (5, "must be texts"), (["\ud83d"], "Unicode")):
        with pytest.raises(PastaError, match=message):
            pasta.teach("smollm2_135m", texts, tmp_path)
    with pytest.raises(PastaError, match=r"training\.unknown"):
        pasta.teach(folder / "mine", QUESTIONS, tmp_path / "new", **{"training.unknown": 3})
    assert not (tmp_path / "new").exists()


def test_more_prompts_are_accepted_where_too_few_were_refused(folder, tmp_path, monkeypatch):
    """As the refusal asks for."""
    monkeypatch.setattr(run, "stages", lambda *_: [])
    with pytest.raises(PastaError, match="of 2 none is held out to evaluate with; name more prompts"):
        pasta.teach(folder / "mine", QUESTIONS[:2], tmp_path)
    pasta.teach(folder / "mine", QUESTIONS, tmp_path)
    with pytest.raises(PastaError, match="was started with other prompts"):
        pasta.teach(folder / "mine", QUESTIONS[1:], tmp_path)
    assert len(read_prompts_file(tmp_path / "given.jsonl")) == len(QUESTIONS)
    (tmp_path / "prompts.jsonl").unlink()  # another process chooses from them now
    with claim(tmp_path), pytest.raises(PastaError, match="in use by process"):
        pasta.teach(folder / "mine", QUESTIONS[1:], tmp_path)
    assert len(read_prompts_file(tmp_path / "given.jsonl")) == len(QUESTIONS)


def test_what_is_compared_later_is_what_was_chosen_from(folder, tmp_path, monkeypatch):
    """Though the file changes in between."""
    monkeypatch.setattr(run, "stages", lambda *_: [])
    path, choose = tmp_path / "mine.jsonl", prompts.choose
    path.write_text((folder / "mine.jsonl").read_text())
    named = {"model.path": str(folder / "mine"), "prompts.file": str(path)}
    monkeypatch.setattr(prompts, "choose", lambda *given: (choose(*given), path.write_text('{"prompt": "x"}\n'))[0])
    run.run(changed(configs.teach.tiny(), **named), tmp_path / "run")
    with pytest.raises(PastaError, match="was started with other prompts"):
        run.run(changed(configs.teach.tiny(), **named), tmp_path / "run")


def test_trainings_whose_rows_devices_cannot_share_take_one_of_them(tmp_path):
    """They would be refused after all answers were written; which devices train is free to change later."""
    for rows, expected in ((2, 1), (16, 0)):
        settings = changed(configs.teach.tiny(), preference_rounds=1, training=dict(rows=rows), model=dict(path="x"))
        found = {stage.name: stage for stage in stages(settings, tmp_path)}
        assert found["training"].settings().mesh.data == expected
        assert ("--config.mesh.data=1" in found["training"].command) == (expected == 1)
        assert found["preference"].settings().mesh.data == 1  # of 2 rows
        assert "mesh.data" not in found["evaluation"].changes
