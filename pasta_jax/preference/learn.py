"""Step 4 of a round: train on the pairs, with log-probabilities from the frozen reference."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.example import Example
from pasta_jax.data.packing import Batch, by_length, pack
from pasta_jax.decode.generate import positions_for
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import Count, Finite
from pasta_jax.files.workdir import claim
from pasta_jax.models.sharding import devices_of, mesh_of, shard_rows, sharing_rows, to_decode_with, training_mesh
from pasta_jax.preference.artifacts import Artifact, Step
from pasta_jax.preference.candidates import example_of
from pasta_jax.preference.loss import best_of_n_margin, preference_loss
from pasta_jax.preference.pair import PromptPair
from pasta_jax.preference.sample import Answers
from pasta_jax.preference.stage import RoundModel, Stage
from pasta_jax.progress import Progress, say
from pasta_jax.runs import processes
from pasta_jax.runs.checkpoint import fingerprint_of_params, provenance
from pasta_jax.runs.settings import FREE
from pasta_jax.train.fit import Watch, fit
from pasta_jax.train.legal import Grammar
from pasta_jax.train.loop import Run
from pasta_jax.train.loss import log_probabilities
from pasta_jax.train.optimizer import new_optimizer, schedule
from pasta_jax.train.pairs import PairExample, PairFeed
from pasta_jax.train.settings import Intervals, Keep, parts_of
from pasta_jax.train.speed import flops_per_token, peak_flops
from pasta_jax.train.state import Params, new_state
from pasta_jax.train.trainable import place, scoring


@dataclasses.dataclass(frozen=True)
class ReferenceScore:
    """The reference's log-probabilities of a pair's answers."""

    prompt: Count
    better: Finite
    worse: Finite


def learn(
    stage: Stage,
    start: RoundModel,
    reference: str,
    frozen: Params | None,
    samples: Artifact[Answers],
    pairs: Artifact[PromptPair],
    watch: Watch,
) -> RoundModel | None:
    """Train the model that the round starts from; None if it was stopped.

    `reference` is the fingerprint of Pasta-SFT; `frozen` are the parameters under an adapter, on their devices.
    """
    settings, train, tokenizer = stage.settings, stage.settings.train, stage.sft.tokenizer
    encoded = encode_pairs(stage, samples, pairs)
    scores = score_reference(stage, encoded, samples, pairs, reference)
    margin = settings.loss.margin or best_of_n_margin(settings.sample.count)
    loss = dataclasses.replace(settings.loss, margin=margin)
    positions = dataclasses.asdict(positions_for(stage.sft))
    adapter = dataclasses.asdict(settings.adapter)
    del adapter["dtype"]  # of the file that is written at the end
    trained = {name: value for name, value in dataclasses.asdict(train).items() if f"train.{name}" not in FREE}
    inputs = {
        "start": start.fingerprint,
        "samples": samples.fingerprint,
        "pairs": pairs.fingerprint,
        "reference": scores.fingerprint,
        "loss": dataclasses.asdict(loss),
        "train": trained,
        "adapter": adapter,
        "positions": positions,
    }
    examples = [
        dataclasses.replace(encoded[score.prompt], reference_better=score.better, reference_worse=score.worse)
        for score in scores.records
    ]
    feed = PairFeed(examples, train.lengths, train.rows, jax.process_index(), jax.process_count())
    steps = feed.steps(train.seed, train.epochs)
    optimizer = new_optimizer(train, steps)
    # A copy, because training donates its state's memory and later rounds start from Pasta-SFT's parameters too.
    state = new_state(jax.tree.map(jnp.copy, start.params), optimizer, train.seed)
    mesh = training_mesh(settings.mesh)
    run = Run(
        steps=steps,
        accumulate=parts_of(train, train.rows, sharing_rows(mesh)),
        batch=feed.batch,
        loss=preference_loss(
            scoring(train, stage.sft),
            loss,
            Grammar(tokenizer.tags, tokenizer.stop_ids) if settings.loss.legal else None,
        ),
        optimizer=optimizer,
        learning_rate=schedule(train, steps),
        flops_per_token=flops_per_token(
            stage.sft.params, stage.sft.config, train.lengths[-1], bool(settings.adapter.rank)
        ),
        peak_flops=peak_flops(devices_of(mesh)),
        every=Intervals(log=settings.every.log, held_out=0, probe=0, save=settings.every.save),
    )
    about = provenance(inputs, pairs.fingerprint, positions)
    folder = stage.artifacts.path("train", inputs)
    # Runs may share artifacts, and the processes of this run share the folder.
    with claim(folder, wait=True) if processes.is_first() else contextlib.nullcontext(), watch() as stopping:
        processes.told("claimed", str)
        result = fit(
            folder=folder,
            run=run,
            state=place(state, mesh),
            frozen=frozen,
            provenance=about,
            keep=Keep(newest=1),
            tensorboard=False,
            stopping=stopping,
        )
        # A signal (to the first process) in the last step or save: the round is done, and what follows is not begun.
        stopped = result.complete and processes.told(stopping(), bool)
    if stopped or not result.complete:
        return None
    params = result.state.trainable
    return RoundModel(start.round + 1, params, fingerprint_of_params(params))


def encode_pairs(stage: Stage, samples: Artifact[Answers], pairs: Artifact[PromptPair]) -> dict[int, PairExample]:
    """The pairs by prompt, with the model's own positions; those too long for a row are left out."""
    positions = positions_for(stage.sft)
    longest, encoded, left_out = stage.settings.train.lengths[-1], {}, 0
    for pair in pairs.records:
        if pair.better is None or pair.worse is None:
            continue
        prompt, answers = stage.prompts[pair.prompt], samples.records[pair.prompt].answers
        better, worse = (
            example_of(stage.sft, prompt, answers[number], positions) for number in (pair.better, pair.worse)
        )
        if len(example := PairExample(better, worse)) > longest:
            left_out += 1
        else:
            encoded[pair.prompt] = example
    if left_out:
        say(f"train: left out {left_out} pairs longer than {longest} tokens")
    if not encoded:
        raise PastaError(f"no pair fits into {longest} tokens; raise config.train.lengths")
    return encoded


def score_reference(
    stage: Stage,
    encoded: Mapping[int, PairExample],
    samples: Artifact[Answers],
    pairs: Artifact[PromptPair],
    reference: str,
) -> Artifact[ReferenceScore]:
    """Pasta-SFT's log-probabilities of all answers to learn from, computed once."""
    train, form, prompts = stage.settings.train, scoring(stage.settings.train, stage.sft), list(encoded)
    inputs = {
        "model": reference,
        "samples": samples.fingerprint,
        "pairs": pairs.fingerprint,
        "lengths": list(train.lengths),
        "rows": train.rows,
        "products": train.products,
        "positions": dataclasses.asdict(positions_for(stage.sft)),
    }
    params = to_decode_with(stage.sft.params)  # each process scores a share
    mesh = mesh_of(params)
    score = jax.jit(lambda params, batch: log_probabilities(form, params, batch))

    def scores(examples: list[Example]) -> list[float]:
        return score_examples(
            lambda batch: score(params, shard_rows(batch, mesh)), examples, train.lengths, 2 * train.rows
        )

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, ReferenceScore]]:
        some = [encoded[prompts[number]] for number in numbers]
        better, worse = scores([pair.better for pair in some]), scores([pair.worse for pair in some])
        for number, *values in zip(numbers, better, worse, strict=True):
            yield number, ReferenceScore(prompts[number], *values)

    def fits(number: int, record: ReferenceScore) -> bool:
        return record.prompt == prompts[number]

    count = len(prompts)
    return stage.artifacts.make(Step("reference", inputs, ReferenceScore, count, compute, count, fits))


def score_examples(
    score: Callable[[Batch], jax.Array], examples: Sequence[Example], lengths: tuple[int, ...], rows: int
) -> list[float]:
    """The log-probability of each example; `score(batch)` returns those of a batch's rows.

    Examples are grouped into batches the same way in every run, so a value never depends on what was computed before.
    """
    longest = max(map(len, examples), default=0)
    if longest > lengths[-1]:
        raise PastaError(f"an answer has {longest} tokens with its prompt, rows have {lengths[-1]}; raise lengths")
    values = [0.0] * len(examples)
    with Progress("scoring answers", len(examples)) as progress:
        for numbers, length in by_length([*map(len, examples)], lengths, rows):
            batch = pack([[examples[number]] for number in numbers] + [[]] * (rows - len(numbers)), length)
            for number, value in zip(numbers, np.asarray(score(batch)), strict=False):
                values[number] = float(value)
            progress.add(len(numbers))
    return values
