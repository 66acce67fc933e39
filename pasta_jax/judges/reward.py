"""Reward models: one number for a conversation, from a transformer whose head has a single output.

A folder in Hugging Face's layout whose `architectures` ends in ForSequenceClassification, of any family that is read.
The score is that of the conversation's last token, after all layers and the final norm.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.packing import by_length
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, hub
from pasta_jax.files.remote import path_of
from pasta_jax.files.validated import MIB, AboveZero, Positive, read_json
from pasta_jax.judges.settings import RewardSettings
from pasta_jax.judges.verdicts import fold_of
from pasta_jax.models import transformer
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.progress import doing
from pasta_jax.tokenizers.chat import jinja_template
from pasta_jax.tokenizers.once import once
from pasta_jax.tokenizers.template import Template, around_answer
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pasta_jax.weights import card, config_file, huggingface
from pasta_jax.weights.family import TRANSFORMERS
from pasta_jax.weights.lazy import params_of, read_now
from pasta_jax.weights.load import rows_for, tokenizer_file
from pasta_jax.weights.prepare import on_device

KIND = "ForSequenceClassification"
FOLDS, REPORT = "folds.json", "report.json"
DOUBLED = 4  # times the last length that a row may have
_QUESTION = "qzxqxzq"  # that no template has
Score = Callable[[Sequence[tuple[str, str]]], list[float]]


@dataclasses.dataclass(frozen=True)
class Folds:
    """What says that a folder has several reward models, each for a part of all questions."""

    folds: Positive
    by: Literal["words"]  # a question's words decide (verdicts.fold_of); once its exact text did


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """What a report says that scores need."""

    temperature: AboveZero


@dataclasses.dataclass(frozen=True)
class RewardModel:
    """A loaded reward model."""

    config: TransformerConfig
    params: Params = dataclasses.field(repr=False)
    head_E: jax.Array = dataclasses.field(repr=False)
    tokenizer: Tokenizer = dataclasses.field(repr=False)
    settings: RewardSettings

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """A score for each question with its answer; a higher one is better."""
        ids = [self._ids(*pair) for pair in pairs]
        scores = [0.0] * len(ids)
        beyond = [min(times * self.settings.lengths[-1], self.config.context) for times in (2, DOUBLED)]
        lengths = [*self.settings.lengths, *beyond]
        for some, length in by_length([*map(len, ids)], lengths, self.settings.rows):
            tokens_BxT = np.zeros((self.settings.rows, length), np.int32)
            for row, number in enumerate(some):
                tokens_BxT[row, : len(ids[number])] = ids[number]
            last_B = np.array([len(ids[number]) - 1 for number in some] + [0] * (self.settings.rows - len(some)))
            found = _scores(self.params, self.head_E, tokens_BxT, last_B, config=self.config)
            for number, score in zip(some, np.asarray(found), strict=False):
                scores[number] = float(score)
        return scores

    def _ids(self, question: str, answer: str) -> list[int]:
        ids = conversation(self.tokenizer, question, answer)
        if len(ids) > (most := min(self.config.context, DOUBLED * self.settings.lengths[-1])):
            what = f"a question with its answer has {len(ids):,} tokens, and at most {most:,} are read"
            raise PastaError(f"reward.lengths: {what}; add a length, or leave the pair out")
        return ids


def conversation(tokenizer: Tokenizer, question: str, answer: str) -> list[int]:
    """A question with its answer as reward models read them, with the end of the answer's turn."""
    question, answer = tokenizer.without_missing(question), tokenizer.without_missing(answer)
    start, between, end = _around(tokenizer)
    if isinstance(tokenizer.template, Template):
        question, answer = tokenizer.template.shown("user", question), tokenizer.template.shown("assistant", answer)
    elif tokenizer.family.strips and tokenizer.family.open:
        question, answer = question.strip(), answer.strip()
    return tokenizer.of_parts([(True, start), (False, question), (True, between), (False, answer), (True, end)])


@once
def _around(tokenizer: Tokenizer) -> tuple[str, str, str]:
    """The template's texts before, between and after a question and its answer.

    Before an answer that is there, some models' templates write more than before one that is asked for.
    """
    family = tokenizer.family
    if tokenizer.jinja and not (family.open and tokenizer.jinja == jinja_template(family)):
        return around_answer(tokenizer.jinja, dict(tokenizer.tokens), "reward.model: chat template")
    start, _, opening = "".join(text for _, text in tokenizer.parts([("user", _QUESTION)])).partition(_QUESTION)
    return start, opening, family.close + (family.after if family.open else "")


def fits(tokenizer: Tokenizer, lengths: Sequence[int], question: str, *answers: str) -> bool:
    """Whether each answer fits with its question into the last of the lengths."""
    return all(len(conversation(tokenizer, question, one)) <= lengths[-1] for one in answers)


@functools.partial(jax.jit, static_argnames="config")
def _scores(params, head_E, tokens_BxT, last_B, config: TransformerConfig):
    place_BxT = jnp.broadcast_to(jnp.arange(tokens_BxT.shape[1]), tokens_BxT.shape)
    hidden_BxTxE, _ = transformer.trunk(params, config, tokens_BxT, place_BxT, transformer.causal(place_BxT), place_BxT)
    hidden_BxE = jnp.take_along_axis(hidden_BxTxE, last_B[:, None, None], axis=1)[:, 0]
    return hidden_BxE.astype(jnp.float32) @ head_E


def scorer(settings: RewardSettings) -> Score:
    """Scores by a reward model, or by those of `launch.train_judge`, each question's by one that has not learnt it."""
    folder = path_of(settings.model)
    if not (folder / FOLDS).exists():
        return load_reward_model(settings).score
    folds = read_json(folder / FOLDS, Folds, most=MIB, fix="use a folder that launch.train_judge wrote").folds
    model_of = functools.cache(lambda fold: load_reward_model(dataclasses.replace(settings, model=str(fold))))

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        scores = [0.0] * len(pairs)
        for number in range(folds):
            some = [n for n, (question, _) in enumerate(pairs) if fold_of(question, folds) == number]
            if not some:
                continue
            of_fold = folder / f"fold-{number}"
            if not (of_fold / REPORT).exists():
                raise PastaError(f"{of_fold}: is missing, and judges some of these questions; train fold {number}, too")
            temperature = read_json(of_fold / REPORT, Calibrated, most=MIB, fix="train this fold again").temperature
            for n, value in zip(some, model_of(of_fold / "model").score([pairs[n] for n in some]), strict=True):
                scores[n] = value / temperature
        return scores

    return score


def identity(settings: RewardSettings) -> str:
    """A hash of what scores depend on: the files of a reward model, or of those of `launch.train_judge`."""
    folder = hub.local(settings.model)
    patterns = "*.json", "*.jinja", "*.model", "*.safetensors", f"fold-*/{REPORT}", "fold-*/model/*"
    files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return fingerprints.of_texts(digests)


def learnt_from(settings: RewardSettings) -> tuple[str, ...]:
    """The data, with its terms, that the reward models learnt from, as far as their cards state it."""
    folder = hub.local(settings.model)
    cards = [path for pattern in (card.FIELDS, f"fold-*/model/{card.FIELDS}") for path in sorted(folder.glob(pattern))]
    made = [card.read(path.parent).training for path in cards]
    lines = dict.fromkeys(line for one in made if one for line in one.data)
    return tuple(lines) or (f"{folder.name}: its terms are not recorded",)


def load_reward_model(settings: RewardSettings) -> RewardModel:
    """The reward model of a folder, or of a folder's id on the Hub."""
    if not settings.model:
        raise PastaError("reward.model: empty; set it to a Hugging Face folder or id")
    folder = hub.local(settings.model)
    raw = read_json(folder / "config.json", dict[str, Any], most=4 * MIB, fix="use a folder in Hugging Face's layout")
    kinds = raw.get("architectures")
    if not (isinstance(kinds, list) and kinds and str(kinds[0]).endswith(KIND)):
        raise PastaError(f"{folder}: architectures {kinds}: not a reward model; use one that ends in {KIND}")
    with doing(f"loading {settings.model}"):
        family, config, _ = config_file.read_config(folder)
        tokenizer, files = load_tokenizer(tokenizer_file(folder)), huggingface.Files(folder)
        rows_for(config, tokenizer, folder)
        config = dataclasses.replace(config, tied_head=True)  # there is no table of outputs
        head_1xE = files.read("score.weight")
        if head_1xE.shape != (1, config.embed):
            what = f"score.weight has shape {head_1xE.shape}, not (1, {config.embed})"
            raise PastaError(f"{folder}: {what}; use a model with one score")
        params = on_device(read_now(params_of(files, TRANSFORMERS, family, config, config.vocab)), stacked=True)
        return RewardModel(config, params, jnp.asarray(head_1xE[0]), tokenizer, settings)
