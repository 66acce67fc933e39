"""Train reward models on published verdicts, each without the questions that it will judge, and measure them.

The loss is Bradley and Terry's: minus the log-probability of the verdict, a logistic function of the difference of two
scores. Scores are symmetric in order by construction. Every figure is about questions and models that were not seen.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from pasta_jax.data.example import Example, encode
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.atomic import write_json
from pasta_jax.files.remote import path_of
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.files.workdir import claim
from pasta_jax.judges import verdicts
from pasta_jax.judges.reward import FOLDS, KIND, REPORT, Folds, RewardModel, conversation, fits, load_reward_model
from pasta_jax.judges.settings import RewardSettings, TrainJudgeSettings
from pasta_jax.judges.verdicts import Answered, JudgedAnswers
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.models.parameters import unstack
from pasta_jax.progress import doing, say
from pasta_jax.runs import settings as run_config
from pasta_jax.runs.checkpoint import git_revision, provenance
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.train.fit import Watch, fit, unwatched
from pasta_jax.train.loop import Run
from pasta_jax.train.loss import Loss, LossSums, Scoring, hidden_states, model_params
from pasta_jax.train.optimizer import new_optimizer, schedule
from pasta_jax.train.pairs import PairBatch, PairExample, PairFeed
from pasta_jax.train.settings import Intervals, Keep, refuse_uneven_parts
from pasta_jax.train.speed import flops_per_token, peak_flops
from pasta_jax.train.state import Params, new_state
from pasta_jax.train.trainable import load, scoring
from pasta_jax.weights import card, export, families, huggingface
from pasta_jax.weights.adapter import merge
from pasta_jax.weights.config_file import TagRecord
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import trained_on

LIMIT = "Its taste is that of the judge whose verdicts it learnt: say how often both agree beside what it prefers."


@dataclasses.dataclass(frozen=True)
class Share:
    """How often a judge agrees with verdicts, and how often preferring the longer answer does."""

    pairs: int
    agrees: float
    longer: float


@dataclasses.dataclass(frozen=True)
class FoldReport:
    """A judge's figures on the questions of its fold, over models whose answers it has not seen."""

    fold: int
    steps: int
    temperature: float  # that its scores were divided by, so that their differences are log-odds
    matched: Share  # of answers within 15% of length
    other_length: Share  # of the others
    models: int
    spearman: float | None  # of the models' shares of wins against the reference: the judge's, and the published ones
    margin: float | None = None  # log-odds between a pair's answers, each judged beside the reference, at least
    too_long: int | None = None  # pairs that were left out; older reports don't say

    def __str__(self) -> str:
        ranked = (
            "" if self.spearman is None else f"; ranks {self.models} models with a correlation of {self.spearman:.2f}"
        )
        of = "" if self.margin is None else f" (log-odds of {self.margin:g} or more; {self.too_long} pairs too long)"
        return (
            f"fold {self.fold}: agrees with {self.matched.agrees:.1%} of {self.matched.pairs} clear verdicts{of} on"
            f" answers of equal length (the longer one: {self.matched.longer:.1%}), and with"
            f" {self.other_length.agrees:.1%} of {self.other_length.pairs} on others"
            f" ({self.other_length.longer:.1%}){ranked}"
        )


def run(settings: TrainJudgeSettings, workdir: Path, watch: Watch = unwatched) -> list[FoldReport] | None:
    """Train the judges that are missing in `workdir`, and their reports; None if it was stopped.

    `watch` is entered around each training; its function returns whether to stop. Measuring may be killed.
    """
    if not settings.verdicts:
        raise PastaError(f"config.verdicts is missing: {verdicts.FIX}, as --config.verdicts=FOLDER/results")
    if not settings.adapter.rank:
        raise PastaError("config.adapter.rank is 0: a judge is trained as an adapter; set it to 4 or more")
    if wrong := [fold for fold in settings.only if fold >= settings.folds]:
        raise PastaError(f"config.only {wrong[0]}: folds are numbered from 0 to {settings.folds - 1}")
    refuse_uneven_parts(settings.train, settings.rows)
    with claim(workdir):
        plain = run_config.plain(settings)
        answers = verdicts.weak(verdicts.read(path_of(settings.verdicts), settings.judges), settings.wins)
        content = {"verdicts (content)": fingerprints.of_texts(map(repr, answers))}  # older folders don't say
        compared = {name: value for name, value in plain.items() if name != "only"} | content
        run_config.refuse_other(workdir, compared, run_config.plain(TrainJudgeSettings()) | content)
        reports = []
        for fold in settings.only or range(settings.folds):
            path = workdir / f"fold-{fold}" / REPORT
            if not path.exists():
                report = _fold(settings, fold, answers, workdir, compared, watch)
                if report is None:
                    return None
                write_json(path, dataclasses.asdict(report))
            reports.append(read_json(path, FoldReport, most=MIB, fix="delete it, and run the command again"))
    return reports


def _fold(
    settings: TrainJudgeSettings,
    fold: int,
    answers: Sequence[Answered],
    workdir: Path,
    compared: dict[str, Any],
    watch: Watch,
) -> FoldReport | None:
    """Train and measure the judge of a fold; None if it was stopped."""
    hidden = set(verdicts.some_of([one.model for one in answers], settings.hidden))
    learnt, theirs = [], []
    for one in answers:
        seen = verdicts.fold_of(one.question, settings.folds) != fold
        if seen != (one.model in hidden):
            (learnt if seen else theirs).append(one)
    with doing("choosing pairs"):
        pairs = verdicts.pairs_of(learnt, settings.pairs, settings.matched, settings.margin, settings.train.seed)
        held_out = verdicts.pairs_of(theirs, 3 * settings.measured, 2 / 3, settings.margin, settings.train.seed + 1)
    if not pairs:
        raise PastaError(
            f"config.hidden={settings.hidden}: of {len({one.model for one in answers})} models, no pairs are left to "
            "learn from; lower it, or use more verdicts"
        )
    folder = workdir / f"fold-{fold}"
    steps = _train(settings, pairs, held_out, folder, compared, watch)
    if steps is None:
        return None
    return _measured(settings, fold, steps, folder / "model", held_out, theirs)


def _train(
    settings: TrainJudgeSettings,
    pairs: Sequence[JudgedAnswers],
    held_out: Sequence[JudgedAnswers],
    folder: Path,
    compared: dict[str, Any],
    watch: Watch,
) -> int | None:
    """Train a judge and write it; its steps, None if it was stopped."""
    train = settings.train
    start = load(settings.model, settings.adapter, train.seed, None)
    model, tokenizer = start.model, start.model.tokenizer
    if model.is_narrow:
        raise PastaError("config.model.dtype=bfloat16: no judge can be written from such a base; set it to auto")
    _divided(held_out, tokenizer, settings.lengths)  # or there is nothing to measure the judge on
    examples = [
        PairExample(example(tokenizer, pair.question, pair.better), example(tokenizer, pair.question, pair.worse))
        for pair in pairs
    ]
    feed = PairFeed(examples, settings.lengths, settings.rows)
    say(f"{len(examples) - feed.dropped:,} pairs to learn from; {feed.dropped} are longer than config.lengths allows")
    steps = feed.steps(train.seed, settings.epochs)
    optimizer = new_optimizer(train, steps)
    trained = {"adapter": start.params, "score": jnp.zeros(model.config.embed, jnp.float32)}
    training = Run(
        steps=steps,
        accumulate=train.accumulate,
        batch=feed.batch,
        loss=bradley_terry(scoring(train, model)),
        optimizer=optimizer,
        learning_rate=schedule(train, steps),
        flops_per_token=flops_per_token(model.params, model.config, settings.lengths[-1], adapter=True),
        peak_flops=peak_flops(jax.devices()[:1]),
        every=Intervals(log=10, held_out=0, probe=0, save=settings.save),
    )
    state = new_state(trained, optimizer, train.seed)
    fingerprint = fingerprints.of_bytes([repr(pairs).encode("utf-8", "surrogatepass")])
    about = provenance(compared, fingerprint, None, model.fingerprint)
    # Not before: settings that are refused would make the corrected ones another run's.
    run_config.write(folder.parent, compared)
    write_json(folder.parent / FOLDS, dataclasses.asdict(Folds(settings.folds, "words")))
    with watch() as stopping:
        result = fit(folder, training, state, start.frozen, about, Keep(newest=1), False, stopping)
        stopped = stopping()
    if stopped or not result.complete:
        return None
    data = (*trained_on(settings.model), verdicts.TERMS)
    made = card.Training("", train.seed, data, card.plain(settings), git_revision())
    write(model, start.frozen, result.state.trainable, folder / "model", made)
    return result.steps


def bradley_terry(form: Scoring) -> Loss:
    """Minus the mean log-probability that the better answer of a pair has the higher score."""

    def loss(trainable: Params, frozen: Params, pairs: PairBatch, _: PairBatch | None = None) -> LossSums:
        both = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a), jnp.asarray(b)]), pairs.better, pairs.worse)
        hidden_BxTxE = hidden_states(form, model_params(form, trainable["adapter"], frozen), both)
        last_B = jnp.maximum(jnp.sum(both.record > 0, axis=1) - 1, 0)
        hidden_BxE = jnp.take_along_axis(hidden_BxTxE, last_B[:, None, None], axis=1)[:, 0]
        better_B, worse_B = jnp.split(hidden_BxE.astype(jnp.float32) @ trainable["score"], 2)
        figures = {
            "loss": -jax.nn.log_sigmoid(better_B - worse_B),
            "agrees": (better_B > worse_B).astype(jnp.float32),
        }
        count = jnp.sum(pairs.weight)
        parts = {name: (jnp.sum(values * pairs.weight), count) for name, values in figures.items()}
        return LossSums(parts, jnp.sum(both.record > 0))

    return loss


def example(tokenizer: Tokenizer, question: str, answer: str) -> Example:
    """A question with its answer as the judge reads them; what it would predict at the end is not used."""
    return encode(conversation(tokenizer, question, answer), (), tokenizer.tags, tokenizer.end_of_turn, PREDICTED)


def write(model: Model, frozen: Params, trained: Params, folder: Path, training: card.Training | None = None) -> None:
    """Write the judge in Hugging Face's layout, as `transformers` reads it, with its card."""
    params = merge(frozen, trained["adapter"], model.tokenizer.tags)
    params = unstack(jax.tree.map(np.asarray, {name: leaf for name, leaf in params.items() if name != "head"}))
    export.write(folder, model.tokenizer, model.defaults)
    architecture = families.of_config(model.config).architecture
    # `transformers` scores the last token that is not this one; without any, the last, of one row at a time.
    pad = export.padding_of(model.tokenizer)
    fields = {
        "architectures": [architecture.replace("ForCausalLM", KIND)],
        "num_labels": 1,
        "pad_token_id": None if pad == conversation(model.tokenizer, "", "")[-1] else pad,
    }
    score = {"score.weight": np.asarray(trained["score"], np.float32)[None]}
    huggingface.write_model(folder, params, model.config, TagRecord(model.tokenizer.tags.base, None), fields, score)
    tags_base = model.tokenizer.tags.base
    card.write(folder, card.Card("judge", model.name, None, tags_base, training, limits=(LIMIT,), source=model.source))


def _measured(
    settings: TrainJudgeSettings,
    fold: int,
    steps: int,
    folder: Path,
    pairs: Sequence[JudgedAnswers],
    answers: Sequence[Answered],
) -> FoldReport:
    """Calibrate a judge on some pairs of models that it has not seen, and measure it on others."""
    known: dict[tuple[str, str], float] = {}
    judge = load_reward_model(RewardSettings(str(folder), settings.lengths, settings.rows))

    def differences(some: Sequence[JudgedAnswers]) -> np.ndarray:
        texts = [(pair.question, text) for pair in some for text in (pair.better, pair.worse)]
        missing = sorted(set(texts) - known.keys())
        known.update(zip(missing, judge.score(missing), strict=True))
        return np.subtract(*(np.array([known[pair] for pair in texts[n::2]]) for n in (0, 1)))

    def share(some: Sequence[JudgedAnswers]) -> Share:
        longer = np.array([len(pair.better) - len(pair.worse) for pair in some])
        agrees, by_length = (float(np.mean((of > 0) + 0.5 * (of == 0))) for of in (differences(some), longer))
        return Share(len(some), agrees, by_length)

    with doing("judging other models' answers"):
        matched, known_odds, uneven = _divided(pairs, judge.tokenizer, settings.lengths)
        temperature = calibrated(differences(known_odds), np.array([pair.odds for pair in known_odds]))
        spearman, models = _ranking(settings, answers, judge, temperature)
    too_long = len(pairs) - len(matched) - len(known_odds) - len(uneven)
    shares = share(matched), share(uneven)
    return FoldReport(fold, steps, temperature, *shares, models, spearman, settings.margin, too_long)


def _divided(
    pairs: Sequence[JudgedAnswers], tokenizer: Tokenizer, lengths: Sequence[int]
) -> tuple[list[JudgedAnswers], list[JudgedAnswers], list[JudgedAnswers]]:
    """Pairs that fit: within 15% of length those to measure on and those to calibrate with, and the others."""
    pairs = [pair for pair in pairs if fits(tokenizer, lengths, pair.question, pair.better, pair.worse)]
    even, uneven = ([pair for pair in pairs if pair.matched == kind] for kind in (True, False))
    half = len(even) // 2
    if not (half and uneven):
        few = f"{len(pairs)} pairs of models that are not learnt from fit into {lengths[-1]} tokens"
        raise PastaError(f"{few}: too few to measure on; raise config.hidden or config.lengths")
    return even[:half], even[half:], uneven


def calibrated(differences: np.ndarray, odds: np.ndarray) -> float:
    """The number to divide scores by, so that the differences' logistic is nearest to that of the verdicts' odds."""
    wanted = 1 / (1 + np.exp(-odds))

    def loss(temperature: float) -> float:
        scaled = differences / temperature
        return float(np.mean(wanted * np.logaddexp(0, -scaled) + (1 - wanted) * np.logaddexp(0, scaled)))

    return float(min(np.geomspace(0.05, 20, 241), key=loss))


def _ranking(
    settings: TrainJudgeSettings, answers: Sequence[Answered], judge: RewardModel, temperature: float
) -> tuple[float | None, int]:
    """The rank correlation of models' shares of wins over the reference, and their number."""
    first = settings.judges[0]
    questions = set(verdicts.some_of([one.question for one in answers if one.judge == first], settings.ranked))
    chosen = [one for one in answers if one.judge == first and one.question in questions]
    tokenizer, lengths = judge.tokenizer, settings.lengths
    chosen = [one for one in chosen if fits(tokenizer, lengths, one.question, one.text, one.reference)]
    texts = sorted({(one.question, text) for one in chosen for text in (one.text, one.reference)})
    score = dict(zip(texts, judge.score(texts), strict=True))
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for one in chosen:
        difference = (score[one.question, one.text] - score[one.question, one.reference]) / temperature
        ours.setdefault(one.model, []).append(1 / (1 + math.exp(-difference)))
        theirs.setdefault(one.model, []).append(1 / (1 + math.exp(-one.odds)))
    rates = [[float(np.mean(of[model])) for model in ours] for of in (ours, theirs)]
    if len(ours) < 3 or any(len(set(of)) < 2 for of in rates):  # equal ones have no ranks, and no correlation
        return None, len(ours)
    return float(scipy.stats.spearmanr(*rates).statistic), len(ours)
