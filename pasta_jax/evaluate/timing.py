"""Speed by the clock: seconds of the systems' answers to the same prompts, one at a time or many together.

One at a time, the systems alternate, because a machine's speed drifts; the first of several runs of a prompt, which may
compile, doesn't count, and of the others the median does. The answers are those of the same prompts, options and seeds
in any other run. Many together, the clock runs from the first prompt to the last answer. Skeleton-of-Thought is left
out there: it answers one prompt after another.
"""

import dataclasses
import operator
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pasta_jax.device import platform
from pasta_jax.device.compilation_cache import clock
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.systems import OTHER_WORKDIR, SHOWN, Task
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.progress import Progress
from pasta_jax.runs import records
from pasta_jax.runs.records import Record, Records


@dataclasses.dataclass(frozen=True)
class Timed:
    """A system's answer to one prompt. Seconds are a median over rounds, prefill included."""

    seconds: AtLeastZero
    critical_path: Count
    chunks: Count


@dataclasses.dataclass(frozen=True)
class Timing:
    """The answers to one prompt, by system."""

    number: Count
    prompt: str
    systems: dict[str, Timed]


@dataclasses.dataclass(frozen=True)
class Realised:
    """Of one system over the baseline: geometric means over prompts."""

    prompts: int
    speedup: float
    theoretical: float  # of the same answers
    forked: int
    speedup_of_forked: float | None
    theoretical_of_forked: float | None


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Many prompts at a time."""

    answers: int
    lanes: int  # of them at a time
    seconds: float
    tokens_per_second: float  # of text: neither tags nor topics


def speedups(timings: Sequence[Timing], system: System) -> dict[int, float]:
    """Realised speedup by prompt. Answers without tokens are left out."""
    pairs = {timing.number: (timing.systems[system], timing.systems["baseline"]) for timing in timings}
    both = {number: pair for number, pair in pairs.items() if all(one.critical_path and one.seconds for one in pair)}
    return {number: plain.seconds / own.seconds for number, (own, plain) in both.items()}


def realised(timings: Sequence[Timing], system: System) -> Realised | None:
    """The figures of a system's timings over the baseline's; None if all timed answers are empty."""
    ratios = speedups(timings, system)
    if not ratios:
        return None
    some = [timing for timing in timings if timing.number in ratios]
    forked = [timing for timing in some if timing.systems[system].chunks]

    def mean(timings: Sequence[Timing]) -> float:
        return geometric_mean(ratios[timing.number] for timing in timings)

    def mean_of_steps(timings: Sequence[Timing]) -> float:
        steps = [(timing.systems["baseline"].critical_path, timing.systems[system].critical_path) for timing in timings]
        return geometric_mean(plain / own for plain, own in steps)

    return Realised(
        prompts=len(some),
        speedup=mean(some),
        theoretical=mean_of_steps(some),
        forked=len(forked),
        speedup_of_forked=mean(forked) if forked else None,
        theoretical_of_forked=mean_of_steps(forked) if forked else None,
    )


def time_answers(tasks: Sequence[Task], questions: Sequence[Question], rounds: int, workdir: Path) -> list[Timing]:
    """Time the systems' answers to each question; an earlier run's timings are read."""
    about = {"rounds": rounds, "widths": tasks[0].config.widths}
    with _opened(workdir / "timings.jsonl", tasks, about, Timing, operator.attrgetter("number")) as done:
        timings = list(done.known.values())[: len(questions)]
        if any(timing.prompt != question.text for timing, question in zip(timings, questions, strict=False)):
            raise PastaError(f"{done.path}: of other prompts; {OTHER_WORKDIR}")
        with Progress("timings", len(questions), len(timings)) as progress:
            for question in questions[len(timings) :]:
                _, *several = [{task.system: task.alone(question) for task in tasks} for _ in range(1 + rounds)]
                systems = {}
                for task in tasks:
                    answers = [answers[task.system] for answers in several]
                    seconds = statistics.median(one.prefill_seconds + one.decode_seconds for one in answers)
                    systems[task.system] = Timed(round(seconds, 4), answers[0].critical_path, len(answers[0].chunks))
                timing = Timing(question.number, question.text, systems)
                done.add(timing)
                timings.append(timing)
                progress.add()
    return timings


def time_together(tasks: Sequence[Task], questions: Sequence[Question], workdir: Path) -> dict[str, Throughput]:
    """Each system's throughput over all questions, in the second of two runs; an earlier run's figures are read."""
    tasks = [dataclasses.replace(task, unmasked=0) for task in tasks if not task.is_rival]
    if not tasks:
        return {}
    config = tasks[0].config  # everyone's
    about = {"answers": len(questions), "lanes": config.lanes, "widths": config.widths, "packed": config.packed}
    about["prompts"] = fingerprints.of_texts([question.text for question in questions])
    kind = tuple[str, Throughput]
    with _opened(workdir / "throughput.jsonl", tasks, about, kind, operator.itemgetter(0)) as done:
        found = dict(done.known.values())
        with Progress("throughput", 2 * len(tasks) * len(questions), 2 * len(found) * len(questions)) as progress:
            for task in tasks:
                if task.system in found:
                    continue
                for _ in range(2):  # the first may compile
                    progress.note = SHOWN[task.system]
                    began, tokens = clock(), 0
                    for _, answer in task.answers(questions):
                        tokens += answer.text_tokens
                        progress.add()
                    seconds = clock() - began
                speed = round(tokens / seconds, 2)
                found[task.system] = Throughput(len(questions), config.lanes, round(seconds, 3), speed)
                done.add((task.system, found[task.system]))
    return found


def _opened(
    path: Path, tasks: Sequence[Task], about: dict[str, Any], kind: type[Record], key: records.Key[Record]
) -> AbstractContextManager[Records[Record]]:
    """A file whose first line states what its records depend on."""
    config = tasks[0].config  # everyone's
    about = about | {"machine": platform.machine(), "kernel": config.kernel, "prefill_chunk": config.prefill_chunk}
    about |= {f"{task.system}.{name}": value for task in tasks for name, value in task.depends_on().items()}
    return records.opened(path, about, kind, key, OTHER_WORKDIR)
