"""The preference stage: all steps, stopped in training, with another quality weight, with adapters, swept."""

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import preference as preference_config
from pasta_jax.errors import PastaError
from pasta_jax.files.workdir import claim
from pasta_jax.lang.structure import Positions
from pasta_jax.preference import learn, report, sweep
from pasta_jax.preference import run as pipeline
from pasta_jax.preference.artifacts import Artifact
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.loss import best_of_n_margin
from pasta_jax.preference.pair import NoPairs, PromptPair, say_lead
from pasta_jax.preference.report import RunReport, realised
from pasta_jax.preference.sample import Answers, decode_inputs, template
from pasta_jax.preference.settings import PreferenceSettings, SweepSettings
from pasta_jax.preference.stage import RoundModel, open_stage
from pasta_jax.runs import ray
from pasta_jax.runs.settings import changed
from pasta_jax.train.fit import unwatched
from pasta_jax.train.loss import log_probabilities
from pasta_jax.train.trainable import scoring
from pasta_jax.weights.adapter import describe, merge, new_adapter, save_adapter
from pasta_jax.weights.load import export_model
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.settings import AdapterSettings
from tests.helpers.loading import load_model
from tests.helpers.models import BABBLING, babbler

pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("preference")


@pytest.fixture(scope="module")
def config(folder) -> PreferenceSettings:
    """The tiny variant, from a random model that forks, closes and stops often."""
    export_model(babbler(), folder / "model")
    model = {"path": str(folder / "model")}
    return changed(
        preference_config.tiny(),
        model=model,
        baseline=model,
        mesh={"data": 1},  # other tests cover meshes, which would only slow these down
        **BABBLING,
    )


@pytest.fixture(scope="module")
def whole(config, folder) -> RunReport:
    """An uninterrupted run."""
    return pipeline.run(config, folder / "whole")


def weights(workdir: Path) -> bytes:
    return (workdir / "model/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_leaves_a_model_a_report_and_a_file_per_step(whole, folder):
    assert [(row.model, row.kind, row.round) for row in whole.rows] == [
        ("Baseline-SFT", "baseline", 0),
        ("Pasta-SFT", "sft", 0),
        ("round 1", "round", 1),
    ]
    assert [row.temperature for row in whole.rows] == [0.0, 1.0, 1.0]
    assert json.loads((folder / "whole/report.json").read_text()) == whole.fields()
    quality_alone = dataclasses.replace(whole, quality_weight=float("inf"))
    assert json.loads(json.dumps(quality_alone.fields(), allow_nan=False))["quality_weight"] == "inf"
    assert len(whole.table().splitlines()) == 4
    assert whole.rows[1].fingerprint != whole.rows[2].fingerprint
    assert weights(folder / "whole") != (folder / "model/model.safetensors").read_bytes()
    steps = {path.name.rpartition("-")[0] for path in (folder / "whole/artifacts").iterdir()}
    assert steps == {"baseline", "sample", "score", "pair", "reference", "train", "answer", "evaluate"}


@pytest.mark.extended
def test_workers_of_ray_sample_what_this_process_does(config, whole, folder, monkeypatch):
    """Pieces go to workers as bytes, and come back in any order; a lost worker's are an error."""
    other = changed(config, executor="ray")
    sizes = []

    def on_ray(cluster, compute, pieces):
        for number, piece in reversed([*enumerate(pieces)]):
            sizes.append(len(piece.prompts))
            yield number, compute(pickle.loads(pickle.dumps(piece)))

    monkeypatch.setattr(pipeline, "connected", lambda cluster: contextlib.nullcontext())
    monkeypatch.setattr(ray, "on_ray", on_ray)
    assert pipeline.run(other, folder / "ray") == whole
    assert set(sizes) == {1, 2}  # three answers to each prompt to sample from, and a block of two to compare
    for path in (folder / "whole/artifacts").glob("*.jsonl"):
        assert (folder / "ray/artifacts" / path.name).read_bytes() == path.read_bytes(), path.name

    monkeypatch.setattr(ray, "on_ray", lambda *_: iter([(0, PastaError("its worker was lost"))]))
    with pytest.raises(PastaError, match=r"^its worker was lost$"):
        pipeline.run(other, folder / "lost")


@pytest.mark.parametrize(("whole", "message"), [(True, "sample more"), (False, "all were cut off: raise")])
def test_prompts_without_pairs_are_an_error_that_says_why(whole, message):
    samples = Artifact(Path(), [Answers(0, (Candidate((), "", 0, 0, 0, whole, whole),))], "")
    with pytest.raises(NoPairs, match=f"^no prompt has a better and a worse answer; {message}"):
        say_lead(None, samples, Artifact(Path(), [PromptPair(0, None, None, (), (), ())], ""))


def test_a_judge_without_verdicts_is_why_there_are_no_pairs():
    samples = Artifact(Path(), [Answers(0, (Candidate((), "", 0, 0, 0, True, True),))], "")
    unjudged = PromptPair(0, None, None, (1.0,), (None,), (None,))
    with pytest.raises(NoPairs, match="the judge gave no verdict that can be read: choose another"):
        say_lead(None, samples, Artifact(Path(), [unjudged], ""))


@pytest.mark.slow
def test_a_run_without_pairs_reports_what_it_measured_and_writes_no_model(config, whole, folder, monkeypatch):
    def no_pairs(*_):
        raise NoPairs("nothing to learn")

    monkeypatch.setattr(pipeline, "pair", no_pairs)
    chosen = changed(config, artifacts=str(folder / "whole/artifacts"))
    expected = dataclasses.replace(whole, rows=whole.rows[:2], no_pairs="nothing to learn")
    assert pipeline.run(chosen, folder / "unpaired") == expected
    assert [path.name for path in (folder / "unpaired").iterdir()] == ["report.json"]


@pytest.mark.slow
def test_an_adapter_is_trained_beside_frozen_weights(config, folder):
    adapter = {"rank": 2, "alpha": 4.0}
    other = changed(config, adapter=adapter, rounds=2, artifacts=str(folder / "whole/artifacts"))
    report = pipeline.run(other, folder / "adapter")
    assert [row.model for row in report.rows[2:]] == ["round 1", "round 2"]
    assert (folder / "adapter/adapter/adapter_model.safetensors").exists()


@pytest.mark.slow
def test_a_run_stopped_in_training_ends_with_the_same_bits(config, whole, folder):
    """Stopped after an update, the run returns nothing; the same call trains the rest."""

    @contextlib.contextmanager
    def after_one_update():
        calls = iter(range(100))
        yield lambda: next(calls) > 0

    artifacts, workdir = folder / "stopped_artifacts", folder / "stopped"
    before_training = shutil.ignore_patterns("train-*", "answer-*", "evaluate-*")
    shutil.copytree(folder / "whole/artifacts", artifacts, ignore=before_training)
    chosen = changed(config, artifacts=str(artifacts))
    assert pipeline.run(chosen, workdir, after_one_update) is None
    assert list(workdir.iterdir()) == []
    assert pipeline.run(chosen, workdir) == whole
    assert weights(workdir) == weights(folder / "whole")
    for path in artifacts.glob("*.jsonl"):
        assert (folder / "whole/artifacts" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_folder_in_use_or_not_writable_is_refused(config, tmp_path):
    with claim(tmp_path):
        for call in (lambda: pipeline.run(config, tmp_path), lambda: sweep.run(SweepSettings(config), tmp_path)):
            with pytest.raises(PastaError, match=f"in use by process {os.getpid()} on "):
                call()
    (tmp_path / "file").write_text("")
    with pytest.raises(PastaError, match="file: is a file; choose a folder"):
        pipeline.run(config, tmp_path / "file")
    other = changed(config, artifacts=str(tmp_path / "file"))
    with pytest.raises(PastaError, match=r"file: File exists; set --config.artifacts to a writable folder"):
        pipeline.run(other, tmp_path / "run")


def test_an_adapter_file_is_merged_or_trained_further(config, folder):
    base = load_model("", config.model.path, jnp.float32)
    adapter = AdapterSettings(rank=2, alpha=4.0)
    params = jax.tree.map(lambda leaf: leaf + 0.01, new_adapter(base.params, adapter, base.tokenizer.tags, seed=0))
    save_adapter(folder / "adapter", params, base, describe(base, adapter, Positions("shared_start")))
    merged = merge(base.params, params, base.tokenizer.tags)

    path = {"adapter": str(folder / "adapter")}
    other = changed(config, model=path, baseline=path)
    stage = open_stage(other, folder / "unused")
    for model in (stage.sft, stage.baseline, stage.trainable.model):
        assert model.positions.policy == "shared_start"
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), model.params, merged)
    assert stage.trainable.frozen is None

    stage = open_stage(changed(other, adapter={"rank": 2, "alpha": 4.0}), folder / "unused")
    jax.tree.map(np.testing.assert_array_equal, stage.trainable.params, params)
    jax.tree.map(np.testing.assert_array_equal, stage.trainable.frozen, base.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stage.sft.params, merged)


def test_steps_depend_on_the_models_positions(config, folder):
    """A model trained with other positions gets other answers and pairs."""
    stage = open_stage(config, folder / "unused")
    moved = dataclasses.replace(stage.sft, positions=Positions("constant", 7))
    request = template(stage, 1.0, seed=0, sequential=False)
    assert decode_inputs(stage, stage.sft, stage.prompts, request)["positions"]["policy"] == "predicted"
    assert decode_inputs(stage, moved, stage.prompts, request)["positions"] == {"policy": "constant", "constant": 7}

    problem = next(problem for problem in stage.problems.values() if "<async" in problem.annotation)
    tokenizer = stage.sft.tokenizer
    forked = Candidate(tuple(problem.program(tokenizer).ids(tokenizer)), "", 0, 0, 0, True, True)
    samples = Artifact(folder, [Answers(0, (forked, forked))], "")
    pairs = Artifact(folder, [PromptPair(0, 0, 1, (), (), ())], "")
    [here], [there] = (
        learn.encode_pairs(dataclasses.replace(stage, sft=model), samples, pairs).values()
        for model in (stage.sft, moved)
    )
    assert here.better.token.tolist() == there.better.token.tolist()
    assert here.better.position.tolist() != there.better.position.tolist()


def test_a_later_round_learns_relative_to_pasta_sft_and_with_the_margin_of_its_samples(config, folder, monkeypatch):
    """The model that the round starts from is another one by then."""
    stage, asked = open_stage(config, folder / "unused"), {}
    monkeypatch.setattr(learn, "preference_loss", lambda scoring, loss, grammar: asked.setdefault("loss", loss))
    monkeypatch.setattr(learn, "fit", lambda **run: asked.update(run) or SimpleNamespace(complete=False))
    answers = [Candidate((id,), "", 1, 1, 0, True, True) for id in stage.sft.tokenizer.encode("17")]
    samples = Artifact(folder, [Answers(0, tuple(answers))], "")
    pairs = Artifact(folder, [PromptPair(0, 0, 1, (), (), ())], "")
    start = RoundModel(1, jax.tree.map(lambda leaf: 1.5 * leaf, stage.trainable.params), "")
    assert learn.learn(stage, start, "", None, samples, pairs, unwatched) is None
    with monkeypatch.context() as ended:  # a signal in the last step
        ended.setattr(learn, "fit", lambda **run: SimpleNamespace(complete=True))
        signalled = contextlib.nullcontext(lambda: True)
        assert learn.learn(stage, start, "", None, samples, pairs, lambda: signalled) is None
    assert asked["loss"].margin == best_of_n_margin(config.sample.count) == 3.0
    batch, form = asked["run"].batch(0, 0), scoring(config.train, stage.sft)
    logs = jax.jit(lambda params, side: log_probabilities(form, params, side)[0])
    for side, reference in ((batch.better, batch.reference_better), (batch.worse, batch.reference_worse)):
        assert float(reference[0]) == pytest.approx(float(logs(stage.sft.params, side)), rel=1e-4)
        assert abs(reference[0] - logs(start.params, side)) > 0.1


@pytest.mark.slow
def test_a_sweep_ends_in_a_table_and_a_plot(config, whole, folder):
    """Another quality weight reuses samples and verdicts."""
    base = changed(config, artifacts=str(folder / "whole/artifacts"))
    before = {path.name for path in (folder / "whole/artifacts").iterdir()}
    results = sweep.run(SweepSettings(base, choices=((2.0, 8.0),)), folder / "sweep")
    new = {path.name.partition("-")[0] for path in (folder / "whole/artifacts").iterdir() if path.name not in before}
    assert not new & {"sample", "score", "baseline"}
    assert new >= {"pair", "train"}
    written = json.loads((folder / "sweep/results.json").read_text())
    assert written == results.fields()
    assert [row["model"] for row in written["rows"]] == [
        "Baseline-SFT",
        "Pasta-SFT",
        "quality_weight=2.0",
        "quality_weight=8.0",
    ]
    assert results.runs[0].report == whole
    plot = (folder / "sweep/pareto.svg").read_text()
    assert all(f"<title>{name}: " in plot for name in ("Pasta-SFT", "λ=2", "λ=8"))
    assert "quality_weight=8.0" in (folder / "sweep/results.md").read_text()
    assert "| Pasta-SFT |" in (folder / "sweep/results.md").read_text()


def test_samples_are_of_the_models_own_distribution(config, folder):
    stage = open_stage(config, folder / "unused")
    own = Defaults(top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.1, fork_bias=3.0)
    request = template(dataclasses.replace(stage, sft=dataclasses.replace(stage.sft, defaults=own)), 1.0, 0, False)
    rules = request.rules
    assert (rules.top_k, rules.top_p, rules.min_p, rules.repetition_penalty) == (0, 1.0, 0.0, 1.0)
    assert rules.fork_bias == 0.0


def test_realised_speedup_does_not_depend_on_the_machines_drift(config, folder, monkeypatch):
    """The model takes two fifths of the baseline's time however slow the machine is; the first round compiles."""
    calls = []

    def generate(model, requests, decoding):
        assert decoding.lanes == 1
        slowness = (100, 2, 5, 11)[len(calls) // 2]
        calls.append(requests[0].sequential)
        ms = slowness * (10.0 if requests[0].sequential else 4.0)
        return [SimpleNamespace(trace=SimpleNamespace(rounds=((0, 1.0), (9, ms * (n + 1))))) for n in range(2)]

    monkeypatch.setattr(report, "generate", generate)
    stage = open_stage(changed(config, evaluate={"timed": 2}), folder / "timed")
    request = template(stage, 1.0, seed=0, sequential=False)
    assert realised(stage, stage.baseline, "answers", request) == 2.5
    assert calls == [True, False] * 4
    assert realised(stage, stage.baseline, "answers", request) == 2.5, "read from its file"
    assert len(calls) == 8
    monkeypatch.setattr(report.platform, "machine", lambda: "another")
    with pytest.raises(IndexError):  # timed again
        realised(stage, stage.baseline, "answers", request)


@pytest.mark.slow
def test_prompts_of_a_file_are_judged_beside_the_baselines_answer_alone(config, folder, monkeypatch):
    monkeypatch.setattr("pasta_jax.data.sources.evaluation_prompts", set)
    lines = [{"prompt": f"What is {n} plus {n}?"} for n in range(60)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    of_file = {"toy": "", "file": str(folder / "prompts.jsonl"), "count": 4}
    judge = {"kind": "checked", "checked": {"checks": {"weights": {"fluency": 0.0, "fit": 0.0}}}}
    settings = changed(config, prompts=of_file, judge=judge, evaluate={"count": 1}, rounds=1)
    pipeline.run(settings, folder / "of_file")
    [scores] = (folder / "of_file/artifacts").glob("score-*.jsonl")
    verdicts = [json.loads(line)["verdicts"] for line in scores.read_text().splitlines()[1:]]
    assert [{len(answer) for answer in of_prompt} for of_prompt in verdicts] == [{2}] * 4  # in both orders


def test_runs_that_share_artifacts_cache_verdicts_in_files_of_their_own(config, folder, monkeypatch):
    monkeypatch.setattr("pasta_jax.preference.stage.read_prompts", lambda _: ((), (), {}))
    judge = {"kind": "llm", "endpoint": {"url": "http://127.0.0.1:1", "key_variable": ""}}
    shared = changed(config, judge=judge, prompts={"toy": "", "file": "x"}, artifacts=str(folder / "shared"))
    for run in "ab":
        with open_stage(shared, folder / run).judge.client:
            pass
    assert len([*(folder / "shared").glob("judge_cache-*.jsonl")]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge": {"kind": "oracle"}}, r"config\.judge\.kind: unknown value 'oracle'; choose from "),
        ({"judge": {"kind": "repetition"}}, "toy judges"),
        ({"prompts": {"source": "alpaca_rows"}}, "set one of toy"),
        ({"prompts": {"toy_seed": 0}}, "held out"),
        ({"model": {"path": ""}}, r"config\.model\.path"),
        ({"model": {"policy": "constant"}}, "constant"),
        ({"mesh": {"data": 0}, "train": {"rows": 12}}, "a batch of 12 rows doesn't divide over the 8 devices"),
        ({"decoding": {"draft": "drafter"}}, "a model in training has none"),
        (
            {"model": {"dtype": "bfloat16"}, "adapter": {"rank": 2, "alpha": 4.0}},
            "can't be decoded with in training; set it to auto",
        ),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_sampled(config, folder, changes, message):
    with pytest.raises(PastaError, match=message):
        open_stage(changed(config, **changes), folder / "refused")
