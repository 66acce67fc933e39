"""The trace of a request: each token with its thread, step and position; program, threads and timing are derived."""

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from pasta_jax.decode.state import BUDGET, FINISH_NAMES, LENGTH, OPEN, OWN
from pasta_jax.lang.clock import clock, theoretical_speedup
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.lang.tags import TagIds
from pasta_jax.tokenizers.tokenizer import Detokenizer, Tokenizer

CLOSED_NAMES = {OWN: "own", BUDGET: "budget", OPEN: "request"}  # the request ended before the chunk did
NOT_FED = -1
NO_TOKEN = -1  # a placeholder id that is neither a tag nor a stop id


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread of a request; thread 0 is main."""

    number: int
    topic: str
    tens: int  # promised length in tens; 0 for main
    length: int  # a chunk's: ids of its block, with [ASYNC] and [/ASYNC] even if they were not fed; main's: tokens fed
    tokens: int  # tokens fed
    first_step: int  # 0 if it fed none
    last_step: int
    closed: str  # own, budget, request

    @property
    def name(self) -> str:
        """Its name in pictures."""
        return f"{self.number} {self.topic}" if self.number else "main"


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Every token a request fed after its prompt, in slot order, as int32 arrays [N]; docs/API.md describes the file.

    Token i is in the pool's slot len(prompt_ids) + i.
    """

    tags: TagIds
    model: str
    prompt: str  # the prompt as the user wrote it, or its ids decoded
    prompt_ids: tuple[int, ...]
    rows: int
    policy: str
    replayed: bool  # the answer was forced, not sampled
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    position: np.ndarray
    text: tuple[str, ...]  # what each token adds to its thread's text; see spell
    closed: tuple[int, ...]  # how each thread ended: OPEN, OWN, BUDGET; main's is not used
    finish: int
    steps: int
    rounds: tuple[tuple[int, float], ...]  # (step, milliseconds) of each round; empty if not measured

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        return FINISH_NAMES[self.finish]

    def thread_ids(self, thread: int) -> list[int]:
        """The tokens one thread fed, in order."""
        return self.token[self.thread == thread].tolist()

    @cached_property
    def _linear(self) -> tuple[list[int], list[int], int]:
        """The linear response: ids, their indices in slot order or NOT_FED, and where an unclosed promise begins.

        Each block follows its promise and is closed, even if its closing tag was never fed.
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
        """The response in linear order, without a promise that was not closed before the request ended."""
        ids, _, cut = self._linear
        return ids[:cut]

    def _whole_ids(self) -> list[int]:
        """All fed tokens in linear order, well-formed: an unclosed promise counts as plain main tokens."""
        ids, _, cut = self._linear
        return ids[:cut] + [NO_TOKEN if id == self.tags.promise else id for id in ids[cut:]]

    def text_of(self, thread: int) -> str:
        """What one thread wrote, main's topics aside."""
        own = (self.thread == thread) & ~self.in_topic & ~self.tags.is_close(self.token)
        return "".join(self.text[i] for i in np.flatnonzero(own))

    def order(self) -> np.ndarray:
        """int [N]: the fed tokens in linear order, as indices into the arrays."""
        return np.array([i for i in self._linear[1] if i != NOT_FED], np.int64)

    def sees(self) -> np.ndarray:
        """The attention mask in linear order, bool [N, P + N]: queries are fed tokens, keys also the prompt's."""
        prompt = len(self.prompt_ids)
        parts = structure([*self.prompt_ids, *self._whole_ids()], self.tags, prompt, end_of_turn=NO_TOKEN - 1)
        fed = prompt + np.flatnonzero(np.array(self._linear[1], np.int64) != NOT_FED)
        return visible_matrix(parts)[np.ix_(fed, np.concatenate([np.arange(prompt), fed]))]

    @cached_property
    def in_topic(self) -> np.ndarray:
        """bool [N]: the tokens of topics, including the topic of an unclosed promise."""
        in_topic, inside = np.zeros(len(self.token), bool), False
        for i in np.flatnonzero(self.thread == 0):
            token = int(self.token[i])
            in_topic[i] = inside and not self.tags.is_close(token)
            inside = token == self.tags.promise or in_topic[i]
        return in_topic

    @property
    def text_tokens(self) -> int:
        """Number of tokens that are neither tags nor part of a topic."""
        return int(np.count_nonzero(~self.tags.is_tag(self.token) & ~self.in_topic))

    @cached_property
    def critical_path(self) -> int:
        """Steps the answer takes with unlimited rows, by lang/clock.py.

        If the request ran out of tokens, only fed tokens count: those of an unfinished chunk (the closing tag that
        completes its block costs no step), and those of an unclosed promise as main tokens. It never exceeds `steps`
        unless drafts were kept.
        """
        return clock(self._whole_ids(), self.tags, 0).critical_path

    @property
    def parallelism(self) -> float:
        """Text tokens per step of the critical path; 0 for an empty answer."""
        return self.text_tokens / self.critical_path if self.critical_path else 0.0

    def speedup(self, baseline_tokens: int) -> float:
        """Theoretical speedup over a sequential answer of `baseline_tokens` tokens."""
        return theoretical_speedup(baseline_tokens, self.critical_path)

    @property
    def widest(self) -> int:
        """The largest number of threads that fed in one step."""
        running = np.unique([self.step, self.thread], axis=1)  # with drafts, a thread feeds several tokens in a step
        return int(np.bincount(running[0]).max()) if len(self.step) else 0

    @property
    def kept_drafts(self) -> int:
        """Tokens that their threads fed as drafts."""
        return int(np.sum(self.is_kept_draft))

    @property
    def is_kept_draft(self) -> np.ndarray:
        """Of each token, whether its thread fed it as a draft: after another token in the same step."""
        is_draft = np.zeros(len(self.step), bool)
        for thread in range(len(self.closed)):
            (at,) = np.nonzero(self.thread == thread)
            is_draft[at[1:]] = self.step[at[1:]] == self.step[at[:-1]]
        return is_draft

    def program(self) -> Program:
        """The response as a program, equal to what Program.from_ids parses from the linear ids."""
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
        # What an unclosed promise adds to main: the end of a character that it cut off.
        rest = self.text[index[cut]] if cut < len(ids) else ""
        return Program((*parts, Text("".join(pieces) + rest)))

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
        """For each joined chunk, the index of the [SYNC] that joined it: main's first after the chunk's promise."""
        open_, joined = [], {}
        for i in np.flatnonzero(self.thread == 0).tolist():
            token = int(self.token[i])
            if self.tags.is_close(token):
                open_.append(len(open_) + len(joined) + 1)
            elif token == self.tags.sync:
                joined |= dict.fromkeys(open_, i)
                open_ = []
        return joined

    def ms_at(self, step: ArrayLike) -> np.ndarray:
        """Milliseconds from the start of the prefill to the end of a step. Accepts ints and arrays.

        Measured at the end of each round, interpolated in between.
        """
        steps, ms = zip(*self.rounds, strict=True)
        return np.interp(step, steps, ms)

    @property
    def prefill_ms(self) -> float:
        """Milliseconds from the start of the prefill until the first token was sampled."""
        return self.rounds[0][1]

    @property
    def decode_ms(self) -> float:
        """Milliseconds from the first sampled token until the request was done."""
        return self.rounds[-1][1] - self.rounds[0][1]


def spell(tokenizer: Tokenizer, token: np.ndarray, thread: np.ndarray) -> tuple[str, ...]:
    """The text that each token adds to its thread: a character belongs to the token with its last byte.

    An incomplete character before a tag or the thread's end becomes U+FFFD, at the tag or the last token.
    """
    pieces = [""] * len(token)
    for number in np.unique(thread):
        detokenizer = Detokenizer(tokenizer)
        indices = np.flatnonzero(thread == number)
        for i in indices:
            pieces[i] = spell_next(detokenizer, tokenizer.tags, int(token[i]))
        pieces[indices[-1]] += detokenizer.flush()
    return tuple(pieces)


def spell_next(detokenizer: Detokenizer, tags: TagIds, token: int) -> str:
    """`spell` for the next token of one thread."""
    return detokenizer.flush() if tags.is_tag(token) else detokenizer.push(token)
