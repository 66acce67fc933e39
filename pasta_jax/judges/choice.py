"""The judges that configs name. Another one is a name in judges/settings.py and a case here."""

import functools

import jax

from pasta_jax.errors import PastaError
from pasta_jax.judges.checked import CheckedJudge, LogProbabilities
from pasta_jax.judges.judge import Entry, Judge, Verdict
from pasta_jax.judges.minilm import cosine, load_minilm
from pasta_jax.judges.offline import comparing, likelihoods, repetition, rules_followed
from pasta_jax.judges.reward import scorer
from pasta_jax.judges.rules import rules_of
from pasta_jax.judges.settings import CheckedSettings, JudgeModels, JudgeName, RewardSettings
from pasta_jax.lang.words import words
from pasta_jax.train.loss import Scoring, log_probabilities
from pasta_jax.train.trainable import product_dtype
from pasta_jax.weights.prepare import platform_dtype
from pasta_jax.weights.source import load


def judge_of(
    name: JudgeName, models: JudgeModels, rules_source: str, scale: float = 1.0, section: str = "config"
) -> Judge:
    """A judge by its name. `rules_source`: of questions with rules, or empty; `scale`: the difference that is 73%;
    `section`: of the config with the models' settings."""
    match name:
        case "checked":
            return checked_judge(models.checked, rules_source, section)
        case "reward":
            return reward_judge(models.reward, scale)
        case "rules":
            rules = rules_of(rules_source) if rules_source else {}
            if not rules:
                fix = "use records with instruction_id_list and kwargs, as IFEval has"
                raise PastaError(f"{rules_source or 'the prompts'}: no question has rules to judge by; {fix}")
            return comparing(rules_followed(rules), scale)
        case "repetition":
            return comparing(repetition, scale)
        case "shorter":  # what any other judge must beat: length alone; an empty answer is the worst
            return comparing(lambda _, answer: -(len(words(answer)) or 10**6), scale)


def checked_judge(settings: CheckedSettings, rules_source: str, section: str) -> CheckedJudge:
    """The weighted sum of what programs and an untrained model check. Terms without weight need no model."""
    weights = settings.checks.weights
    rules = rules_of(rules_source) if rules_source and weights.rules else {}
    log_probabilities = fluency(settings, section) if weights.fluency else _none
    fit = functools.partial(cosine, load_minilm()) if weights.fit else _none
    return CheckedJudge(settings.checks, rules, log_probabilities, fit)


def reward_judge(settings: RewardSettings, scale: float) -> Judge:
    """The difference of two scores, which reward models are trained to be log-odds. An answer is scored once."""
    score, known = scorer(settings), {}
    compare = comparing(lambda question, answer: known[question, answer], scale)

    def judge(question: str, first: Entry, second: Entry) -> Verdict | None:
        missing = {(question, answer.text): None for answer in (first, second)}.keys() - known.keys()
        pairs = sorted(missing)  # both in one batch
        known.update(zip(pairs, score(pairs), strict=True))
        return compare(question, first, second)

    return judge


def fluency(settings: CheckedSettings, section: str) -> LogProbabilities:
    """Nats per token of answers, in batches of `rows`; logits of `slice` tokens of each row exist at a time."""
    model = load(settings.untrained, stacked=True)  # scanned layers compile sooner; each length is a program
    dtype = platform_dtype()
    tags = model.tokenizer.tags
    products = product_dtype(settings.products, dtype, f"{section}.checked.products")
    scoring = Scoring(model.config, tags, dtype, settings.slice, block=0, remat=False, products=products)
    score = jax.jit(functools.partial(log_probabilities, scoring))
    return likelihoods(model, functools.partial(score, model.params), settings.lengths, settings.rows)


def _none(*_: object) -> float:
    raise AssertionError("a term without weight was asked for")
