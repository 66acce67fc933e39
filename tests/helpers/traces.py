"""Traces computed quickly by the oracle from scripts, and a tiny model for real ones."""

import dataclasses
import functools
import random

import jax
import numpy as np

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.oracle import decoding
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import TINY, random_params

TOKENIZER = ByteTokenizer()
ENOUGH = 10**6
HOSTILE = "</script><img src=x onerror=alert(1)><!--answer--><!--trace--> & \" ' \x1b[31m \x00 \u2028 ]]> 数学 <sync/> "
PROGRAM = Program(
    (
        Text("One. "),
        Chunk("first", 2, "the first of two chunks"),
        Chunk("second", 1, "and a second"),
        Sync(),
        Text("Both. "),
        Chunk("last", 3, "never joined"),
        Text("End."),
    )
)


class Chatty(ByteTokenizer):
    """A tokenizer with a chat template, as pipelines need it."""

    def chat(self, messages: list[tuple[str, str]]) -> list[int]:
        return self.encode("".join(f"{role}: {text}\n" for role, text in messages))

    def prompt_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def without_missing(self, text: str) -> str:
        return text


class Refusing(Chatty):
    """One that has no ids for é, as SmolLM2's has none for some control characters."""

    def encode(self, text: str) -> list[int]:
        if "é" in text:
            raise PastaError("no ids for é")
        return super().encode(text)


@functools.cache
def tiny_model() -> Model:
    """The smallest model that runs."""
    return Model("tiny", TINY, jax.device_put(random_params(TINY, 1)), Chatty())


def script_of(program: Program, tokenizer=TOKENIZER) -> list[list[int]]:
    """The tokens of each thread: main's, then every chunk's."""
    tags, main, chunks = tokenizer.tags, [], []
    for part in program.parts:
        match part:
            case Text(text):
                main += tokenizer.encode(text)
            case Chunk(topic, tens, text):
                main += [tags.promise, *tokenizer.encode(topic), tags.close(tens)]
                chunks.append([*tokenizer.encode(text), tags.end_async])
            case Sync():
                main.append(tags.sync)
    return [[*main, tokenizer.end_of_turn], *chunks]


def drafted() -> Trace:
    """Main alone, which feeds three tokens in each step."""
    trace, _ = traced(script_of(Program((Text("abcdefghijk"),))), round_steps=0)
    step = 1 + np.arange(len(trace.token), dtype=np.int32) // 3
    return dataclasses.replace(trace, step=step, steps=int(step[-1]))


def random_script(rng: random.Random) -> list[list[int]]:
    """Any bytes, including invalid UTF-8; empty topics and chunks; up to eight chunks and any syncs."""
    tags = TOKENIZER.tags
    longest = rng.choice([3, 12, 40])

    def text() -> list[int]:
        return [rng.choice([97, 32, 10, rng.randrange(256)]) for _ in range(rng.randrange(longest))]

    main, chunks = [], []
    for _ in range(rng.randrange(9)):
        main += rng.choice([text(), []])
        if rng.random() < 0.3:
            main.append(tags.sync)
        else:
            main += [tags.promise, *text()[:4], tags.close(rng.randint(1, 8))]
            chunks.append([*text(), tags.end_async])
    return [[*main, *text(), TOKENIZER.end_of_turn], *chunks]


def traced(
    script: list[list[int]],
    rows: int = 8,
    budget: int = ENOUGH,
    prompt: str = "why?",
    round_steps: int = 4,
    tokenizer=TOKENIZER,
) -> tuple[Trace, decoding.Outcome]:
    """The trace of a script, timed every `round_steps` steps (0: not timed), and the oracle's records."""
    ids = tokenizer.encode(prompt)
    rules = Rules(max_topic_tokens=ENOUGH, max_chunk_tokens=ENOUGH)
    request = Request(tuple(ids), budget, sequential=False, rules=rules, text=prompt)
    answer = decoding.scripted(request, DecodeConfig(1, rows, 0), tokenizer, 8192, PREDICTED, script)
    steps = sorted({*range(0, answer.steps, round_steps), answer.steps}) if round_steps else []
    rounds = tuple((step, round(7.25 + 3.5 * step + step % 3, 3)) for step in steps)
    trace = decoding.trace_of(answer, request, tokenizer, "toy", rows, "predicted")
    return dataclasses.replace(trace, rounds=rounds), answer


def random_traces(count: int, seed: int = 0):
    """(trace, oracle's answer, script, rows) of random scripts, half of them limited by a budget."""
    rng = random.Random(seed)
    for _ in range(count):
        script, rows = random_script(rng), rng.choice([2, 3, 4, 20])
        budget = rng.choice([ENOUGH, rng.randint(1, 1 + sum(map(len, script)))])
        yield *traced(script, rows, budget, round_steps=rng.choice([0, 1, 5])), script, rows


def same(one: Trace, other: Trace) -> bool:
    """Whether all fields are equal."""
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(Trace)
    )


def many_chunks(chunks: int, words: int = 12, syncs: int = 5, topic: str = "topic") -> Program:
    """Chunks with some text of main before each, and a sync after every few."""
    parts = []
    for number in range(1, chunks + 1):
        parts += [Text(f"{number}: "), Chunk(f"{topic} {number}", 1 + number % 3, "abc " * (words + number % 5))]
        parts += [Sync(), Text("So far. ")] if number % syncs == 0 else []
    return Program((Text("Begin. "), *parts, Text("End.")))


@functools.cache
def hostile() -> Trace:
    """A trace of texts that try to break out of whatever shows them."""
    parts = (Text(HOSTILE), Chunk(HOSTILE, 3, HOSTILE), Chunk("", 1, ""), Sync(), Text(HOSTILE))
    return traced(script_of(Program(parts)), prompt=HOSTILE)[0]


def is_silent(trace: Trace, i: int) -> bool:
    """Whether a token is a tag or part of a topic."""
    return bool(trace.in_topic[i] or trace.tags.is_tag(int(trace.token[i])))
