"""Constructed answers of known dependence, and how well the likelihood verifier tells them apart.

One answer ends with text that uses a fact of a chunk; its twin ends with text that doesn't.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pasta_jax.annotate.hiding import costs, full_row, hidden_row, score, slots_for, worst_window
from pasta_jax.annotate.likelihood import cut, known_words
from pasta_jax.lang.program import Chunk, Program, Text
from pasta_jax.lang.tags import MAX_TENS
from pasta_jax.weights.model import Model

_NAMES = (
    "Amara Brandt Celeste Dmitri Eleni Farid Greta Hamish Ingrid Jorge Keiko Lorenz Mirela Nadia Oskar Priya Quentin"
    " Rosalind Stefan Tamsin Ulrich Violet Wendel Xenia Yusuf Zelda"
)
_PLACES = (
    "Bergen Cardiff Dresden Fez Genoa Havana Izmir Jaipur Krakow Lima Malaga Nantes Oslo Porto Quito Riga Seville"
    " Tallinn Utrecht Vilnius Warsaw Zagreb"
)
_COLOURS = "red blue green yellow purple orange white black silver golden pink brown grey turquoise"
_ANIMALS = "heron badger otter falcon beaver lynx tortoise raven donkey squirrel walrus hedgehog pelican fox"
_FOODS = "lentils mushrooms cherries almonds pumpkin salmon walnuts spinach apricots barley rhubarb chestnuts"
_METALS = "copper iron brass tin zinc nickel lead bronze"
_LISTS = {
    "name": _NAMES.split(),
    "place": _PLACES.split(),
    "colour": _COLOURS.split(),
    "animal": _ANIMALS.split(),
    "food": _FOODS.split(),
    "metal": _METALS.split(),
    "number": [str(n) for n in range(13, 98)],
    "year": [str(n) for n in range(1807, 1990)],
}


@dataclass(frozen=True)
class _Topic:
    """`{fact}` is the chunk's; `dependent` uses it, `independent` speaks of something else, with its own value."""

    topic: str
    kind: str  # a key of _LISTS
    chunk: str
    dependent: str
    independent: str


_TOPICS = tuple(
    msgspec.json.decode(line, type=_Topic)
    for line in Path(__file__).with_name("dependence.jsonl").read_bytes().splitlines()
)


@dataclass(frozen=True)
class Twin:
    """Two answers that differ only in their last part: `dependent` uses the fact of its chunk number `chunk`."""

    instruction: str
    dependent: Program
    independent: Program
    fact: str  # empty: several
    chunk: int  # 0 or 1: which of the first two chunks contains the fact
    by_sibling: bool  # the last part is a third chunk; else it is main text


def twins(count: int, seed: int) -> list[Twin]:
    """Pairs of answers; their last part alternates between main text and a sibling chunk."""
    return [_twin(random.Random(f"{seed} {n}"), by_sibling=n % 2 == 1) for n in range(count)]


def _twin(rng: random.Random, by_sibling: bool) -> Twin:
    subject, other = rng.sample(_TOPICS, 2)
    fact, fresh = rng.sample(_LISTS[subject.kind], 2)
    unrelated = rng.choice([value for value in _LISTS[other.kind] if value not in (fact, fresh)])
    chunk = rng.randrange(2)
    bodies = [(subject.topic, subject.chunk.format(fact=fact)), (other.topic, other.chunk.format(fact=unrelated))]
    if chunk:
        bodies.reverse()
    style = rng.randrange(3)
    opening, separators, end = (
        ("Here is what there is to know.\n\n1.", ("\n2.", "\n3."), "\n\n"),
        ("There is something to tell about each.\n\n-", ("\n-", "\n-"), "\n\n"),
        ("Let me tell you.", ("", ""), ""),
    )[style]
    instruction = f"Tell me about {bodies[0][0]} and {bodies[1][0]}" + rng.choice(
        (".", " in a few words.", ", please.")
    )

    def answer(last: str) -> Program:
        parts = [Text(opening), _chunk(*bodies[0]), Text(separators[0]), _chunk(*bodies[1])]
        parts += [Text(separators[1]), _chunk("besides", last)] if by_sibling else [Text(f"{end or ' '}{last}")]
        return Program(tuple(parts))

    dependent = answer(subject.dependent.format(fact=fact))
    independent = answer(subject.independent.format(fact=fresh))
    return Twin(instruction, dependent, independent, fact, chunk, by_sibling)


def parallel_twins() -> list[Twin]:
    """Answers of two chunks with the form of each other: the second uses facts of the first, or only its form."""
    lines = Path(__file__).with_name("parallel.jsonl").read_bytes().splitlines()

    def answer(first: str, last: str) -> Program:
        chunks = [_chunk(text.partition(":")[0], text) for text in (first, last)]
        return Program((Text("Here is what there is to know.\n\n-"), chunks[0], Text("\n-"), chunks[1]))

    return [
        Twin(row["question"], answer(row["first"], row["uses"]), answer(row["first"], row["other"]), "", 0, True)
        for row in map(msgspec.json.decode, lines)
    ]


def _chunk(topic: str, text: str) -> Chunk:
    return Chunk(topic, MAX_TENS, " " + text)


@dataclass(frozen=True)
class TwinCosts:
    """What the verifier measures of the last part of both answers, in nats per token."""

    dependent: float
    independent: float


def last_costs(model: Model, twin: Twin, window: int, lengths: tuple[int, ...]) -> TwinCosts:
    """Cost the last part of both answers."""
    messages = [("user", twin.instruction)]
    prompt_ids = model.tokenizer.chat(messages)

    def last_cost(program: Program) -> float:
        pieces, plan = cut(program, model.tokenizer)
        hidden, last = hidden_row(pieces, plan, prompt_ids), len(pieces) - 1
        slots = slots_for(hidden, lengths)
        full = score(model, full_row(pieces, prompt_ids), [last], slots)
        rows = full, score(model, hidden, [last], slots, [full])
        return worst_window(costs(pieces, plan, rows, known_words(messages))[last], window)

    return TwinCosts(last_cost(twin.dependent), last_cost(twin.independent))


@dataclass(frozen=True)
class Detection:
    """How well costs separate dependent from independent text."""

    pairs: int
    auc: float
    threshold: float  # the cost that separates best, in nats per token
    accuracy: float  # at that threshold
    detected: float  # share of dependent parts above the limit in use
    false_alarms: float  # share of independent parts above it


def detect(costs: Sequence[TwinCosts], max_cost: float) -> Detection:
    """The figures of a set of twins, with `max_cost` as the limit in use."""
    dependent, independent = [cost.dependent for cost in costs], [cost.independent for cost in costs]
    best, accuracy = threshold(dependent, independent)
    above = [sum(cost > max_cost for cost in group) / len(group) for group in (dependent, independent)]
    return Detection(len(costs), auc(dependent, independent), best, accuracy, *above)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Area under the ROC curve: the share of (positive, negative) in order, ties counted half."""
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def threshold(positive: Sequence[float], negative: Sequence[float]) -> tuple[float, float]:
    """(the cost between two measured ones that separates best, the middle one of equals; its accuracy)."""
    values = sorted({*positive, *negative})
    candidates = [(low + high) / 2 for low, high in itertools.pairwise(values)] or values
    correct = [sum(p > at for p in positive) + sum(n <= at for n in negative) for at in candidates]
    best = [at for at, count in zip(candidates, correct, strict=True) if count == max(correct)]
    return best[len(best) // 2], max(correct) / (len(positive) + len(negative))
