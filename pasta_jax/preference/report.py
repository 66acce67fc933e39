"""Step 5 of a round: answer held-out prompts, compare the answers with the baseline's, time them, and report."""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import prompt_ids
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request
from pasta_jax.device import platform
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import AboveZero, Count
from pasta_jax.judges.judge import Agreement, Entry, Verdict, prefers
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.llm.cache import Usage
from pasta_jax.preference.artifacts import Artifact, Step
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.sample import Answers, decode, decode_inputs, template
from pasta_jax.preference.stage import (
    RoundModel,
    Stage,
    as_judged,
    at_a_time,
    judge_inputs,
    judged,
)
from pasta_jax.progress import say
from pasta_jax.runs.checkpoint import fingerprint_of_params
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import for_decoding

TIMED_ROUNDS = 3
COLUMNS = ("win_rate", "exact", "speedup", "speedup_of_ended", "parallelism", "length_ratio", "cut_off", "realised")


@dataclasses.dataclass(frozen=True)
class Figures:
    """Means over held-out prompts; None: no prompt has the figure, or it was not measured."""

    win_rate: float | None  # share of prompts at which the judge prefers the answer to the baseline's; a tie is a half
    exact: float | None  # share of exact answers, of prompts with an exact grader
    speedup: float | None  # theoretical, geometric mean
    speedup_arithmetic: float | None
    speedup_of_ended: float | None  # geometric mean over prompts where neither answer, nor a chunk, was cut off
    parallelism: float | None  # geometric mean
    length_ratio: float | None  # speedup over parallelism: above 1, answers are shorter than the baseline's
    chunks: float  # per answer
    cut_off: int  # answers that were, or a chunk of theirs
    realised: float | None  # wall-clock speedup, geometric mean over the first evaluate.timed prompts


@dataclasses.dataclass(frozen=True)
class Row(Figures):
    """A model's figures at one temperature."""

    kind: Literal["baseline", "sft", "round"]
    round: int  # 0: before the first
    temperature: float
    fingerprint: str  # of the trained parameters

    @property
    def model(self) -> str:
        return {"baseline": "Baseline-SFT", "sft": "Pasta-SFT", "round": f"round {self.round}"}[self.kind]

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {"model": self.model} | dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class RunReport:
    """The result of a run."""

    quality_weight: float
    efficiency: str
    judge: str  # its kind
    judge_agreement: Agreement | None  # with preferences from a dataset; None: not measured
    judge_usage: Usage | None  # of a language model as judge, over all runs
    without_verdict: int  # sampled answers that it returned no verdict on
    rows: list[Row]
    no_pairs: str = ""  # why the last round had nothing to learn from, if so

    def fields(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        rows = [row.fields() for row in self.rows]
        return dataclasses.asdict(self) | {"quality_weight": str(self.quality_weight), "rows": rows}

    def table(self) -> str:
        """The rows as text, in the paper's layout."""
        lines = [f"{'model':24} {'answers':>14} " + " ".join(f"{name:>18}" for name in COLUMNS)]
        for row in self.rows:
            values = (getattr(row, name) for name in COLUMNS)
            cells = (f"{'—' if value is None else format(value, '.4g'):>18}" for value in values)
            lines.append(f"{row.model:24} {f'temperature {row.temperature:g}':>14} " + " ".join(cells))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A held-out prompt's answer compared with the baseline's."""

    prompt: str
    verdicts: tuple[Verdict, ...] | None
    exact: bool | None  # None: the prompt has no exact grader
    critical_path: Count
    text_tokens: Count
    baseline_tokens: Count
    chunks: Count
    whole: bool
    baseline_whole: bool


@dataclasses.dataclass(frozen=True)
class PromptTime:
    """Wall-clock milliseconds of one prompt, medians over rounds."""

    prompt: Count  # its number
    baseline_ms: AboveZero
    ms: AboveZero


def evaluate(stage: Stage, trained: RoundModel, model: Model, baseline: Artifact[Answers]) -> list[Row]:
    """Measure a model at every temperature. `model` is `trained` ready for decoding."""
    rows = []
    for temperature in stage.settings.evaluate.temperatures:
        request = template(stage, temperature, seed=0, sequential=False)
        answers = decode(stage, "answer", model, trained.fingerprint, stage.held_out, 1, request)
        records = compare(stage, answers, baseline).records
        speedup = realised(stage, model, answers.fingerprint, request) if stage.settings.evaluate.timed else None
        row = Row(
            **vars(figures(records, speedup)),
            kind=trained.kind,
            round=trained.round,
            temperature=temperature,
            fingerprint=trained.fingerprint,
        )
        say(json.dumps(row.fields()))
        rows.append(row)
    return rows


def evaluate_baseline(stage: Stage, baseline: Artifact[Answers]) -> Row:
    """The baseline compared with itself."""
    pairs = zip(baseline.records, stage.held_out, strict=True)
    records = [comparison_of(stage, prompt, record.answers[0], record.answers[0], None) for record, prompt in pairs]
    measured = figures(records, 1.0 if stage.settings.evaluate.timed else None)
    return Row(
        **vars(measured) | {"win_rate": 0.5},
        kind="baseline",
        round=0,
        temperature=stage.settings.sample.baseline_temperature,
        fingerprint=fingerprint_of_params(stage.baseline.params),
    )


def compare(stage: Stage, answers: Artifact[Answers], baseline: Artifact[Answers]) -> Artifact[Comparison]:
    """Judge every held-out answer against the baseline's."""
    inputs = {"answers": answers.fingerprint, "baseline": baseline.fingerprint, "judge": judge_inputs(stage.settings)}
    inputs["records"] = 2  # say whether the baseline's answer is whole
    inputs["questions"] = fingerprints.of_texts([prompt.question for prompt in stage.held_out])

    def pair(number: int) -> tuple[Candidate, Candidate]:
        [answer], [baseline_answer] = answers.records[number].answers, baseline.records[number].answers
        return answer, baseline_answer

    def asked(number: int) -> tuple[str, Entry, list[Entry]]:
        question = stage.held_out[number].question
        ours, other = as_judged(stage, question, pair(number))
        return question, ours, [other]

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, Comparison]]:
        for number, verdicts in zip(numbers, judged(stage, map(asked, numbers)), strict=True):
            yield number, comparison_of(stage, stage.held_out[number], *pair(number), verdicts)

    def fits(number: int, record: Comparison) -> bool:
        return record.prompt == stage.held_out[number].instruction

    count, block = len(answers.records), at_a_time(stage.settings)
    return stage.artifacts.make(Step("evaluate", inputs, Comparison, count, compute, block, fits))


def comparison_of(
    stage: Stage, prompt: Pair, answer: Candidate, baseline: Candidate, verdicts: tuple[Verdict, ...] | None
) -> Comparison:
    """The record of one held-out answer."""
    problem = stage.problems.get(prompt.instruction)
    return Comparison(
        prompt=prompt.instruction,
        verdicts=verdicts,
        exact=None if problem is None else answer.whole and problem.exact(answer.text),
        critical_path=answer.critical_path,
        text_tokens=answer.text_tokens,
        baseline_tokens=baseline.critical_path,
        chunks=answer.chunks,
        whole=answer.whole,
        baseline_whole=baseline.whole,
    )


def realised(stage: Stage, model: Model, answers: str, request: Request) -> float:
    """Wall-clock speedup over the baseline on the first held-out prompts, each alone in the interpreter.

    Baseline and model alternate, because a machine's speed drifts. `answers` is the fingerprint of the model's answers,
    which stands for the model.
    """
    prompts = stage.held_out[: stage.settings.evaluate.timed]
    sequential = template(stage, stage.settings.sample.baseline_temperature, seed=0, sequential=True)
    one_lane = dataclasses.replace(stage.settings.decoding, lanes=1)

    def milliseconds(model: Model, request: Request) -> list[float]:
        requests = [
            dataclasses.replace(request.with_seed(number), prompt_ids=tuple(prompt_ids(prompt, model.tokenizer)))
            for number, prompt in enumerate(prompts)
        ]
        return [result.trace.rounds[-1][1] for result in generate(model, requests, one_lane)]

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, PromptTime]]:
        baseline = for_decoding(stage.baseline)
        rounds = [(milliseconds(baseline, sequential), milliseconds(model, request)) for _ in range(1 + TIMED_ROUNDS)]
        del rounds[0]  # includes compiling
        for number in numbers:
            baseline_ms, ms = (statistics.median(times[number] for times in each) for each in zip(*rounds, strict=True))
            yield number, PromptTime(number, baseline_ms, ms)

    fingerprint = fingerprint_of_params(stage.baseline.params)
    inputs = {"baseline": fingerprint, "model": answers, "rounds": TIMED_ROUNDS, "machine": platform.machine()}
    inputs |= decode_inputs(stage, model, prompts, request) | {"plain": sequential.recorded()}

    def fits(number: int, record: PromptTime) -> bool:
        return record.prompt == number

    count = len(prompts)
    timings = stage.artifacts.make(Step("time", inputs, PromptTime, count, compute, count, fits, shared=False)).records
    return round(geometric_mean(timing.baseline_ms / timing.ms for timing in timings), 4)


def figures(records: Sequence[Comparison], realised: float | None) -> Figures:
    """Means over held-out prompts."""
    written = [record for record in records if record.text_tokens and record.baseline_tokens]
    ratios = [record.baseline_tokens / record.critical_path for record in written]
    ended = [ratio for ratio, record in zip(ratios, written, strict=True) if record.whole and record.baseline_whole]
    parallelisms = [record.text_tokens / record.critical_path for record in written]
    lengths = [record.baseline_tokens / record.text_tokens for record in written]
    judged = [prefers(record.verdicts) for record in records if record.verdicts]
    exact = [record.exact for record in records if record.exact is not None]
    values = {
        "win_rate": statistics.fmean(judged) if judged else None,
        "exact": sum(exact) / len(exact) if exact else None,
        "speedup": geometric_mean(ratios) if ratios else None,
        "speedup_arithmetic": sum(ratios) / len(ratios) if ratios else None,
        "speedup_of_ended": geometric_mean(ended) if ended else None,
        "parallelism": geometric_mean(parallelisms) if parallelisms else None,
        "length_ratio": geometric_mean(lengths) if lengths else None,
        "chunks": sum(record.chunks for record in records) / len(records),
    }
    rounded = {name: None if value is None else round(value, 4) for name, value in values.items()}
    return Figures(**rounded, cut_off=sum(not record.whole for record in records), realised=realised)
