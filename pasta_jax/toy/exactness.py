"""The toy task answered and graded: exactness, forks, and theoretical speedup over the baseline model's own answers."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pasta_jax.decode.generate import stream
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.lang.clock import geometric_mean, theoretical_speedup
from pasta_jax.progress import say, track
from pasta_jax.toy.ablation import ABLATIONS, decode_broken
from pasta_jax.toy.task import Problem
from pasta_jax.weights.model import Model

Figures = dict[str, float | None]  # None: of nothing


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


def quality(answers: Sequence[GradedAnswer]) -> Figures:
    """How good the answers are: shares of those that are exact, and of correct lines."""
    return {
        "answers": len(answers),
        "exact": mean(answer.exact for answer in answers),
        "exact_with_ends": mean(answer.exact for answer in answers if answer.problem.has_ends),
        **correct_lines((answer.problem, answer.text) for answer in answers),
        "cut_off": sum(not answer.finished for answer in answers),
    }


def correct_lines(texts: Iterable[tuple[Problem, str]]) -> Figures:
    """Shares of correct walks and correct lines of ends."""
    walks, ends = [], []
    for problem, text in texts:
        marks = problem.grade(text)
        walks += marks[:-1] if problem.has_ends else marks
        ends += marks[-1:] if problem.has_ends else ()
    return {"walks": mean(walks), "ends": mean(ends)}


def speed(answers: Sequence[GradedAnswer], baseline: Sequence[GradedAnswer]) -> Figures:
    """Forks, and theoretical speedup over the baseline model's own answers to the same problems."""
    pairs = [pair for pair in zip(answers, baseline, strict=True) if pair[0].text_tokens and pair[1].tokens]
    speedups = [theoretical_speedup(plain.tokens, answer.critical_path) for answer, plain in pairs]
    return {
        "forked": mean(answer.chunks > 0 for answer in answers if answer.problem.forkable),
        "forked_without_need": sum(answer.chunks > 0 for answer in answers if not answer.problem.forkable),
        "speedup": mean(speedups, geometric_mean),  # the product of the next two
        "parallelism": mean((answer.text_tokens / answer.critical_path for answer, _ in pairs), geometric_mean),
        # Above 1: answers are shorter than the baseline's.
        "length_ratio": mean((plain.tokens / answer.text_tokens for answer, plain in pairs), geometric_mean),
        "speedup_arithmetic": mean(speedups),
    }


def ablate(model: Model, problems: Sequence[Problem], decoding: DecodeConfig, template: Request) -> dict[str, Figures]:
    """Exactness by ablation: each breaks one rule of decoding. Use problems that request the ends."""
    requests = requests_for(model, problems, template, sequential=False)
    results = {}
    for ablation in track(ABLATIONS, "ablations", len(ABLATIONS)):
        texts = [trace.program().strip() for trace in decode_broken(model, requests, decoding, ablation)]
        graded = list(zip(problems, texts, strict=True))
        result = {"exact": mean(problem.exact(text) for problem, text in graded), **correct_lines(graded)}
        shares = "{exact:.1%} exact, {walks:.1%} of walks and {ends:.1%} of ends correct".format(**result)
        say(f"{ablation}: {shares}")
        results[ablation] = result
    return results


def mean(values: Iterable[float], of: Callable[[list[float]], float] = np.mean) -> float | None:
    """The mean, rounded as reports show it; None without values."""
    values = list(values)
    return round(float(of(values)), 4) if values else None


def shown(figure: float | None, form: str) -> str:
    """A figure as tables show it."""
    return "-" if figure is None else format(figure, form)
