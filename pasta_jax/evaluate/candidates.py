"""Several sampled answers a prompt, with what scoring and learning need of each; the prompts and their references."""

import dataclasses
from collections.abc import Iterator, Sequence

from pasta_jax.data.example import Example, encode
from pasta_jax.decode.generate import DecodeConfig, Request, Result, stream
from pasta_jax.decode.state import BUDGET
from pasta_jax.lang.structure import Positions
from pasta_jax.models.weights import Model


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A question, and an answer to measure others by."""

    system: str  # empty: none
    instruction: str
    reference: str

    def ids(self, tokenizer) -> tuple[int, ...]:
        turns = [("system", self.system)] if self.system else []
        return tuple(tokenizer.chat([*turns, ("user", self.instruction)]))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One answer."""

    ids: tuple[int, ...]  # the linear program
    text: str  # without tags
    text_tokens: int
    critical_path: int
    chunks: int
    whole: bool  # neither the answer nor a chunk of it was cut off
    ended: bool  # main came to its end-of-turn


def candidate(result: Result) -> Candidate:
    """What is kept of a finished request."""
    trace = result.trace
    return Candidate(
        ids=tuple(trace.linear_ids()),
        text=result.text,
        text_tokens=trace.text_tokens,
        critical_path=trace.critical_path,
        chunks=len(trace.closed) - 1,
        whole=result.finish_reason == "stop" and BUDGET not in trace.closed[1:],
        ended=result.finish_reason == "stop",
    )


def sample(
    model: Model, prompts: Sequence[Prompt], first: int, count: int, settings: DecodeConfig, asked: Request
) -> Iterator[tuple[int, list[Candidate]]]:
    """(index of the prompt, its `count` answers) as they get whole. `first` is the number of the first prompt.

    Answers to one prompt stand behind each other in the queue, so that its prefix is computed once and copied. Each
    samples with a seed of its own, counted from the one asked for by the prompt's number, so that a part of the prompts
    gets the answers that it gets among all.
    """
    requests = []
    for place, prompt in enumerate(prompts, start=first):
        ids = prompt.ids(model.tokenizer)
        for number in range(count):
            seed = (asked.sampling.seed + place * count + number) % 2**32
            sampling = dataclasses.replace(asked.sampling, seed=seed)
            requests.append(dataclasses.replace(asked, prompt_ids=ids, sampling=sampling))
    unfinished: dict[int, dict[int, Candidate]] = {}
    for item in stream(model, requests, settings, round_steps=256):
        if not isinstance(item, Result):
            continue
        index, number = divmod(item.request, count)
        own = unfinished.setdefault(index, {})
        own[number] = candidate(item)
        if len(own) == count:
            yield index, [answer for _, answer in sorted(unfinished.pop(index).items())]


def example_of(model: Model, prompt: Prompt, answer: Candidate, positions: Positions) -> Example:
    """An answer as training reads it; one that was cut off has no end-of-turn to learn."""
    tokenizer = model.tokenizer
    ids = prompt.ids(tokenizer)
    return encode(ids, answer.ids, tokenizer.tags, tokenizer.end_of_turn, positions, answer.ended)
