"""The toy task answered and graded: exactness, forks, and theoretical speedup over the baseline model's own answers."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pasta_jax.data.toy import Problem
from pasta_jax.decode.generate import DecodeConfig, Request, generate
from pasta_jax.evaluate.ablation import ABLATIONS, decode_broken
from pasta_jax.lang.clock import geometric_mean, theoretical_speedup
from pasta_jax.models.weights import Model


@dataclasses.dataclass(frozen=True)
class Answered:
    """What one problem was answered with."""

    problem: Problem
    text: str
    program: str  # in surface form
    chunks: int
    tokens: int  # fed, tags included
    critical_path: int
    finished: bool  # not cut off

    @property
    def exact(self) -> bool:
        return self.finished and self.problem.exact(self.text)


def requests_for(model: Model, problems: Sequence[Problem], asked: Request, sequential: bool) -> list[Request]:
    """The problems as questions to the model; each samples with a seed of its own, counted from the one asked for."""
    sampling = asked.sampling
    return [
        dataclasses.replace(
            asked,
            prompt_ids=tuple(model.tokenizer.chat([("user", problem.instruction)])),
            sampling=dataclasses.replace(sampling, seed=sampling.seed + number),
            sequential=sequential,
        )
        for number, problem in enumerate(problems)
    ]


def answer_all(
    model: Model, problems: Sequence[Problem], settings: DecodeConfig, asked: Request, sequential: bool
) -> list[Answered]:
    """Answers through the interpreter; `asked` says all of a request but its prompt."""
    requests = requests_for(model, problems, asked, sequential)
    answered = []
    for problem, result in zip(problems, generate(model, requests, settings), strict=True):
        trace = result.trace
        answered.append(
            Answered(
                problem=problem,
                text=result.text,
                program=trace.program().render(),
                chunks=len(trace.closed) - 1,
                tokens=len(trace.token),
                critical_path=trace.critical_path,
                finished=result.finish_reason == "stop",
            )
        )
    return answered


def quality(answers: Sequence[Answered]) -> dict:
    """Shares of what is right: whole answers, whole answers that end in the ends, walks, and lines of ends."""
    graded = graded_lines((answer.problem, answer.text) for answer in answers)
    return {
        "answers": len(answers),
        "exact": mean(answer.exact for answer in answers),
        "exact_with_ends": mean(answer.exact for answer in answers if answer.problem.has_ends),
        **graded,
        "cut_off": sum(not answer.finished for answer in answers),
    }


def graded_lines(texts: Iterable[tuple[Problem, str]]) -> dict:
    """Shares of right lines: of walks and of ends."""
    walks, ends = [], []
    for problem, text in texts:
        marks = problem.grade(text)
        walks += marks[:-1] if problem.has_ends else marks
        ends += marks[-1:] if problem.has_ends else ()
    return {"walks": mean(walks), "ends": mean(ends)}


def speed(answers: Sequence[Answered], baseline: Sequence[Answered]) -> dict:
    """Forks, and theoretical speedup over the baseline model's own answers to the same problems."""
    speedups = [
        theoretical_speedup(plain.tokens, answer.critical_path)
        for answer, plain in zip(answers, baseline, strict=True)
        if plain.tokens and answer.critical_path
    ]
    return {
        "forked": mean(answer.chunks > 0 for answer in answers if answer.problem.forkable),
        "forked_without_need": sum(answer.chunks > 0 for answer in answers if not answer.problem.forkable),
        "speedup": round(geometric_mean(speedups), 4),
        "speedup_arithmetic": mean(speedups),
    }


def ablate(
    model: Model, problems: Sequence[Problem], settings: DecodeConfig, asked: Request, say: Callable[[str], None]
) -> dict:
    """Exactness on problems that ask for the ends, with each of the rules broken."""
    requests = requests_for(model, problems, asked, sequential=False)
    report = {}
    for ablation in ABLATIONS:
        texts = [trace.program().strip() for trace in decode_broken(model, requests, settings, ablation)]
        answered = list(zip(problems, texts, strict=True))
        report[ablation] = {"exact": mean(problem.exact(text) for problem, text in answered), **graded_lines(answered)}
        say(f"{ablation}: {report[ablation]}")
    return report


def mean(values: Iterable[float]) -> float:
    """Of shares and ratios, as reports show them; 0 of none."""
    values = list(values)
    return round(float(np.mean(values)), 4) if values else 0.0
