"""What a request did: each token with its thread, step and position; the program, the threads and the timing follow."""

import dataclasses
from functools import cached_property

import numpy as np

from pasta_jax.decode.state import BUDGET, FINISH_NAMES, LENGTH, OPEN, OWN
from pasta_jax.lang.clock import clock, theoretical_speedup
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.tokenizer import Detokenizer

CLOSED_NAMES = {OWN: "own", BUDGET: "budget", OPEN: "request"}  # the request ended before the chunk did
NOT_FED = -1
NO_TOKEN = -1  # stands for an id that is neither a tag nor a stop


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread of a request; thread 0 is main."""

    number: int
    topic: str
    tens: int  # promised length in tens; 0 for main
    length: int  # a chunk's: the ids of its block, [ASYNC] and [/ASYNC] counted, fed or not; main's: tokens fed
    tokens: int  # tokens fed
    first_step: int  # 0 if it fed none
    last_step: int
    closed: str  # own, budget, request


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Every token a request fed after its prompt, in slot order, as int32 arrays [N]; docs/TRACE.md describes its file.

    Token i lies in the pool's slot len(prompt_ids) + i.
    """

    tags: TagIds
    model: str
    prompt: str  # the question as it was asked, or what its ids decode to
    prompt_ids: tuple[int, ...]
    rows: int
    policy: str
    replayed: bool  # the answer was given, not sampled
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    position: np.ndarray
    text: tuple[str, ...]  # what each token adds to its thread's text; see spell
    closed: tuple[int, ...]  # how each thread ended: OPEN, OWN, BUDGET; main's says nothing
    finish: int
    steps: int
    rounds: tuple[tuple[int, float], ...]  # (step, milliseconds) at each look at the device; empty if not measured

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        return FINISH_NAMES[self.finish]

    def thread_ids(self, thread: int) -> list[int]:
        """The tokens one thread fed, in order."""
        return self.token[self.thread == thread].tolist()

    @cached_property
    def _linear(self) -> tuple[list[int], list[int], int]:
        """(ids, index of each in slot order or NOT_FED, where a promise that was never closed begins).

        Each block stands behind its promise and is closed, even if its closing tag was never fed.
        """
        tags = self.tags
        fed = [np.flatnonzero(self.thread == number).tolist() for number in range(len(self.closed))]
        ids, index, cut, number = [], [], None, 0
        for i in fed[0]:
            token = int(self.token[i])
            ids.append(token)
            index.append(i)
            if token == tags.promise:
                cut = len(ids) - 1
            elif tags.is_close(token):
                cut, number = None, number + 1
                block = self.token[fed[number]].tolist() or [tags.async_]
                ids += block
                index += fed[number] or [NOT_FED]
                if block[-1] != tags.end_async:
                    ids.append(tags.end_async)
                    index.append(NOT_FED)
        return ids, index, len(ids) if cut is None else cut

    def linear_ids(self) -> list[int]:
        """The response in linear order; a promise that the request's end cut short is left out: it is none yet."""
        ids, _, cut = self._linear
        return ids[:cut]

    def _whole_ids(self) -> list[int]:
        """All that was fed, in linear order and well-formed: a promise cut short counts as plain main tokens."""
        ids, _, cut = self._linear
        return ids[:cut] + [NO_TOKEN if id == self.tags.promise else id for id in ids[cut:]]

    def order(self) -> np.ndarray:
        """int [N]: the fed tokens in linear order, as indices into the arrays."""
        return np.array([i for i in self._linear[1] if i != NOT_FED], np.int64)

    def sees(self) -> np.ndarray:
        """bool [N, P + N]: which tokens (P of the prompt, N fed) each fed token attends to, in linear order."""
        prompt = len(self.prompt_ids)
        parts = structure([*self.prompt_ids, *self._whole_ids()], self.tags, prompt, end_of_turn=NO_TOKEN - 1)
        fed = prompt + np.flatnonzero(np.array(self._linear[1], np.int64) != NOT_FED)
        return visible_matrix(parts)[np.ix_(fed, np.concatenate([np.arange(prompt), fed]))]

    @cached_property
    def in_topic(self) -> np.ndarray:
        """bool [N]: pieces of topics, also of a promise cut short."""
        found, inside = np.zeros(len(self.token), bool), False
        for i in np.flatnonzero(self.thread == 0):
            token = int(self.token[i])
            found[i] = inside and not self.tags.is_close(token)
            inside = token == self.tags.promise or found[i]
        return found

    @property
    def text_tokens(self) -> int:
        """Tokens that are neither tags nor pieces of topics."""
        return int(np.count_nonzero(~self.tags.is_tag(self.token) & ~self.in_topic))

    @cached_property
    def critical_path(self) -> int:
        """Steps with unlimited rows, by lang/clock.py.

        A request that ran out of tokens is timed as far as it came: a chunk cut short counts up to the last token it
        fed (the closing tag that makes its block whole costs the clock nothing), a promise cut short as the main tokens
        it was. So it is never more than `steps`.
        """
        return clock(self._whole_ids(), self.tags, 0).critical_path

    @property
    def parallelism(self) -> float:
        """Text tokens a step on the critical path; 0 for an empty answer."""
        return self.text_tokens / self.critical_path if self.critical_path else 0.0

    def speedup(self, baseline_tokens: int) -> float:
        """Theoretical speedup over a sequential answer of so many tokens."""
        return theoretical_speedup(baseline_tokens, self.critical_path)

    @property
    def widest(self) -> int:
        """The most threads that fed in one step."""
        return int(np.bincount(self.step).max()) if len(self.step) else 0

    def program(self) -> Program:
        """The response as a program: what Program.from_ids reads from the linear ids."""
        ids, index, cut = self._linear
        parts, pieces, topic, tens = [], [], "", 0
        for id, i in zip(ids[:cut], index, strict=False):
            pieces.append("" if i == NOT_FED else self.text[i])
            if not self.tags.is_tag(id):
                continue
            piece, pieces = "".join(pieces), []
            if self.tags.is_close(id):
                topic, tens = piece, int(self.tags.tens(id))
            elif id == self.tags.end_async:
                parts.append(Chunk(topic, tens, piece))
            elif id != self.tags.async_:
                parts += [Text(piece), *([Sync()] if id == self.tags.sync else [])]
        return Program((*parts, Text("".join(pieces))))

    def threads(self) -> list[Thread]:
        """The thread table."""
        chunks = [part for part in self.program().parts if isinstance(part, Chunk)]
        rows = []
        for number, chunk in enumerate([Chunk("", 1, ""), *chunks]):
            steps = self.step[self.thread == number]
            first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
            if number == 0:
                closed = CLOSED_NAMES[OPEN if self.finish == LENGTH else OWN]
                rows.append(Thread(0, "", 0, len(steps), len(steps), first, last, closed))
                continue
            block = self.thread_ids(number) or [self.tags.async_]
            length = len(block) + (block[-1] != self.tags.end_async)
            closed = CLOSED_NAMES[self.closed[number]]
            rows.append(Thread(number, chunk.topic, chunk.tens, length, len(steps), first, last, closed))
        return rows

    def joins(self) -> dict[int, int]:
        """For each chunk that main waited for, where in the arrays the [SYNC] is that joined it: the next in main."""
        open_, joined = [], {}
        for i in np.flatnonzero(self.thread == 0).tolist():
            token = int(self.token[i])
            if self.tags.is_close(token):
                open_.append(len(open_) + len(joined) + 1)
            elif token == self.tags.sync:
                joined |= dict.fromkeys(open_, i)
                open_ = []
        return joined

    def ms_at(self, step) -> np.ndarray:
        """Milliseconds from the start of the prefill to the end of a step. Takes ints and arrays.

        Measured where the host looked at the device, interpolated between two looks.
        """
        steps, ms = zip(*self.rounds, strict=True)
        return np.interp(step, steps, ms)

    @property
    def prefill_ms(self) -> float:
        """From the start of the prefill until the first token was sampled."""
        return self.rounds[0][1]

    @property
    def decode_ms(self) -> float:
        """From then until the request was done."""
        return self.rounds[-1][1] - self.rounds[0][1]


def spell(tokenizer, token: np.ndarray, thread: np.ndarray) -> tuple[str, ...]:
    """What each token adds to the text of its thread: a character comes with its last byte.

    What a tag or the thread's end cuts off in the middle of a character becomes U+FFFD, at the tag or the last token.
    """
    pieces = [""] * len(token)
    for number in np.unique(thread):
        detokenizer = Detokenizer(tokenizer)
        own = np.flatnonzero(thread == number)
        for i in own:
            pieces[i] = spell_next(detokenizer, tokenizer.tags, int(token[i]))
        pieces[own[-1]] += detokenizer.flush()
    return tuple(pieces)


def spell_next(detokenizer: Detokenizer, tags: TagIds, token: int) -> str:
    """One token's share of `spell`."""
    return detokenizer.flush() if tags.is_tag(token) else detokenizer.push(token)
