"""Generator of programs.jsonl, which `launch.benchmark interpreter` replays: 43 programs of parallelism 1.0 to 4.0.

    python -m pasta_jax.benchmark.generate_programs

The same seed writes the same bytes. Sentences are random combinations of phrases, lengths are tokens of SmolLM2
(launch/setup.sh --assets). A program is one or more rounds: main text, chunks, a sync, main text.
"""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from pasta_jax.files import packages
from pasta_jax.files.atomic import write_lines
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.tags import tens_for
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer

SEED = 7
PROGRAMS = Path(__file__).with_name("programs.jsonl")

SUBJECTS = (
    *("The river", "A good bridge", "The old town", "Our garden", "Fresh bread", "The first engine", "A small team"),
    *("The night train", "Warm light", "Every teacher", "The market", "Clean water", "A long walk", "The harbour"),
    *("Early spring", "The library"),
)
VERBS = (
    *("needs", "brings", "keeps", "changes", "carries", "follows", "supports", "explains", "begins with", "depends on"),
    *("grows with", "improves", "connects", "protects", "reaches", "prepares"),
)
OBJECTS = (
    *("more than one reason", "the people who live nearby", "a steady supply of wood", "what we saw last year"),
    *("the work of many hands", "an honest plan", "time and patience", "the shape of the coast"),
    *("new roads and old paths", "a quiet morning", "the price of grain", "clear rules", "what comes after it"),
    *("simple tools", "the weather of the week", "careful notes"),
)
ENDINGS = (
    *("", "", " in most years", " without much noise", " when the days are short", " as everyone knows"),
    *(" at a fair cost", " even in winter", " for a while"),
)
TOPICS = (
    *("water supply", "old roads", "first steps", "main costs", "local food", "safety rules", "travel time", "history"),
    *("materials", "weather", "weekly plan", "people", "tools", "next year", "short summary", "repairs", "trade"),
    "schools",
)


@dataclasses.dataclass(frozen=True)
class Round:
    """Fewest tokens of the main text before the chunks, of each chunk, and of the main text behind the sync."""

    opening: int
    chunks: tuple[int, ...]
    closing: int | None  # None: no sync, the program ends with its chunks


def shapes(rng: random.Random) -> Iterator[tuple[Round, ...]]:
    """The rounds of one program after another. Each is drawn on request, between the texts of its neighbours.

    The file depends on the order of draws within a program as much as on the seed.
    """

    def chunks(count: int, fewest: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randint(fewest, most) for _ in range(count))

    for length in (110, 240, 400):  # nothing is parallel
        yield (Round(length, (), None),)
    for count in (2, 2, 3, 3, 4):  # mostly main text
        yield (Round(rng.randint(60, 120), chunks(count, 25, 60), rng.randint(40, 80)),)
    for count in (2, 3, 3, 4, 4, 5, 5, 6):  # mostly chunks
        yield (Round(rng.randint(10, 30), chunks(count, 40, 80), rng.randint(0, 40)),)
    for count in (3, 4, 4, 5, 5, 5, 6):  # no sync
        yield (Round(rng.randint(5, 15), chunks(count, 45, 75), None),)
    for count in (2, 3, 4, 5):  # two forks
        first = Round(rng.randint(10, 30), chunks(count, 30, 60), 15)
        yield first, Round(rng.randint(8, 20), chunks(count, 30, 60), rng.randint(10, 30))
    for count in (3, 4, 5, 6):  # chunks of very different lengths
        yield (Round(12, chunks(count, 15, 110), rng.randint(0, 20)),)
    for count in (4, 5, 5, 6, 6, 6):  # chunks of almost the same length, no sync: the most parallel
        yield (Round(8, chunks(count, 50, 62), None),)
    for count in (6, 8, 10):  # many short chunks
        yield (Round(10, chunks(count, 18, 30), 20),)
    for count in (2, 2, 3):  # three forks, the second of one chunk
        yield Round(15, chunks(count, 50, 90), 5), Round(5, chunks(1, 20, 40), 5), Round(5, chunks(2, 40, 80), 15)


def sentence(rng: random.Random) -> str:
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}{rng.choice(ENDINGS)}."


def text(rng: random.Random, tokenizer: Tokenizer, fewest: int) -> str:
    """Whole sentences of at least `fewest` tokens together; none for 0."""
    sentences: list[str] = []
    while len(tokenizer.encode(" ".join(sentences))) < fewest:
        sentences.append(sentence(rng))
    return " ".join(sentences)


def program(rng: random.Random, tokenizer: Tokenizer, rounds: Sequence[Round]) -> Program:
    """Random text in the shape of `rounds`."""
    parts: list[Text | Chunk | Sync] = []
    for shape in rounds:
        parts.append(Text(text(rng, tokenizer, shape.opening) + " "))
        for fewest in shape.chunks:
            body = text(rng, tokenizer, fewest)
            parts += [Chunk(rng.choice(TOPICS), tens_for(len(tokenizer.encode(body)) + 2), body), Text("\n")]
        if shape.closing is not None:
            parts += [Sync(), Text(text(rng, tokenizer, shape.closing))]
    return Program(tuple(parts))


def programs(seed: int, tokenizer: Tokenizer) -> Iterator[Program]:
    """All programs of a seed."""
    rng = random.Random(seed)
    for rounds in shapes(rng):
        yield program(rng, tokenizer, rounds)


def lines(seed: int, tokenizer: Tokenizer) -> Iterator[str]:
    """The lines of programs.jsonl."""
    for one in programs(seed, tokenizer):
        yield json.dumps({"program": one.render()})


if __name__ == "__main__":
    write_lines(PROGRAMS, lines(SEED, load_tokenizer(packages.path("smollm2_135m"))))
