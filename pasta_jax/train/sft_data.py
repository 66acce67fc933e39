"""The data of supervised training: records or problems of the toy task, as batches and held-out batches."""

import dataclasses
from collections.abc import Sequence

import jax

from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.builder import Examples
from pasta_jax.data.example import Example, encode
from pasta_jax.data.packing import Batch
from pasta_jax.data.sources import origin
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.remote import path_of
from pasta_jax.progress import say
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.toy.task import HELD_OUT, problems
from pasta_jax.train.settings import SftSettings
from pasta_jax.train.stray import with_strays


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run reads."""

    feed: Feed
    held_out: tuple[Batch, ...]
    prompts: tuple[tuple[int, ...], ...]  # held-out, for the probe
    fingerprint: str
    origins: tuple[str, ...]  # each set that is trained on, with its terms


def read_data(settings: SftSettings, tokenizer: Tokenizer) -> Data:
    """Problems of the toy task, or records that launch.annotate wrote."""
    data = settings.data
    if bool(data.toy) == bool(data.records):
        raise PastaError(
            "config.data: set either records=<folder written by launch.annotate> or toy=<level of the toy task>"
        )
    if settings.tree and (data.toy or settings.strip_tags or settings.positions.policy != "shared_start"):
        raise PastaError("config.tree: needs records, strip_tags False, and positions.policy shared_start")
    if data.toy:
        if data.toy_seed == HELD_OUT:
            raise PastaError(f"config.data.toy_seed {HELD_OUT}: its problems are held out; use another seed")
        train = toy_examples(settings, tokenizer, data.toy_seed, data.toy_count)
        held_out = toy_examples(settings, tokenizer, HELD_OUT, data.held_out)
        fingerprint = fingerprint_of_examples([*train, *held_out])
        origins = (f"the toy task, level {data.toy}, {data.toy_count} problems: made by a program of this project",)
    else:
        arguments = tokenizer, settings.strip_tags, settings.positions, settings.tree
        train = Examples(path_of(data.records), "train", *arguments)
        fingerprint = train.about.fingerprint
        origins = tuple(map(origin, train.about.sources))
        held_out = []
        if data.held_out:
            validation = Examples(path_of(data.records), "validation", *arguments)
            held_out = [validation[number] for number in range(min(len(validation), data.held_out))]
    if data.stray:
        if settings.strip_tags or settings.tree:
            raise PastaError("config.data.stray: needs chunks with [/ASYNC]; set it to 0 with strip_tags or tree")
        about = settings.train.seed, tokenizer.tags, tokenizer.end_of_turn, settings.positions
        train = [with_strays(example, data.stray, *about) for example in train]
    layout = Layout(data.lengths, data.rows, data.packed, data.too_long)
    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    feed = Feed(train, layout, **hosts, name="training records")
    say(f"data {fingerprint}: {len(train)} records, {feed.dropped} too long for {data.lengths[-1]} tokens")
    batches = ()
    if held_out:
        measured = Feed(held_out, layout, **hosts, name="held-out records")
        say(f"held out: {len(held_out)} records, {measured.dropped} too long")
        batches = tuple(measured.batch(0, step) for step in range(measured.steps(0, 1)))
    return Data(feed, batches, tuple(map(prompt_of, held_out[: settings.probe.prompts])), fingerprint, origins)


def toy_examples(settings: SftSettings, tokenizer: Tokenizer, seed: int, count: int) -> list[Example]:
    """Problems of the toy task as a model reads them."""
    examples = []
    for problem in problems(seed, 0, count, settings.data.toy):
        prompt = tokenizer.chat([("user", problem.instruction)])
        answer = tokenizer.encode(problem.answer) if settings.strip_tags else problem.program(tokenizer).ids(tokenizer)
        examples.append(encode(prompt, answer, tokenizer.tags, tokenizer.end_of_turn, settings.positions))
    return examples


def fingerprint_of_examples(examples: Sequence[Example]) -> str:
    """Of all arrays of the examples."""
    fields = dataclasses.fields(Example)
    return fingerprints.of_bytes(getattr(one, field.name).tobytes() for one in examples for field in fields)


def prompt_of(example: Example) -> tuple[int, ...]:
    """An example's prompt, as ids."""
    return tuple(example.token[: example.prompt_length].tolist())
