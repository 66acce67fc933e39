"""What decoding is asked for and what it returns: requests, events, results."""

import dataclasses
from typing import Any

from pasta_jax.automata.tokens import TokenAutomaton
from pasta_jax.decode.settings import AnswerSettings
from pasta_jax.decode.trace import Trace
from pasta_jax.weights.rules import Defaults, Rules, filled, recorded

SEEDS = 2**32


@dataclasses.dataclass(frozen=True)
class Guest:
    """A thread that is given instead of promised (guests.py)."""

    ids: tuple[int, ...]  # its prompt after the request's
    state: int = -1  # of the request's automaton, after those ids; -1: it writes freely


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, as ids, and how to answer it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int  # tokens of the answer that may be fed, tags included
    sequential: bool  # no tags: the baseline
    rules: Rules = dataclasses.field(default_factory=Rules)
    text: str | None = None  # the prompt as traces show it; None: its ids decoded
    name: str = ""  # of the prompt in errors; empty: "prompt N", N counted from 0
    guests: tuple[Guest, ...] = ()  # they answer, each with max_tokens at most, and main does not
    automaton: TokenAutomaton | None = None  # of the guests' values
    bias: tuple[tuple[int, float], ...] = ()  # (id, what is added to its logit): extras.py
    scored: bool = False  # its result has log-probabilities
    drafts: bool = True  # False: no drafts, in a loop that has them
    adapter: int = 0  # the number of one beside the model's weights (models/adapters.py); 0: none
    syncs: bool = True  # False: main never waits for its chunks (evaluate's ablation, which nobody else may ask for)

    @property
    def given(self) -> int:
        """Tokens that are written before any is sampled: the prompt, and the guests' own but for their last ones."""
        return len(self.prompt_ids) + sum(len(guest.ids) - 1 for guest in self.guests)

    @property
    def longest(self) -> int:
        """Slots that it may fill."""
        if not self.guests:
            return len(self.prompt_ids) + self.max_tokens
        return self.given + len(self.guests) * (1 + self.max_tokens)

    def with_rules(self, **changes: object) -> "Request":
        """The request with some rules changed."""
        return dataclasses.replace(self, rules=dataclasses.replace(self.rules, **changes))

    def with_seed(self, number: int) -> "Request":
        """The request with the seed that has this number, counted from its own."""
        return self.with_rules(seed=(self.rules.seed + number) % SEEDS)

    def recorded(self) -> dict[str, Any]:
        """What the headers of records name."""
        about, rules = dict(vars(self)), recorded(self.rules)
        for name in ("rules", "guests", "automaton", "bias", "scored", "drafts", "adapter"):
            del about[name]
        sampling = {name: rules.pop(name) for name in ("temperature", "top_k", "top_p", "seed")}
        return about | {"sampling": sampling} | rules


def template(settings: AnswerSettings, own: Defaults, sequential: bool) -> Request:
    """A request without its prompt, from a config and the model's own rules."""
    return Request((), settings.max_tokens, sequential, filled(settings, own))


@dataclasses.dataclass(frozen=True)
class Event:
    """One token of a request, reported when it is fed, or main's first one just before.

    `text` is what it adds to its thread (trace.spell_next).
    """

    request: int
    thread: int
    token: int
    step: int
    text: str
    ended: bool = False  # a guest's value is complete


@dataclasses.dataclass(frozen=True)
class Score:
    """A token's log-probability, and the likeliest ids with theirs (extras.py)."""

    own: float
    top: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class Written:
    """What a guest wrote."""

    ids: tuple[int, ...]  # without a stop id
    text: str
    complete: bool  # it ended itself, or its value is complete; else it was cut off
    scores: tuple[Score, ...] = ()  # of the ids, if they were asked for


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished request."""

    request: int
    text: str
    finish_reason: str
    trace: Trace
    copied: int = 0  # tokens of its prompt that were copied from a lane instead of computed
    guests: tuple[Written, ...] = ()
    given: int = 0  # tokens of its prompt and, but for the last of each, of its guests' own
    scores: tuple[Score | None, ...] = ()  # of the trace's tokens, if they were asked for; None: [ASYNC], not drawn
    drafts_fed: int = 0  # guesses of next tokens (drafts.py), and those of them that threads sampled
    drafts_kept: int = 0

    @property
    def forks(self) -> int:
        """Threads besides the one that there is anyway: chunks, or all fields but for a lone one."""
        return 0 if len(self.guests) == 1 else len(self.trace.closed) - 1

    @property
    def critical_path(self) -> int:
        """Steps with a row for every thread."""
        if not self.guests:
            return self.trace.critical_path
        fed = [int((self.trace.thread == guest).sum()) for guest in range(1, 1 + len(self.guests))]
        return 1 + max(fed)  # the first step feeds the last token of each guest's prompt

    @property
    def text_tokens(self) -> int:
        """Tokens of text. What a guest wrote last was never fed."""
        return sum(len(guest.ids) for guest in self.guests) if self.guests else self.trace.text_tokens
