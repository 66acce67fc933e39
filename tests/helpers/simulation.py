"""A program run by threads, one step at a time, following the rules in prose: the oracle of mask and clock.

It shares no code with the package: scripts are written out as ids here, and threads remember visible tokens in sets.
"""

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from pasta_jax.lang.tags import TagIds

TAGS = TagIds(100)
END_OF_TURN = 200


@dataclass(frozen=True)
class Plain:
    """Plain tokens of main."""

    count: int


@dataclass(frozen=True)
class Fork:
    """A promise with `topic` topic tokens, and a chunk of `content` content tokens."""

    topic: int
    tens: int
    content: int


@dataclass(frozen=True)
class Join:
    """A [SYNC]."""


def random_script(rng: random.Random, longest: int = 30) -> list:
    def part():
        kind = rng.randrange(5)
        if kind == 0:
            return Join()
        count = rng.choice([0, 1, 2, rng.randrange(longest)])
        return Plain(count) if kind < 3 else Fork(rng.randrange(3), rng.choice([1, 2, 64]), count)

    return [part() for _ in range(rng.randrange(9))]


counts = st.integers(0, 12)
scripts = st.lists(
    st.one_of(
        st.builds(Plain, counts), st.builds(Fork, st.integers(0, 3), st.integers(1, 64), counts), st.builds(Join)
    ),
    max_size=8,
)


@dataclass
class Thread:
    """`path` holds the places, in linear order, of the tokens it feeds; `visible` those of tokens it may attend to."""

    path: list[int]
    visible: set[int]
    fed: int = 0
    ended: bool = False


@dataclass
class Layout:
    """A script written out: ids in linear order, and the thread of each."""

    ids: list[int]
    main: list[int]  # places of main's tokens, the prompt's first
    forks: list[list[int]]  # places of each fork's tokens, [ASYNC] first, [/ASYNC] last
    spawned_by: dict[int, int]  # place of a [/PROMISE:n] -> number of its fork
    joins: set[int]  # places of [SYNC]
    prompt_length: int


def lay_out(script: list, prompt_length: int) -> Layout:
    layout = Layout([], [], [], {}, set(), prompt_length)
    token = iter(range(10**6))  # plain ids 0..99, all below the tags

    def put(id: int, thread: list[int]) -> None:
        thread.append(len(layout.ids))
        layout.ids.append(id)

    for _ in range(prompt_length):
        put(next(token) % 100, layout.main)
    for part in script:
        match part:
            case Plain(count):
                for _ in range(count):
                    put(next(token) % 100, layout.main)
            case Join():
                layout.joins.add(len(layout.ids))
                put(167, layout.main)
            case Fork(topic, tens, content):
                put(100, layout.main)
                for _ in range(topic):
                    put(next(token) % 100, layout.main)
                layout.spawned_by[len(layout.ids)] = len(layout.forks)
                put(100 + tens, layout.main)
                fork: list[int] = []
                put(165, fork)
                for _ in range(content):
                    put(next(token) % 100, fork)
                put(166, fork)
                layout.forks.append(fork)
    return layout


@dataclass
class Run:
    sees: list[set[int]]  # of every token of the linear order, itself included
    step: list[int]  # 0 for the prompt, and for what is never fed
    critical_path: int


def run(layout: Layout) -> Run:
    """Step by step, all running threads feed a token, then each samples its next."""
    length = len(layout.ids)
    sees: list[set[int]] = [set() for _ in range(length)]
    step_of = [0] * length
    for place in range(layout.prompt_length):
        sees[place] = set(range(place + 1))
    main = Thread(layout.main, set(range(layout.prompt_length)), fed=layout.prompt_length)
    main.ended = main.fed == len(main.path)  # the prefill samples: maybe end-of-turn at once
    forks: list[Thread] = []
    step = 0

    def feed(thread: Thread, place: int) -> None:
        thread.visible.add(place)
        thread.fed += 1
        sees[place] = set(thread.visible)
        step_of[place] = step

    while not main.ended or not all(fork.ended for fork in forks):
        step += 1
        running = [fork for fork in forks if fork.fed < len(fork.path)]
        may_join = all(fork.ended for fork in forks)
        # The last [/ASYNC] is fed in the same step as [SYNC], and [SYNC] sees it: so forks feed first here.
        for fork in running:
            feed(fork, fork.path[fork.fed])
        if not main.ended:
            place = main.path[main.fed]
            if place not in layout.joins:
                feed(main, place)
                if place in layout.spawned_by:
                    forks.append(Thread(layout.forks[layout.spawned_by[place]], set(main.visible)))
                    running.append(forks[-1])
                    feed(forks[-1], forks[-1].path[0])
            elif may_join:
                for fork in forks:
                    main.visible |= set(fork.path)
                feed(main, place)
        # Sampling: a thread with only its last token left has now sampled it.
        for fork in running:
            fork.ended = fork.fed >= len(fork.path) - 1
        main.ended = main.fed == len(main.path)
    for fork in forks:  # a closing tag that is never fed still has its place in training
        if fork.fed < len(fork.path):
            sees[fork.path[-1]] = {*fork.visible, fork.path[-1]}
    return Run(sees, step_of, step)
