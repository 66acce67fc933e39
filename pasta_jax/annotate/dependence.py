"""Constructed answers of known dependence, and how well the likelihood verifier tells them apart.

One answer ends with text that uses a fact of a chunk; its twin ends with text that doesn't.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

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
    kind: str
    chunk: str
    dependent: str
    independent: str


_TOPICS = (
    _Topic(
        "the museum",
        "name",
        "The museum: It was founded by a woman called {fact}, who collected model ships and old maps all her life.",
        "A bronze head at the entrance of the museum shows its founder, {fact}, with a ship in her hands.",
        "A bronze head at the entrance of the library shows its first reader, {fact}, with a book in her hands.",
    ),
    _Topic(
        "the festival",
        "place",
        "The festival: Every third summer the singers leave home and meet in {fact}, where they sing for a whole week.",
        "So if you want to hear the singers in summer, book a room in {fact} early, since the festival fills it up.",
        "So if you want to see the lighthouse in summer, book a room in {fact} early, since the beach fills it up.",
    ),
    _Topic(
        "the door",
        "colour",
        "The door: When the old house was sold, the new owner painted its heavy front door {fact} within a day.",
        "You will know the house at once by its front door, which is still {fact} today.",
        "You will know the baker at once by his long apron, which is still {fact} today.",
    ),
    _Topic(
        "the mascot",
        "animal",
        "The mascot: The club asked its youngest members for a mascot, and by a small majority they chose a {fact}.",
        "At every home game the mascot, somebody dressed up as a {fact}, runs around the field.",
        "At every market day the butcher, together with a tame {fact}, walks around the square.",
    ),
    _Topic(
        "the soup",
        "food",
        "The soup: What the cook is known for is a thick winter soup, whose main ingredient has always been {fact}.",
        "When winter comes, the cook orders many sacks of {fact} for the soup.",
        "When spring comes, the neighbour orders many sacks of {fact} for the sheep.",
    ),
    _Topic(
        "the bridge",
        "metal",
        "The bridge: Its railing was cast in one piece, and against all advice the builders made it out of {fact}.",
        "Rain has done no harm to the railing of the bridge, which is made of {fact}, in all these years.",
        "Rain has done no harm to the roof of the station, which is made of {fact}, in all these years.",
    ),
    _Topic(
        "the bus",
        "number",
        "The bus: The only line that runs up to the village after dark is number {fact}, and it leaves every hour.",
        "After dark, wait for the bus number {fact} at the stop, which takes you up to the village.",
        "By day, climb the path with its {fact} steps at the stop, which takes you up to the castle.",
    ),
    _Topic(
        "the bell",
        "year",
        "The bell: The great bell cracked in a cold night and had to be cast a second time, which was done in {fact}.",
        "The great bell that you hear today is therefore the second one, cast in {fact}.",
        "The great organ that you hear today is therefore the third one, built in {fact}.",
    ),
    _Topic(
        "the captain",
        "name",
        "The captain: In a vote that took all night the crew made {fact} their captain, by two voices only.",
        "From then on nobody touched a rope on board without a word from the captain, {fact}.",
        "From then on nobody opened a letter on land without a word from the lawyer, {fact}.",
    ),
    _Topic(
        "the key",
        "place",
        "The key: The only spare key was sent away for safety and now lies in a bank in {fact}, under a false name.",
        "Whoever loses theirs must travel all the way to the bank in {fact} for the spare key.",
        "Whoever loses theirs must write all the way to the office in {fact} for a new ticket.",
    ),
    _Topic(
        "the team",
        "colour",
        "The team: Since their first match the players have worn {fact} shirts, whatever their rivals may have worn.",
        "On match days you see {fact} shirts all over town, on players and on everybody else.",
        "On market days you see {fact} umbrellas all over town, on stalls and on everybody else.",
    ),
    _Topic(
        "the prize",
        "number",
        "The prize: The jury could not agree on one winner and in the end gave the prize to {fact} people together.",
        "The money was thus divided into {fact} equal parts, one for each of the winners.",
        "The cake was thus divided into {fact} equal parts, one for each of the children.",
    ),
)


@dataclass(frozen=True)
class Twin:
    """Two answers that differ only in their last part: `dependent` uses the fact of its chunk number `chunk`."""

    instruction: str
    dependent: Program
    independent: Program
    fact: str
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
