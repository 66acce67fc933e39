"""A model's answer to a prompt of an evaluation, as one record: its text, its threads, its steps and seconds."""

import dataclasses

import numpy as np

from pasta_jax.decode.request import Result
from pasta_jax.evaluate.questions import Question
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.lang.program import LangError, Program
from pasta_jax.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ChunkFigures:
    """A chunk and its promise, or a point of a skeleton."""

    topic: str
    promised: Count  # ids, a multiple of ten; 0: a point, which nothing promises a length of
    length: Count  # ids of its block, both tags included
    closed: str  # own, budget, request (trace.CLOSED_NAMES)
    first_step: Count
    last_step: Count


@dataclasses.dataclass(frozen=True)
class Fed:
    """Every token that was fed, in order: what steps, critical path and timelines can be counted again from."""

    ids: tuple[Count, ...]
    threads: tuple[Count, ...]
    steps: tuple[Count, ...]

    @staticmethod
    def of(*columns: np.ndarray) -> "Fed":
        """The tokens of an answer: their ids, threads and steps."""
        return Fed(*(tuple(column.tolist()) for column in columns))


@dataclasses.dataclass(frozen=True)
class SystemAnswer:
    """One answer. Seconds are of its own request; with several lanes, other requests shared the device meanwhile."""

    prompts: str  # name of the set of prompts
    number: Count  # of the prompt in the set
    prompt: str
    text: str  # in reading order, without tags
    program: str  # in surface form
    malformed: bool  # not a program of the language
    malformed_unmasked: bool | None  # whether it would be without the grammar mask; None: not measured
    finished: bool  # main reached its end of turn
    tokens: Count  # fed, tags included
    text_tokens: Count
    critical_path: Count
    steps: Count
    chunks: tuple[ChunkFigures, ...]
    seed: Count
    prefill_seconds: AtLeastZero
    decode_seconds: AtLeastZero
    fed: Fed


def answer_of(
    question: Question, seed: int, result: Result, tokenizer: Tokenizer, malformed_unmasked: bool | None
) -> SystemAnswer:
    """The record of a finished request."""
    trace = result.trace
    return SystemAnswer(
        prompts=question.prompts,
        number=question.number,
        prompt=question.text,
        text=result.text,
        program=trace.program().render(),
        malformed=is_malformed(trace.linear_ids(), tokenizer),
        malformed_unmasked=malformed_unmasked,
        finished=result.finish_reason == "stop",
        tokens=len(trace.token),
        text_tokens=trace.text_tokens,
        critical_path=trace.critical_path,
        steps=trace.steps,
        chunks=tuple(
            ChunkFigures(
                thread.topic, 10 * thread.tens, thread.length, thread.closed, thread.first_step, thread.last_step
            )
            for thread in trace.threads()[1:]
        ),
        seed=seed,
        prefill_seconds=round(trace.prefill_ms / 1000, 4),
        decode_seconds=round(trace.decode_ms / 1000, 4),
        fed=Fed.of(trace.token, trace.thread, trace.step),
    )


def is_malformed(ids: list[int], tokenizer: Tokenizer) -> bool:
    """Whether linear ids are no program of the language."""
    try:
        Program.from_ids(ids, tokenizer)
    except LangError:
        return True
    return False
