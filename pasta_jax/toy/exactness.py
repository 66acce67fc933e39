"""The toy task answered and graded: exactness, forks, and theoretical speedup over the baseline model's own answers."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from pasta_jax.decode.generate import stream
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.lang.clock import geometric_mean, theoretical_speedup
from pasta_jax.progress import say, track
from pasta_jax.toy.ablation import ABLATIONS, decode_broken
from pasta_jax.toy.task import Problem
from pasta_jax.weights.model import Model


@dataclasses.dataclass(frozen=True)
class GradedAnswer:
    """A model's answer to one problem."""

    problem: Problem
    text: str
    program: str  # in surface form
    chunks: int
    tokens: int  # fed, tags included
    text_tokens: int
    critical_path: int
    finished: bool  # not cut off

    @property
    def exact(self) -> bool:
        return self.finished and self.problem.exact(self.text)


@dataclasses.dataclass(frozen=True)
class Lines:
    """Shares of correct lines."""

    walks: float
    ends: float


@dataclasses.dataclass(frozen=True)
class Quality:
    """Shares of correct answers and of correct lines."""

    answers: int
    exact: float
    exact_with_ends: float  # of the answers whose last line gathers the ends
    walks: float
    ends: float
    cut_off: int


@dataclasses.dataclass(frozen=True)
class Speed:
    """Forks, and theoretical speedup over the baseline model's own answers to the same problems."""

    forked: float  # share of the answers that have parts to fork
    forked_without_need: int
    speedup: float  # geometric mean, as are its two factors
    parallelism: float
    length_ratio: float  # above 1: answers are shorter than the baseline's
    speedup_arithmetic: float


@dataclasses.dataclass(frozen=True)
class AblationResult:
    """Shares of correct answers and lines when a rule of decoding is broken."""

    exact: float
    walks: float
    ends: float


def requests_for(model: Model, problems: Sequence[Problem], template: Request, sequential: bool) -> list[Request]:
    """The problems as requests. `template` is a request without its prompt; each adds its number to the seed."""
    return [
        dataclasses.replace(
            template.with_seed(number),
            prompt_ids=tuple(model.tokenizer.chat([("user", problem.instruction)])),
            sequential=sequential,
        )
        for number, problem in enumerate(problems)
    ]


def answer_all(
    model: Model, problems: Sequence[Problem], decoding: DecodeConfig, template: Request, sequential: bool
) -> list[GradedAnswer]:
    """The interpreter's answers, in the order of the problems."""
    requests = requests_for(model, problems, template, sequential)
    items = stream(model, requests, decoding, round_steps=256)
    results = (item for item in items if isinstance(item, Result))
    what = "sequential answers" if sequential else "asynchronous answers"
    ordered = sorted(track(results, what, len(requests)), key=lambda result: result.request)
    answers = []
    for problem, result in zip(problems, ordered, strict=True):
        trace = result.trace
        answers.append(
            GradedAnswer(
                problem=problem,
                text=result.text,
                program=trace.program().render(),
                chunks=len(trace.closed) - 1,
                tokens=len(trace.token),
                text_tokens=trace.text_tokens,
                critical_path=trace.critical_path,
                finished=result.finish_reason == "stop",
            )
        )
    return answers


def quality(answers: Sequence[GradedAnswer]) -> Quality:
    """How good the answers are."""
    lines = grade_lines((answer.problem, answer.text) for answer in answers)
    return Quality(
        answers=len(answers),
        exact=mean(answer.exact for answer in answers),
        exact_with_ends=mean(answer.exact for answer in answers if answer.problem.has_ends),
        walks=lines.walks,
        ends=lines.ends,
        cut_off=sum(not answer.finished for answer in answers),
    )


def grade_lines(texts: Iterable[tuple[Problem, str]]) -> Lines:
    """Shares of correct walks and correct lines of ends."""
    walks, ends = [], []
    for problem, text in texts:
        marks = problem.grade(text)
        walks += marks[:-1] if problem.has_ends else marks
        ends += marks[-1:] if problem.has_ends else ()
    return Lines(mean(walks), mean(ends))


def speed(answers: Sequence[GradedAnswer], baseline: Sequence[GradedAnswer]) -> Speed:
    """How fast the answers are, compared with the baseline model's."""
    pairs = [pair for pair in zip(answers, baseline, strict=True) if pair[0].text_tokens and pair[1].tokens]
    speedups = [theoretical_speedup(plain.tokens, answer.critical_path) for answer, plain in pairs]
    return Speed(
        forked=mean(answer.chunks > 0 for answer in answers if answer.problem.forkable),
        forked_without_need=sum(answer.chunks > 0 for answer in answers if not answer.problem.forkable),
        speedup=round(geometric_mean(speedups), 4),
        parallelism=round(geometric_mean(answer.text_tokens / answer.critical_path for answer, _ in pairs), 4),
        length_ratio=round(geometric_mean(plain.tokens / answer.text_tokens for answer, plain in pairs), 4),
        speedup_arithmetic=mean(speedups),
    )


def ablate(
    model: Model, problems: Sequence[Problem], decoding: DecodeConfig, template: Request
) -> dict[str, AblationResult]:
    """Exactness by ablation: each breaks one rule of decoding. Use problems that request the ends."""
    requests = requests_for(model, problems, template, sequential=False)
    results = {}
    for ablation in track(ABLATIONS, "ablations", len(ABLATIONS)):
        texts = [trace.program().strip() for trace in decode_broken(model, requests, decoding, ablation)]
        graded = list(zip(problems, texts, strict=True))
        lines = grade_lines(graded)
        results[ablation] = AblationResult(
            mean(problem.exact(text) for problem, text in graded), lines.walks, lines.ends
        )
        result = results[ablation]
        say(f"{ablation}: {result.exact:.1%} exact, {result.walks:.1%} of walks and {result.ends:.1%} of ends correct")
    return results


def mean(values: Iterable[float]) -> float:
    """The mean, rounded as reports show it; 0 without values."""
    values = list(values)
    return round(float(np.mean(values)), 4) if values else 0.0
