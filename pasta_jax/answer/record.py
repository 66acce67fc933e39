"""What is written and said about an answer: its record, the files that show it, and figures in one line."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from pasta_jax.answer.job import Job
from pasta_jax.decode.request import Result
from pasta_jax.decode.state import OWN
from pasta_jax.decode.trace import Trace
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.view.page import page
from pasta_jax.view.perfetto import to_perfetto
from pasta_jax.view.picture import picture
from pasta_jax.view.trace_file import to_json


@dataclasses.dataclass(frozen=True)
class AnswerRecord:
    """One answer, as a line of --output."""

    index: Count
    prompt: str
    text: str
    program: str
    model: str
    dataset: str | None
    sequential: bool
    replayed: bool
    finish_reason: str
    prompt_tokens: Count
    tokens: Count
    text_tokens: Count
    chunks: Count
    steps: Count
    critical_path: Count
    parallelism: AtLeastZero
    prefill_ms: AtLeastZero
    decode_ms: AtLeastZero
    baseline_tokens: Count | None
    theoretical_speedup: AtLeastZero | None
    drafts: Count | None = None  # guesses of next tokens that were fed, and those of them that were right
    drafts_kept: Count | None = None
    system: str | None = None  # the system message
    cut: Count | None = None  # chunks that did not end themselves, if any

    def fields(self) -> dict[str, str | int | float | bool]:
        """The record as plain data: first the fields that AlpacaEval reads, by its names; None is left out."""
        alpaca_eval = {"instruction": self.prompt, "output": self.text, "generator": self.model}
        return alpaca_eval | {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def json(self) -> str:
        """The record on one line."""
        return json.dumps(self.fields(), ensure_ascii=False)


def record_of(job: Job, result: Result, sequential: bool) -> AnswerRecord:
    """The record of an answer."""
    trace, baseline = result.trace, baseline_of(job, result.request)
    if not trace.critical_path:
        baseline = None
    return AnswerRecord(
        index=result.request,
        prompt=trace.prompt,
        text=result.text,
        program=trace.program().render(),
        model=trace.model,
        dataset=job.prompts[result.request].dataset,
        sequential=sequential,
        replayed=trace.replayed,
        finish_reason=result.finish_reason,
        prompt_tokens=len(trace.prompt_ids),
        tokens=len(trace.token),
        text_tokens=trace.text_tokens,
        chunks=len(trace.closed) - 1,
        steps=trace.steps,
        critical_path=trace.critical_path,
        parallelism=round(trace.parallelism, 4),
        prefill_ms=trace.prefill_ms,
        decode_ms=round(trace.decode_ms, 3),
        baseline_tokens=baseline,
        theoretical_speedup=None if baseline is None else round(trace.speedup(baseline), 4),
        system=job.system or None,
        cut=sum(closed != OWN for closed in trace.closed[1:]) or None,
        **({"drafts": result.drafts_fed, "drafts_kept": result.drafts_kept} if result.drafts_fed else {}),
    )


def baseline_of(job: Job, request: int) -> int | None:
    """Tokens of the sequential answer to the same prompt; None if unknown or empty."""
    return None if job.baseline_tokens is None else job.baseline_tokens[request] or None


def write_records(path: Path, records: Sequence[AnswerRecord]) -> None:
    """Write --output: JSON lines, or the list that AlpacaEval reads if the name ends in .json."""
    lines = [record.json() for record in records]
    if path.suffix == ".json":
        lines = ["[", *(f"{line}," for line in lines[:-1]), *lines[-1:], "]"]
    write_whole(path, "".join(f"{line}\n" for line in lines))


def write_pictures(job: Job, result: Result) -> None:
    """Write the files that show one answer."""
    baseline = baseline_of(job, result.request)
    writers: dict[str, Callable[[Trace], str]] = {
        "trace": to_json,
        "perfetto": lambda trace: json.dumps(to_perfetto(trace), ensure_ascii=False),
        "html": lambda trace: page(trace, baseline),
        "svg": picture,
    }
    for flag, path in job.outputs.by_flag().items():
        if flag in writers:
            write_whole(job.path_for(path, result.request), writers[flag](result.trace))


def summary(record: AnswerRecord) -> str:
    """The figures of one answer."""
    text = f"{record.tokens} tokens in {record.steps} steps"
    if not record.sequential:
        text += f" (critical path {record.critical_path}, parallelism {record.parallelism:.2f})"
    if record.theoretical_speedup is not None:
        text += (
            f", theoretical speedup {record.theoretical_speedup:.2f} over {record.baseline_tokens} sequential tokens"
        )
    if record.decode_ms > 0:
        text += f", {1000 * record.tokens / record.decode_ms:.0f} tokens/s"
    return text


def summary_of_many(records: Sequence[AnswerRecord]) -> str:
    """The figures of all answers; means are geometric, over answers that are not empty."""
    text = f"{len(records)} answers, {sum(record.tokens for record in records)} tokens"
    for name, values in (
        ("parallelism", [record.parallelism for record in records]),
        ("theoretical speedup", [record.theoretical_speedup for record in records]),
    ):
        if positive := [value for value in values if value]:
            text += f", {name} {geometric_mean(positive):.2f}"
    return text
