"""Several prompts with a common beginning as one request: it is computed once, and each prompt's rest is a guest."""

import dataclasses
from collections.abc import Sequence

from pasta_jax.automata.tokens import TokenAutomaton, joined
from pasta_jax.decode.request import Guest, Request


@dataclasses.dataclass(frozen=True, eq=False)
class Ask:
    """One thread: its whole prompt, and what it may write."""

    prompt_ids: tuple[int, ...]
    automaton: TokenAutomaton | None = None  # None: anything
    begun: bytes = b""  # of the automaton's text, what the prompt has already


def request_of(asks: Sequence[Ask], template: Request) -> Request:
    """The request that answers all of them. Each answer is that of a request of its own, its seed counted on."""
    shortest = min(len(ask.prompt_ids) for ask in asks) - 1  # a guest needs a token of its own
    columns = zip(*(ask.prompt_ids[:shortest] for ask in asks), strict=True)
    shared = next((n for n, ids in enumerate(columns) if len(set(ids)) > 1), shortest)
    automata = [ask.automaton for ask in asks if ask.automaton is not None]
    automaton, first = joined(automata) if automata else (None, [])
    starts, guests = iter(first), []
    for ask in asks:
        state = -1 if ask.automaton is None else next(starts) + ask.automaton.walk(ask.begun)
        guests.append(Guest(ask.prompt_ids[shared:], state))
    prompt_ids = asks[0].prompt_ids[:shared]
    return dataclasses.replace(
        template, prompt_ids=prompt_ids, guests=tuple(guests), automaton=automaton, sequential=True
    )
