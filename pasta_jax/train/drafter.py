"""Train a drafter (models/drafter.py) on a model's own answers: their hidden states are computed once, and kept.

The drafter learns the distribution that the model itself has in each place, over frequent ids: from the state that a
token was sampled from, and the tokens after it, the next one, for `depth` tokens in a row. The model is not trained.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.example import Example, encode
from pasta_jax.data.packing import mask, pack
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, remote
from pasta_jax.files.atomic import replacing
from pasta_jax.files.jsonl import read_records
from pasta_jax.files.workdir import claim
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.models.drafter import advanced, guessed
from pasta_jax.models.parts import picked
from pasta_jax.models.transformer import trunk
from pasta_jax.progress import doing, say, track
from pasta_jax.runs import settings as run_config
from pasta_jax.runs.checkpoint import provenance
from pasta_jax.train.fit import fit
from pasta_jax.train.loop import Run
from pasta_jax.train.loss import Loss, LossSums
from pasta_jax.train.optimizer import new_optimizer, schedule
from pasta_jax.train.settings import DrafterSettings, Intervals, Keep
from pasta_jax.train.sft_data import fingerprint_of_examples, prompt_of
from pasta_jax.train.state import Params, new_state
from pasta_jax.train.trainable import product_dtype
from pasta_jax.weights.drafter import save, table_of
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import platform_dtype
from pasta_jax.weights.source import load

TOGETHER = 50  # answers in a file of states
STEP = 128  # lengths that states are computed for are multiples of it
LATER = 0.8  # weight of each further token's loss, relative to the one before
TEMPERATURE = 0.6  # of the shares that are reported


@dataclasses.dataclass(frozen=True)
class Answered:
    """What is read of an answer that launch.decode has written."""

    prompt: str
    program: str
    finish_reason: str
    system: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """The labelled tokens of answers."""

    hidden: np.ndarray  # float16 [N, E]: what the label is predicted from
    label: np.ndarray  # int32 [N]
    after: np.ndarray  # int32 [N]: the row of the label's own token; -1 where its thread ends

    def chains(self, rows: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """States [N, depth + 1, E] and labels [N, depth + 1] of rows and the tokens after each; -1 beyond an end."""
        hidden, label = [], []
        for _ in range(depth + 1):
            hidden.append(self.hidden[rows])
            label.append(np.where(rows < 0, NO_LABEL, self.label[rows]))
            rows = np.where(rows < 0, -1, self.after[rows])
        return np.stack(hidden, axis=1), np.stack(label, axis=1)


@dataclasses.dataclass(frozen=True)
class Report:
    """Of tokens in held-out answers, each given the right ones before it, by how many were guessed before."""

    folder: str
    tokens: int
    right: tuple[float, ...]  # share whose likeliest guess is the token that the model sampled
    overlap: tuple[float, ...]  # mean mass that the guesses' and the model's distributions share, at TEMPERATURE
    known: float  # share of tokens that are among the drafter's ids


def run(settings: DrafterSettings, workdir: Path, stopping: Callable[[], bool] = lambda: False) -> Report | None:
    """Train a drafter in a folder, or go on; None if it was stopped."""
    if not settings.answers:
        raise PastaError("config.answers is missing: set it to a file that launch.decode --output wrote")
    with claim(workdir):
        plain = run_config.plain(settings)
        run_config.refuse_other(workdir, plain, run_config.plain(DrafterSettings()))
        model = load(settings.model, only_decoding=True, stacked=False)
        with doing("reading answers"):
            every = examples_of(model, Path(settings.answers))
        examples = [example for example in every if len(example) <= settings.longest]
        longer = len(every) - len(examples)
        if longer:
            say(f"{longer} of {len(every)} answers are longer than config.longest={settings.longest}: left out")
        measured = examples[-max(1, round(settings.held_out * len(examples))) :]
        # Of several answers to a prompt, none is learnt from where another is measured on.
        asked = set(map(prompt_of, measured))
        learnt = [example for example in examples[: -len(measured)] if prompt_of(example) not in asked]
        if not learnt:
            remedy = "raise config.longest" if longer else "decode more prompts"
            raise PastaError(f"{settings.answers}: {len(examples)} answers are too few; {remedy}")
        run_config.write(workdir, plain)  # of a run that has begun: other settings than refused ones are not another's
        files = states_of(model, [*learnt, *measured], workdir / "states", stopping)
        if files is None:
            return None
        train, held_out = joined(learnt, files[: len(learnt)]), joined(measured, files[len(learnt) :])
        ids = frequent(train.label, settings.ids)
        return _fit(settings, model, train, held_out, ids, workdir, plain, stopping)


def examples_of(model: Model, path: Path) -> list[Example]:
    """Answers as the model wrote them."""
    positions, tokenizer, examples = model.positions or PREDICTED, model.tokenizer, []
    for place, one in read_records(path, Answered, "use a file that launch.decode --output wrote"):
        try:
            answer = Program.parse(one.program).ids(tokenizer)
            prompt = tokenizer.chat([*([("system", one.system)] if one.system else []), ("user", one.prompt)])
        except PastaError as error:
            raise PastaError(f"{place}: {error}") from None
        ended = one.finish_reason == "stop"
        examples.append(encode(prompt, answer, tokenizer.tags, tokenizer.end_of_turn, positions, ended))
    return examples


def states_of(
    model: Model, examples: Sequence[Example], folder: Path, stopping: Callable[[], bool]
) -> list[np.ndarray] | None:
    """The hidden states of each answer's labelled tokens, float16 [N, E]; files that exist are read. None: stopped."""
    folder.mkdir(exist_ok=True)

    @jax.jit
    def hidden(params: Params, batch) -> jax.Array:
        arguments = batch.token, batch.position, mask(batch), batch.position
        return trunk(params, model.config, *arguments)[0][0].astype(jnp.float16)

    def of(example: Example) -> np.ndarray:
        batch = pack([[example]], -(-len(example) // STEP) * STEP)
        return np.asarray(hidden(model.params, batch))[: len(example)][example.label != NO_LABEL]

    found: list[np.ndarray] = []
    starts = range(0, len(examples), TOGETHER)
    for start in track(starts, f"hidden states of {TOGETHER} answers", len(starts)):
        if stopping():
            return None
        some = examples[start : start + TOGETHER]
        # None is read of other answers, or of another model.
        path = folder / f"{start:06}-{fingerprints.of_texts([model.fingerprint, fingerprint_of_examples(some)])}.npy"
        if not path.exists():
            with replacing(path) as part, part.open("wb") as file:
                np.save(file, np.concatenate([of(example) for example in some]))
        counts = [int((example.label != NO_LABEL).sum()) for example in some]
        # Not in memory: `joined` copies them, and they stay referenced throughout the training.
        found += np.split(np.load(remote.local(path), mmap_mode="r"), np.cumsum(counts)[:-1])
    return found


def joined(examples: Sequence[Example], hidden: Sequence[np.ndarray]) -> States:
    """The labelled tokens of some answers, one after another."""
    after, rows = [], 0
    for example in examples:
        at = np.flatnonzero(example.label != NO_LABEL)
        following = np.full(len(at), -1, np.int32)
        for thread in np.unique(example.chunk[at]):
            own = np.flatnonzero(example.chunk[at] == thread)
            goes_on = example.token[at[own[1:]]] == example.label[at[own[:-1]]]
            following[own[:-1]] = np.where(goes_on, rows + own[1:], -1)
        after.append(following)
        rows += len(at)
    labels = [example.label[example.label != NO_LABEL] for example in examples]
    return States(np.concatenate(hidden), np.concatenate(labels), np.concatenate(after))


def frequent(label_N: np.ndarray, count: int) -> np.ndarray:
    """The most frequent labels, ascending."""
    return np.array(sorted(id for id, _ in Counter(label_N.tolist()).most_common(count)), np.int32)


def drafter_loss(model: Model, depth: int, products: jnp.dtype) -> Loss:
    """The cross-entropy of the model's own distribution in each place, over the drafter's ids."""

    def loss(trainable: Params, frozen: Params, batch: dict[str, Any], _: Any = None) -> LossSums:
        kernels, ids = trainable | {"table": frozen["table"]}, frozen["ids"]
        drafter = jax.tree.map(lambda kernel: kernel.astype(products), kernels) | {"ids": ids}
        hidden_NxDxE, label_NxD = batch["hidden"].astype(jnp.float32), batch["label"]
        r_NxE, parts, total, reached = hidden_NxDxE[:, 0], {}, 0.0, 0.0
        for d in range(1, depth + 1):
            embedded = picked(frozen["embed"], jnp.maximum(label_NxD[:, d - 1], 0))
            r_NxE = advanced(drafter, r_NxE, jax.lax.stop_gradient(embedded))
            theirs = jax.lax.stop_gradient(guessed(drafter, model.config, hidden_NxDxE[:, d]))
            ours, there_N = guessed(drafter, model.config, r_NxE), (label_NxD[:, d] != NO_LABEL).astype(jnp.float32)
            entropy_N = -jnp.sum(jax.nn.softmax(theirs) * jax.nn.log_softmax(ours), axis=1)
            weight = LATER ** (d - 1)
            total, reached = total + weight * jnp.sum(entropy_N * there_N), reached + weight * jnp.sum(there_N)
            right_N = ids[jnp.argmax(ours, axis=1)] == label_NxD[:, d]
            shared = jnp.minimum(jax.nn.softmax(theirs / TEMPERATURE), jax.nn.softmax(ours / TEMPERATURE))
            for name, value_N in (("right", right_N), ("overlap", jnp.sum(shared, axis=1)), ("loss", entropy_N)):
                parts[f"{name}_{d}"] = jnp.sum(value_N * there_N), jnp.sum(there_N)
        return LossSums({"loss": (total, reached)} | parts, jnp.sum(label_NxD[:, 1] != NO_LABEL))

    return loss


def _fit(
    settings: DrafterSettings,
    model: Model,
    train: States,
    measured: States,
    ids: np.ndarray,
    workdir: Path,
    plain: dict[str, Any],
    stopping: Callable[[], bool],
) -> Report | None:
    size, depth = settings.rows, settings.depth

    def batch(states: States, rows: np.ndarray) -> dict[str, np.ndarray]:
        hidden, label = states.chains(rows, depth)
        return {"hidden": hidden, "label": label}

    begins, begins_measured = np.flatnonzero(train.after >= 0), np.flatnonzero(measured.after >= 0)
    per_epoch = max(1, len(begins) // size)

    def of_step(seed: int, step: int) -> dict[str, np.ndarray]:
        epoch, number = divmod(step, per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(begins)
        return batch(train, order[number * size : (number + 1) * size])

    rng, embed = np.random.default_rng(settings.train.seed), model.config.embed
    inward = rng.standard_normal((settings.width, 2 * embed)).astype(np.float32) / np.sqrt(2 * embed)
    trainable = {"inward": {"kernel": jnp.asarray(inward)}, "outward": {"kernel": jnp.zeros((embed, settings.width))}}
    table = jnp.asarray(table_of(model, ids))
    frozen = {"embed": model.params["embed"], "table": {"kernel": table}, "ids": jnp.asarray(ids)}
    steps = settings.epochs * per_epoch
    known = float(np.isin(measured.label, ids).mean())
    say(f"{len(begins):,} tokens to learn from, {len(begins_measured):,} held out; {known:.1%} are among the ids")
    optimizer = new_optimizer(settings.train, steps)
    held_out = [begins_measured[at : at + size] for at in range(0, len(begins_measured) - size + 1, size)]
    training = Run(
        steps=steps,
        batch=of_step,
        held_out=tuple(batch(measured, rows) for rows in held_out or [begins_measured]),
        loss=drafter_loss(
            model, depth, product_dtype(settings.train.products, platform_dtype(), "config.train.products")
        ),
        optimizer=optimizer,
        learning_rate=schedule(settings.train, steps),
        flops_per_token=6.0 * depth * (2 * inward.size + table.size),
        every=Intervals(log=50, held_out=per_epoch, probe=0, save=per_epoch),
    )
    about = provenance(plain, fingerprints.of_bytes([train.label.tobytes(), train.hidden[:1000].tobytes()]), None)
    state = new_state(trainable, optimizer, settings.train.seed)
    result = fit(workdir, training, state, frozen, about, Keep(newest=1), False, stopping)
    if not result.complete:
        return None
    matrices = {name: np.asarray(leaves["kernel"]) for name, leaves in result.state.trainable.items()}
    save(workdir, model, matrices, ids)
    shares = {  # as far as the held-out answers go
        name: tuple(
            round(result.metrics[key], 4)
            for d in range(1, depth + 1)
            if (key := f"held_out/{name}_{d}") in result.metrics
        )
        for name in ("right", "overlap")
    }
    return Report(str(workdir), sum(map(len, held_out or [begins_measured])), **shares, known=round(known, 4))
