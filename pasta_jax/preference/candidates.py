"""Sampled answers to prompts, several per prompt, with what scoring and training need of each."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from pasta_jax.data.example import Example, encode
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import prompt_ids
from pasta_jax.decode.generate import stream
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import BUDGET, OWN
from pasta_jax.files.validated import Count
from pasta_jax.lang.structure import NO_LABEL, Positions
from pasta_jax.weights.model import Model


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One answer."""

    ids: tuple[Count, ...]  # the linear program
    text: str  # without tags
    text_tokens: Count
    critical_path: Count
    chunks: Count
    whole: bool  # neither the answer nor any of its chunks was cut off
    ended: bool  # main reached its end-of-turn
    cut: tuple[Count, ...] = ()  # chunks that did not end themselves: the linear program closes them


def candidate(result: Result) -> Candidate:
    """The candidate of a finished request."""
    trace = result.trace
    return Candidate(
        ids=tuple(trace.linear_ids()),
        text=result.text,
        text_tokens=trace.text_tokens,
        critical_path=trace.critical_path,
        chunks=len(trace.closed) - 1,
        whole=result.finish_reason == "stop" and BUDGET not in trace.closed[1:],
        ended=result.finish_reason == "stop",
        cut=tuple(number for number, closed in enumerate(trace.closed) if number and closed != OWN),
    )


def sample(
    model: Model, prompts: Mapping[int, Pair], count: int, decoding: DecodeConfig, template: Request
) -> Iterator[tuple[int, list[Candidate]]]:
    """Yield (number of a prompt, its `count` answers) as prompts finish. `template` is a request without its prompt.

    Answers to one prompt are adjacent in the queue, so that its prefix is computed once and copied. Each answer's seed
    is the template's plus its own number, so a prompt gets the same answers whether it is sampled with all prompts or
    with some of them.
    """
    numbers, requests = list(prompts), []
    for number, prompt in prompts.items():
        ids = tuple(prompt_ids(prompt, model.tokenizer))
        for answer in range(count):
            seeded = template.with_seed(number * count + answer)
            requests.append(dataclasses.replace(seeded, prompt_ids=ids))
    unfinished: dict[int, dict[int, Candidate]] = {}
    for item in stream(model, requests, decoding, round_steps=256):
        if not isinstance(item, Result):
            continue
        index, answer = divmod(item.request, count)
        answers = unfinished.setdefault(index, {})
        answers[answer] = candidate(item)
        if len(answers) == count:
            yield numbers[index], [value for _, value in sorted(unfinished.pop(index).items())]


def example_of(model: Model, prompt: Pair, answer: Candidate, positions: Positions) -> Example:
    """An answer as training reads it: its labels are the tokens that the model sampled.

    Main has no end-of-turn to learn where it was cut off, and a chunk no closing tag.
    """
    tokenizer = model.tokenizer
    ids = prompt_ids(prompt, tokenizer)
    example = encode(ids, answer.ids, tokenizer.tags, tokenizer.end_of_turn, positions, answer.ended)
    forced = (example.label == tokenizer.tags.end_async) & np.isin(example.chunk, answer.cut)
    return dataclasses.replace(example, label=np.where(forced, NO_LABEL, example.label))
