"""The rules that choose an answer's tokens: a model's own, a request's, and those that somebody gives.

Equal prompts with equal rules have equal tokens. How long an answer may become (`max_tokens`) is no rule: a longer
answer begins with the shorter one. The module imports no JAX, and stands beside generation_config.py, where a model
states its own rules; decode/state.py makes arrays of them.
"""

import dataclasses
from typing import Any, get_type_hints

from pasta_jax.files.validated import AboveZero, AtLeastZero, Bias, Count, Penalty, Seed, Share


@dataclasses.dataclass(frozen=True)
class Defaults:
    """The rules of which a model may have its own. The values here change nothing: greedy, all else off."""

    temperature: AtLeastZero = 0.0  # 0: greedy, since an answer then needs no seed to be repeated
    top_k: Count = 0  # the most likely ids that may be drawn; 0: all
    top_p: Share = 1.0  # the probability mass that may be drawn, most likely ids first; 0: the likeliest, 1: all
    # Of a topic, which is then one line; 0: no limit, as in the language. Words are what stands between blanks: in
    # scripts without them, max_topic_tokens is the limit.
    max_topic_words: Count = 0
    distinct_topics: bool = False  # no topic spells an earlier one of the same answer (topics.py)
    end_stray_chunks: bool = False  # a chunk that would fork, join or end the turn ends instead (grammar.py)
    fork_bias: Bias = 0.0  # added to the logit of [PROMISE]: below 0, fewer forks; above 0, more
    min_p: Share = 0.0  # least probability of an id that may be drawn, relative to the likeliest's; 0: any
    repetition_penalty: AboveZero = 1.0  # divides positive and multiplies negative logits of ids seen before; 1: off


@dataclasses.dataclass(frozen=True)
class Rules(Defaults):
    """All rules of a request."""

    # OpenAI's: what is taken from the logits of ids of the answer that a thread sees, once and for each time.
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Seed = 0  # any number: a request's draws depend on it, on the thread and on the token's number only
    max_topic_tokens: Count = 12  # of a promise's topic; three words, the longest topic in training data, need fewer
    max_chunk_tokens: Count = 638  # plus two tags makes 640, the longest chunk that a promise can announce


_HINTS = get_type_hints(Rules, include_extras=True)
MODELS_OWN = tuple(field.name for field in dataclasses.fields(Defaults))


def optional(*names: str) -> list[tuple[str, Any, None]]:
    """Some rules as fields for make_dataclass, which may be None: not given."""
    return [(name, _HINTS[name] | None, None) for name in names]


# A subclass, so that --help finds the fields' comments.
Given = dataclasses.make_dataclass(
    "Given",
    optional(*_HINTS),
    bases=(Rules,),
    namespace={"__doc__": "Rules that somebody gives; None: the model's own, else the default."},
    frozen=True,
)
Given.__module__ = __name__  # where pickle finds it

# Records' headers always name these nine; later rules only where they are not at their defaults, so that a run which
# was stopped before such a rule existed is resumed.
_ALWAYS_RECORDED = (
    *("temperature", "top_k", "top_p", "seed", "max_topic_tokens", "max_topic_words"),
    *("distinct_topics", "end_stray_chunks", "max_chunk_tokens"),
)


def filled(given: Given, own: Defaults) -> Rules:
    """The rules of a request: those given, else the model's own, else the defaults."""
    explicit = {field.name: getattr(given, field.name) for field in dataclasses.fields(Rules)}
    explicit = {name: value for name, value in explicit.items() if value is not None}
    return Rules(**(vars(own) | explicit))


def recorded(rules: Rules) -> dict[str, Any]:
    """The rules as records' headers name them."""
    return {
        field.name: getattr(rules, field.name)
        for field in dataclasses.fields(Rules)
        if field.name in _ALWAYS_RECORDED or getattr(rules, field.name) != field.default
    }
