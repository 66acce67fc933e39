"""Preference optimisation: rounds of sample, score, pair, learn and evaluate; a stopped run resumes."""

import contextlib
import dataclasses
from pathlib import Path

from pasta_jax.data.sources import origin
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.files.workdir import claim
from pasta_jax.judges.llm import LLMJudge
from pasta_jax.judges.reward import learnt_from
from pasta_jax.models.sharding import training_mesh
from pasta_jax.preference.learn import learn
from pasta_jax.preference.pair import NoPairs, pair
from pasta_jax.preference.report import Figures, Row, RunReport, evaluate, evaluate_baseline
from pasta_jax.preference.sample import sample_baseline, sample_round
from pasta_jax.preference.sample_on_ray import write_for_workers
from pasta_jax.preference.score import judge_agreement, score
from pasta_jax.preference.settings import PreferenceSettings
from pasta_jax.preference.stage import RoundModel, Stage, open_stage
from pasta_jax.progress import say
from pasta_jax.runs import processes
from pasta_jax.runs.checkpoint import fingerprint_of_params, git_revision
from pasta_jax.runs.ray import IN_ONE_PROCESS, connected
from pasta_jax.train.fit import Watch, unwatched
from pasta_jax.train.trainable import MODEL, merged, place, write
from pasta_jax.weights import card
from pasta_jax.weights.card import Training
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import for_decoding
from pasta_jax.weights.source import trained_on


def run(settings: PreferenceSettings, workdir: Path, watch: Watch = unwatched, command: str = "") -> RunReport | None:
    """Run all rounds, or those that remain, and write model/ (and adapter/) and report.json to the workdir.

    A round without pairs is the last one, and the report says why; if it is the first, there is no model.
    `watch` is entered around each training; its function returns whether to stop. If so, the result is None and the
    same call resumes. All other steps may be killed at any time. A workdir that another process uses is refused. The
    model's card quotes `command`. Several processes share the work; the first one writes.
    """
    on_ray = settings.executor == "ray"
    if on_ray and processes.count() > 1:
        raise PastaError(IN_ONE_PROCESS)
    alone = claim(workdir) if processes.is_first() else contextlib.nullcontext()
    with alone, connected(settings.ray) if on_ray else contextlib.nullcontext():
        stage = open_stage(settings, workdir)
        base = stage.trainable
        mesh = training_mesh(settings.mesh)
        frozen = place(base.frozen, mesh)
        model = sft = RoundModel(0, place(base.params, mesh), fingerprint_of_params(stage.sft.params))
        baseline = sample_baseline(stage, stage.prompts)
        held_out = sample_baseline(stage, stage.held_out)
        agreement = judge_agreement(stage)

        def decoder() -> Model:  # created where it is needed, so that no copy is in memory during training
            whole = merged(base.model, model.params, frozen)
            write_for_workers(stage, whole, model.fingerprint)
            return for_decoding(whole)

        def compared() -> list[Row]:
            return evaluate(stage, model, decoder(), held_out) if stage.held_out else []

        rows = [evaluate_baseline(stage, held_out), *compared()] if stage.held_out else []
        no_pairs, unjudged = "", 0
        for _ in range(settings.rounds):
            samples = sample_round(stage, model, decoder())
            scores = score(stage, samples, baseline)
            unjudged += sum(one is None for record in scores.records for one in record.verdicts)
            try:
                pairs = pair(stage, samples, scores)
            except NoPairs as error:
                no_pairs = str(error)
                break
            trained = learn(stage, model, sft.fingerprint, frozen, samples, pairs, watch)
            if trained is None:
                return None
            model = trained
            rows += compared()
        if model.round or not no_pairs:
            figures = figures_of(rows[-1], settings) if rows else {}
            write(base.model, model.params, settings.adapter, workdir, training_of(stage, command), figures)
        elif (workdir / MODEL).exists():
            say(f"{workdir / MODEL} is of an earlier run with other settings")
        judge = stage.judge if isinstance(stage.judge, LLMJudge) else None
        if judge and judge.failures:
            say(f"comparisons without a verdict, by reason: {dict(judge.failures)}")
        report = RunReport(
            quality_weight=settings.score.quality_weight,
            efficiency=settings.score.efficiency,
            judge=settings.judge.kind,
            judge_agreement=agreement,
            judge_usage=judge and judge.usage,
            without_verdict=unjudged,
            rows=rows,
            no_pairs=no_pairs,
        )
        if processes.is_first():
            atomic.write_json(workdir / "report.json", report.fields())
        return report


def training_of(stage: Stage, command: str) -> Training:
    """What the card says about the run."""
    settings, prompts = stage.settings, stage.settings.prompts
    data = [origin(name) for name in sorted({prompt.source for prompt in stage.prompts})]
    if prompts.toy:
        data = [f"the toy task, level {prompts.toy}, {prompts.count} problems"]
    named = settings.judge.endpoint.model if settings.judge.kind == "llm" else settings.judge.kind
    judge = f"answers sampled from the model itself, judged by {named}"
    theirs = learnt_from(settings.judge.reward) if settings.judge.kind == "reward" else ()
    described = (
        *trained_on(settings.model),
        *(f"prompts of {one}" for one in data),
        judge,
        *(f"in the judge: {one}" for one in theirs),
    )
    return Training(command, settings.train.seed, described, card.plain(settings), git_revision())


def figures_of(row: Row, settings: PreferenceSettings) -> dict[str, float]:
    """The figures that were measured, under names that say on what: only records state which prompts SFT never saw."""
    on = "prompts_not_sampled" if settings.prompts.file else "held_out_prompts"
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(Figures)}
    measured = {name: value for name, value in values.items() if value is not None} | {"temperature": row.temperature}
    return {f"{on}/{name}": value for name, value in measured.items()}
