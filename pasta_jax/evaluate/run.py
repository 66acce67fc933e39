"""Measure systems on ordinary prompts: a model that forks, the same decoded sequentially, and rivals on one runtime.

    WORKDIR/answers-NAME.jsonl        what a system's answers depend on, then one record per answer
    WORKDIR/timings.jsonl             seconds of the systems' answers, one prompt at a time; throughput.jsonl: many
    WORKDIR/likelihood.jsonl          how likely sequential answers are to the baseline's model
    WORKDIR/report.json               the figures; report.html and report.md show them
    WORKDIR/model_outputs-NAME.json   the answers to AlpacaEval as alpaca_eval reads them
    WORKDIR/mt_bench-NAME.jsonl       the answers to MT-bench as FastChat's judge reads them
    WORKDIR/pairs.jsonl               answers of two systems to compare by eye; fill in `verdict`: first, second or tie
    WORKDIR/pairs-key.jsonl           which system wrote which of them; don't open it before

Answers are kept as soon as they are finished: the same command resumes a killed run and reads what is there.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import jax

from pasta_jax.decode.request import template
from pasta_jax.decode.settings import refuse_idle_drafter
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import interop, likelihood, multipart, summary
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.blind import write_blind
from pasta_jax.evaluate.figures import figures
from pasta_jax.evaluate.length_controlled import length_controlled
from pasta_jax.evaluate.on_ray import on_workers
from pasta_jax.evaluate.page import write_report
from pasta_jax.evaluate.questions import SECOND_TURN, Question, alpaca_eval_instructions, question_sets
from pasta_jax.evaluate.report import Evaluation, EvaluationReport, SystemReport
from pasta_jax.evaluate.settings import Ablation, EvaluateSettings, System
from pasta_jax.evaluate.systems import Task, answer_all, as_named, decoded
from pasta_jax.evaluate.timing import Timing, realised, speedups, time_answers, time_together
from pasta_jax.files import atomic
from pasta_jax.files.remote import path_of
from pasta_jax.files.workdir import claim
from pasta_jax.judges.agreement import key_of
from pasta_jax.judges.choice import judge_of
from pasta_jax.judges.judge import Judge
from pasta_jax.judges.rules import rules_of
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.progress import doing, say, track
from pasta_jax.runs import processes
from pasta_jax.runs.ray import IN_ONE_PROCESS, connected
from pasta_jax.weights.load import require_named
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load

Preferences = dict[tuple[str, System], dict[str, dict[int, float]]]  # by set and system, judge, prompt


def run(settings: EvaluateSettings, workdir: Path, limit: int | None = None) -> Evaluation | None:
    """Answer all prompts with each system, one after the other; write and return the figures.

    `limit`: at most so many prompts of each set, those whose text has the smallest hash. Several processes share the
    prompts, to answer them and to judge the answers; the first one does everything else, and the others return None.
    """
    if not settings.systems or len(set(settings.systems)) < len(settings.systems):
        raise PastaError("config.systems: name one or several, each once")
    if settings.executor == "ray" and jax.process_count() > 1:
        raise PastaError(IN_ONE_PROCESS)
    annotations = interop.read_annotations(path_of(settings.annotations)) if settings.annotations else []
    fitted = None
    if annotations and settings.prompts.alpaca_eval:
        fitted = length_controlled(annotations, alpaca_eval_instructions())
    needing = [name for name in ("judges", "timed", "likelihood") if getattr(settings, name)]
    if needing and "baseline" not in settings.systems:
        say(f"config.{', config.'.join(needing)}: nothing of these, as config.systems has no baseline to compare with")
    sets = question_sets(settings.prompts, limit)
    with claim(workdir) if processes.is_first() else nullcontext():
        with doing("loading the models"):
            tasks = tasks_of(settings)
        chosen = {name: one.chosen for name, one in sets.items()}
        every = [question for questions in chosen.values() for question in questions]
        compute, on_ray = decoded, settings.executor == "ray"
        if on_ray:
            compute = on_workers(settings.ray, sources_of(settings), settings.mesh)
        with connected(settings.ray) if on_ray else nullcontext():
            answers = {task.system: answer_all(task, every, workdir, compute) for task in tasks}
        own = {system: [one for one in given if one.prompts == "alpaca_eval"] for system, given in answers.items()}
        interop.refuse_others(settings.annotations, annotations, own)
        preferred = judge_all(settings, answers)
        if not processes.is_first():
            return None
        first = every[: len(next(iter(chosen.values())))]
        timings: list[Timing] = []
        if settings.timed and "baseline" in answers:
            timings = time_answers(tasks, first[: settings.timed], settings.rounds, workdir)
        likely: dict[System, dict[int, float]] = {}
        if settings.likelihood and "baseline" in answers:
            likely = likelihood.read_answers(tasks, answers, first[: settings.likelihood], workdir)
        together = {}
        if settings.throughput:
            together = time_together(tasks, first[: settings.throughput], workdir)
        report = EvaluationReport(
            options=tasks[0].template.recorded(),
            models={task.system: task.model.identity for task in tasks},
            sets=reports(answers, preferred, every, timings, likely),
            realised={
                system: figures
                for system in answers
                if timings and system != "baseline" and (figures := realised(timings, system))
            },
            throughput=together,
            annotations=interop.win_rate_of(annotations) if annotations else None,
            length_controlled=fitted,
        )
        evaluation = Evaluation(report, chosen, answers)
        write_files(evaluation, settings.pairs, workdir)
        with doing("drawing the report"):
            write_report(evaluation, settings.texts, workdir)
        return evaluation


PAIRS = "pairs.jsonl"
FORKS = {"model", "apar", *get_args(Ablation)}  # the systems whose answers may have tags
OF_MODEL = {"model", "untagged", *get_args(Ablation)}  # those that decode with config.model


def sources_of(settings: EvaluateSettings) -> dict[System, ModelSource]:
    """Where each system's model comes from."""
    rival = settings.rival if settings.rival.preset or settings.rival.path else settings.baseline
    if settings.rival.adapter and rival is not settings.rival:
        raise PastaError("config.rival.adapter: of which weights? set config.rival.preset or config.rival.path, too")
    own = {"baseline": settings.baseline, "apar": settings.apar}
    return {system: settings.model if system in OF_MODEL else own.get(system, rival) for system in settings.systems}


def tasks_of(settings: EvaluateSettings) -> list[Task]:
    """Each system with its model; a source that several share is loaded once."""
    refuse_idle_drafter(settings.model.drafter, settings.decoding)
    models: dict[ModelSource, Model] = {}
    mesh, sources = decoding_mesh(settings.mesh), sources_of(settings)
    for system, source in sources.items():
        if source not in models:
            own = "apar" if system == "apar" else "model" if system in OF_MODEL else "baseline"
            require_named(source.preset, source.path, f"config.{own}")
            models[source] = load(source, only_decoding=True, mesh=mesh)
            if settings.decoding.draft == "drafter" and "drafter" not in models[source].params:
                raise PastaError(
                    f"config.decoding.draft=drafter: {models[source].name}, of the system {system}, has no drafter; "
                    "set one beside each model, as config.baseline.drafter, or choose lookup"
                )
        if system == "apar" and getattr(models[source].positions, "policy", None) != "shared_start":
            raise PastaError(
                f"config.apar: {models[source].name} was not trained as APAR; name an adapter of configs/sft.py:apar"
            )
    # All are sampled like the first system, whatever their own files state.
    own = models[sources[settings.systems[0]]].defaults
    request = template(settings.request, own, sequential=False)
    tasks = [
        Task(
            system=system,
            model=models[source],
            template=dataclasses.replace(request, sequential=system not in FORKS),
            config=settings.decoding,
            options=settings.skeleton,
            unmasked=settings.prompts.skip + settings.unmasked,  # prompts have the numbers after those left out
        )
        for system, source in sources.items()
    ]
    return [as_named(task) for task in tasks]


def judge_all(settings: EvaluateSettings, answers: Mapping[System, Sequence[SystemAnswer]]) -> Preferences:
    """The judges' preferences for each system's answers over the baseline's; all processes judge a share of them."""
    if not settings.judges or "baseline" not in answers:
        return {}
    answers = processes.told(answers, dict[System, list[SystemAnswer]])
    rules = "ifeval" if settings.prompts.ifeval or "rules" in settings.judges else ""
    judges = {name: judge_of(name, settings, rules) for name in settings.judges}
    first_turns = {(one.prompts + SECOND_TURN, one.number): (one.prompt,) for one in answers["baseline"]}

    def preferences(judge: Judge, pairs: Sequence[tuple[SystemAnswer, SystemAnswer]]) -> Iterator[dict[int, float]]:
        for own, baseline in pairs:
            turns = *first_turns.get((own.prompts, own.number), ()), own.prompt
            found = summary.preference(judge, "\n\n".join(turns), own, baseline)
            yield {} if found is None else {own.number: found}

    preferred: Preferences = {}
    for system, several in answers.items():
        pairs = [] if system == "baseline" else list(zip(several, answers["baseline"], strict=True))
        for prompts in dict.fromkeys(own.prompts for own, _ in pairs):
            some = [pair for pair in pairs if pair[0].prompts == prompts]
            for name, judge in judges.items():
                every = processes.spread(some, functools.partial(preferences, judge), dict[int, float])
                found = preferred.setdefault((prompts, system), {}).setdefault(name, {})
                for one in track(every, f"{prompts}: {name} compares {system}", len(some)):
                    found |= one
    return preferred


def reports(
    answers: Mapping[System, Sequence[SystemAnswer]],
    preferred: Preferences,
    questions: Sequence[Question],
    timings: list[Timing],
    likely: Mapping[System, Mapping[int, float]],
) -> dict[str, dict[str, SystemReport]]:
    """The figures by set and system."""
    sets: dict[str, dict[str, SystemReport]] = {}
    categories = {(question.prompts, question.number): question.category for question in questions}
    names = list(dict.fromkeys(answer.prompts for several in answers.values() for answer in several))
    for name in names:
        sets[name] = {}
        rules = rules_of("ifeval") if name == "ifeval" else {}
        references = {
            ending: [answer for answer in answers[system] if answer.prompts == name]
            for system, ending in (("baseline", ""), ("untagged", "_over_untagged"))
            if system in answers
        }
        timed = timings if timings and name == names[0] else []
        for system, several in answers.items():
            own = [answer for answer in several if answer.prompts == name]
            seconds = speedups(timed, system) if timed and system != "baseline" else {}
            beside = {ending: of for ending, of in references.items() if not ending or system in OF_MODEL}
            ratios = summary.ratios(own, beside, seconds)
            if name == names[0] and system in likely:
                ratios |= likelihood.compared(likely[system], likely["baseline"])
            if name == multipart.NAME:
                ratios |= multipart.exactness({one.number: (one.prompt, one.text) for one in own})
            judged = preferred.get((name, system), {})
            by_category: dict[str, set[int]] = {}
            for answer in own:
                by_category.setdefault(categories[name.removesuffix(SECOND_TURN), answer.number], set()).add(
                    answer.number
                )
            sets[name][system] = SystemReport(
                figures=figures(own, rules),
                estimates=summary.estimates(ratios),
                judged=summary.judged(judged),
                categories={
                    category: summary.estimates(ratios, numbers) | summary.judged(judged, numbers)
                    for category, numbers in sorted(by_category.items())
                    if category and len(by_category) > 1
                },
            )
    return sets


def write_files(evaluation: Evaluation, pairs: int, workdir: Path) -> None:
    """Write the report, and the answers as other tools read them."""
    atomic.write_json(workdir / "report.json", dataclasses.asdict(evaluation.report))
    questions = evaluation.questions
    for system in evaluation.answers:
        if chosen := questions.get("alpaca_eval"):
            rows = interop.model_outputs(
                evaluation.of("alpaca_eval", system),
                [question.category for question in chosen],
                interop.generator(system),
            )
            atomic.write_json(workdir / f"model_outputs-{system}.json", rows)
        if chosen := questions.get("mt_bench"):
            turns = [evaluation.of("mt_bench" + ending, system) for ending in ("", SECOND_TURN)]
            ids = [question.id or 0 for question in chosen]
            lines = interop.mt_bench_answers(list(zip(*turns, strict=True)), ids, interop.generator(system))
            atomic.write_lines(workdir / f"mt_bench-{system}.jsonl", map(json.dumps, lines))
    first, *others = evaluation.answers
    if pairs and others:
        other, name = "baseline" if "baseline" in others else others[0], next(iter(questions))
        both = list(zip(evaluation.of(name, first)[:pairs], evaluation.of(name, other)[:pairs], strict=True))
        path, key = workdir / PAIRS, key_of(workdir / PAIRS)
        if not path.exists() and not key.exists():
            write_blind(path, [{first: own, other: plain} for own, plain in both])
        elif not path.exists():
            say(f"{key} is of pairs that were moved; delete it to have others")
        elif (count := len(path.read_bytes().splitlines())) != len(both):  # a person's verdicts may be in it
            say(f"{path}: keeps its {count} pairs; delete it to have {len(both)}, of this run")
