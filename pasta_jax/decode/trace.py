"""From the pool's slots to what a request produced: linear program, text, threads, and when each token was fed."""

import dataclasses

import numpy as np

from pasta_jax.decode.state import BUDGET, FINISH_NAMES, LENGTH, OPEN, OWN
from pasta_jax.lang.program import Program
from pasta_jax.lang.tags import TagIds

CLOSED_NAMES = {OWN: "own", BUDGET: "budget", OPEN: "request"}  # the request ended before the chunk did


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread of a request; thread 0 is main."""

    number: int
    topic: str
    tens: int  # promised length in tens; 0 for main
    tokens: int  # tokens fed
    first_step: int
    last_step: int
    closed: str  # own, budget, request


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Every token a request fed after its prompt, in slot order, as int32 arrays [N]."""

    tags: TagIds
    prompt_ids: tuple[int, ...]
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    position: np.ndarray
    closed: tuple[int, ...]  # how each chunk ended: OPEN, OWN, BUDGET
    finish: int
    steps: int

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        return FINISH_NAMES[self.finish]

    def thread_ids(self, thread: int) -> list[int]:
        """The tokens one thread fed, in order."""
        return self.token[self.thread == thread].tolist()

    def linear_ids(self) -> list[int]:
        """The response in linear order: each block behind its promise, and closed even if its closing tag was not fed.

        A promise that the request's end cut short is left out: it is no promise yet.
        """
        tags, ids, number = self.tags, [], 0
        main = self.thread_ids(0)
        if self.finish == LENGTH:
            opened = [i for i, token in enumerate(main) if token == tags.promise]
            if opened and not any(tags.is_close(token) for token in main[opened[-1] :]):
                main = main[: opened[-1]]
        for token in main:
            ids.append(token)
            if tags.is_close(token):
                number += 1
                block = self.thread_ids(number) or [tags.async_]
                ids += block if block[-1] == tags.end_async else [*block, tags.end_async]
        return ids

    def program(self, tokenizer) -> Program:
        """The response as a program."""
        return Program.from_ids(self.linear_ids(), tokenizer)

    def threads(self, tokenizer) -> list[Thread]:
        """The thread table."""
        promises, topic = [], []
        for token in self.thread_ids(0):
            if self.tags.is_close(token):
                promises.append((tokenizer.decode(topic), int(self.tags.tens(token))))
            topic = [] if token == self.tags.promise else [*topic, token]
        rows = []
        for number, (topic, tens) in enumerate([("", 0), *promises]):
            steps = self.step[self.thread == number]
            first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
            closed = "own" if number == 0 and self.finish != LENGTH else CLOSED_NAMES[self.closed[number]]
            rows.append(Thread(number, topic, tens, len(steps), first, last, closed))
        return rows
