"""Measure a model that forks on ordinary prompts, with a baseline's answers to the same prompts beside it.

    WORKDIR/answers-3f0c….jsonl   one file per system: what its answers depend on, then one record per answer
    WORKDIR/pairs.jsonl           answers of both to compare by eye; fill in `verdict`: first, second or tie
    WORKDIR/report.json           the figures

Answers are kept as soon as they are finished: the same command resumes a killed run and reads what is there.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pasta_jax import files, fingerprints
from pasta_jax.data.pairs import Pair
from pasta_jax.data.prompt_sets import by_hash, no_fork
from pasta_jax.data.sources import read
from pasta_jax.decode.generate import DecodeConfig, Request, Result, slots_for, stream
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.answers import Answer, answer_of, to_judge
from pasta_jax.evaluate.figures import Figures, Speed, figures, speed
from pasta_jax.evaluate.probe import well_formed
from pasta_jax.judges.rules import rules_of
from pasta_jax.models.defaults import filled
from pasta_jax.models.source import ModelSource, load
from pasta_jax.models.weights import Model
from pasta_jax.pipelines.evaluate import RequestSettings, template_of
from pasta_jax.pipelines.evaluate_speed import ROUNDS, Realised, realised, time_answers
from pasta_jax.progress import Progress, doing, say
from pasta_jax.ranges import Count
from pasta_jax.workdir import claim

PAIRS = "pairs.jsonl"


@dataclasses.dataclass(frozen=True)
class PromptCounts:
    """How many prompts of each set, those whose text has the smallest hash; 0: none."""

    alpaca_eval: Count
    no_fork: Count
    ifeval: Count


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/evaluate.py:smollm2."""

    model: ModelSource
    baseline: ModelSource
    prompts: PromptCounts
    decoding: DecodeConfig
    request: RequestSettings
    unmasked: Count  # answers of each set to compare with what the model would write without the grammar mask
    pairs: Count  # prompts of the first set whose two answers a person is to compare
    timed: Count  # prompts of the first set to answer one at a time, for realised speedup


@dataclasses.dataclass(frozen=True)
class SetReport:
    """The figures of one set of prompts."""

    model: Figures
    baseline: Figures
    speed: Speed


@dataclasses.dataclass(frozen=True)
class Report:
    """The figures of all sets, by name, and how the answers were sampled."""

    options: dict[str, Any]
    sets: dict[str, SetReport]
    realised: Realised | None  # None: not measured

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """A table. One row per figure, two columns per set: the model's and the baseline's."""
        columns = [(name, who, one) for name, both in self.sets.items() for who, one in _columns(both)]
        lines = ["".join([f"{'':24}", *(f"{name:>14}" for name, _, _ in columns)])]
        lines.append("".join([f"{'':24}", *(f"{who:>14}" for _, who, _ in columns)]))
        for field in dict.fromkeys(key for _, _, one in columns for key in one):
            cells = (_cell(one.get(field)) for _, _, one in columns)
            lines.append("".join([f"{field.replace('_', ' '):24}", *(f"{cell:>14}" for cell in cells)]))
        if self.realised is not None:
            lines += ["", f"realised, {ROUNDS} rounds of one prompt at a time"]
            cells = {name.replace("_", " "): _cell(value) for name, value in vars(self.realised).items()}
            lines += [f"{name:24}{cell:>14}" for name, cell in cells.items()]
        return "\n".join(lines)


def run(settings: Settings, workdir: Path) -> Report:
    """Answer all prompts with both models, one after the other, and write and return the figures."""
    with claim(workdir):
        prompts = {name: chosen for name, chosen in chosen_prompts(settings.prompts).items() if chosen}
        if not prompts:
            raise PastaError("config.prompts: all sets have 0 prompts; raise one of them")
        with doing("loading the models"):
            models = [load(source, only_decoding=True) for source in (settings.model, settings.baseline)]
        # The baseline is sampled like the model, whatever its own file states.
        request = filled(settings.request, models[0].defaults)
        template = template_of(request)
        sequential = dataclasses.replace(template, sequential=True)
        ours = Task("model", models[0], template, settings.decoding, prompts, settings.unmasked)
        plain = Task("baseline", models[1], sequential, settings.decoding, prompts, unmasked=0)
        answers, baseline = answer_all(ours, workdir), answer_all(plain, workdir)
        rules = rules_of("ifeval") if "ifeval" in prompts else {}
        sets = {}
        for name in prompts:
            own, other = ([answer for answer in of if answer.prompts == name] for of in (answers, baseline))
            sets[name] = SetReport(figures(own, rules), figures(other, rules), speed(own, other))
        timed = None
        if settings.timed:
            requests = [task.requests()[: settings.timed] for task in (ours, plain)]
            about = [ours.depends_on(), plain.depends_on()]
            timed = realised(time_answers(models, requests, settings.decoding, about, workdir))
        if settings.pairs:
            both = list(zip(answers, baseline, strict=True))[: settings.pairs]
            lines = [json.dumps(to_judge(own, other), ensure_ascii=False) for own, other in both]
            if not (workdir / PAIRS).exists():  # a person's verdicts may be in it
                files.write_lines(workdir / PAIRS, lines)
        report = Report(dataclasses.asdict(request), sets, timed)
        files.write_json(workdir / "report.json", report.fields())
        return report


@dataclasses.dataclass(frozen=True)
class Task:
    """What one of the two models is to answer."""

    name: str
    model: Model
    template: Request  # without a prompt
    config: DecodeConfig
    prompts: dict[str, list[str]]
    unmasked: int  # answers of each set to compare with what the model would write without the grammar mask

    def asked(self) -> list[tuple[str, int, str]]:
        """(set, number in it, prompt) of every prompt."""
        return [(of, number, prompt) for of, several in self.prompts.items() for number, prompt in enumerate(several)]

    def requests(self) -> list[Request]:
        """Every prompt's request. The seed of prompt n of a set is the template's plus n."""
        requests = []
        for of, number, prompt in self.asked():
            sampling = dataclasses.replace(self.template.sampling, seed=(self.template.sampling.seed + number) % 2**32)
            ids, name = tuple(self.model.tokenizer.chat([("user", prompt)])), f"{of}: prompt {number}"
            requests.append(
                dataclasses.replace(self.template, prompt_ids=ids, sampling=sampling, text=prompt, name=name)
            )
        return requests

    def depends_on(self) -> dict[str, Any]:
        """What the records depend on: not on lanes or widths, which decide how fast they come."""
        return {
            "model": f"{self.model.name} {self.model.fingerprint}",
            "positions": str(self.model.positions),
            "request": dataclasses.asdict(self.template),
            "rows": self.config.rows,
            "slots": self.config.slots,
            "prompts": {name: fingerprints.of_texts(several) for name, several in self.prompts.items()},
            "unmasked": self.unmasked,
        }


def chosen_prompts(counts: PromptCounts) -> dict[str, list[str]]:
    """The prompts of each set; sets that are not asked for need not be installed."""

    def from_source(name: str, count: int) -> list[str]:
        if not count:
            return []
        prompts = (
            no_fork() if name == "no_fork" else [pair.instruction for pair in read(name) if isinstance(pair, Pair)]
        )
        return by_hash(prompts, count)

    return {name: from_source(name, count) for name, count in dataclasses.asdict(counts).items()}


def answer_all(task: Task, workdir: Path) -> list[Answer]:
    """Every prompt's answer, in order; those of an earlier run are read."""
    asked, requests, about = task.asked(), task.requests(), task.depends_on()
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    config = dataclasses.replace(task.config, slots=slots_for(task.model, requests, task.config))
    with files.JsonLines(workdir / f"answers-{fingerprints.of_data(about)}.jsonl", exclusive=True) as lines:
        if not lines.lines:
            lines.append(about)
        answers = read_answers(lines.lines[1:], workdir)
        missing = [place for place, (of, number, _) in enumerate(asked) if (of, number) not in answers]
        if len(missing) < len(asked):
            say(f"{task.name}: {len(asked) - len(missing)} of {len(asked)} answers are there")
        with Progress(f"{task.name}: answers", len(asked), len(asked) - len(missing)) as progress:
            for item in stream(task.model, [requests[place] for place in missing], config, round_steps=256):
                if not isinstance(item, Result):
                    continue
                (of, number, prompt), request = asked[missing[item.request]], requests[missing[item.request]]
                unmasked = None
                if number < task.unmasked:
                    unmasked = not well_formed(task.model, item.trace, config, request.sampling)
                answer = answer_of(item, of, number, prompt, request.sampling.seed, task.model.tokenizer, unmasked)
                lines.append(dataclasses.asdict(answer))
                answers[of, number] = answer
                progress.add()
    return [answers[of, number] for of, number, _ in asked]


def read_answers(lines: Sequence[bytes], workdir: Path) -> dict[tuple[str, int], Answer]:
    """The answers in a file, by set and number."""
    answers = {}
    for number, line in enumerate(lines, start=2):
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PastaError(f"{workdir}: line {number} of the answers: {error}; delete the file") from None
        answers[answer.prompts, answer.number] = answer
    return answers


def _columns(report: SetReport) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("model", dataclasses.asdict(report.model) | dataclasses.asdict(report.speed)),
        ("baseline", dataclasses.asdict(report.baseline)),
    ]


def _cell(value: float | int | None) -> str:
    return "—" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
