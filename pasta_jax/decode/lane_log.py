"""The host's view of a lane: a snapshot of what a round left on the device, and the log of the lane's request."""

import dataclasses
import time
from collections.abc import Iterator

import jax
import numpy as np

from pasta_jax.decode.extras import Scores
from pasta_jax.decode.request import Event, Request, Result, Score, Written
from pasta_jax.decode.state import LENGTH, OWN, DecodeState, LoopSpec
from pasta_jax.decode.trace import Trace, spell, spell_next
from pasta_jax.tokenizers.tokenizer import Detokenizer
from pasta_jax.weights.model import Model

SHORT = 16  # steps of a round, at most, whose tokens somebody waits for
UNREAD = 256  # steps of a round, at most, whose tokens nobody reads before its end; it takes about a second


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What the host reads back after a round."""

    live: np.ndarray
    finish: np.ndarray
    steps: np.ndarray
    fill: np.ndarray
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    position: np.ndarray
    sampled: np.ndarray
    closed: np.ndarray
    spawned: np.ndarray
    scores: Scores | None
    drafts: tuple[np.ndarray, np.ndarray] | None  # fed and kept

    @staticmethod
    def of(state: DecodeState, scored: bool = False) -> "Snapshot":
        """`scored`: with the scores of tokens."""
        pool = state.pool
        lanes = (state.live, state.finish, state.step, pool.fill)
        tokens = (pool.token, pool.chunk, pool.step, pool.position)
        threads = (state.threads.token, state.threads.closed)
        scores = state.extras.scores if scored else None
        drafts = state.drafts and (state.drafts.fed, state.drafts.kept)
        return Snapshot(*jax.device_get((*lanes, *tokens, *threads, state.spawned, scores, drafts)))


@dataclasses.dataclass
class LaneLog:
    """The host's view of the request in a lane: tokens reported, times, and each thread's incomplete character."""

    number: int
    request: Request
    model: Model
    spec: LoopSpec
    replayed: bool
    round_steps: int
    copied: int
    reported: int = 0
    begun: int = 0  # 1: the first token was reported before it was fed
    kept: int = 0  # drafts
    detokenizers: dict[int, Detokenizer] = dataclasses.field(default_factory=dict)
    ended: set[int] = dataclasses.field(default_factory=set)  # the guests whose last token was reported
    started: float = dataclasses.field(default_factory=time.perf_counter)
    rounds: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def next_steps(self) -> int:
        """Steps until this request is read again: one before its first token, if somebody waits for it."""
        return 1 if not self.reported and self.round_steps <= SHORT else self.round_steps

    @property
    def step(self) -> int:
        """Steps done when this request was last read."""
        return next(reversed(self.rounds))

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for main's first token."""
        return self.round_steps <= SHORT and not self.request.guests

    def first(self, token: int) -> Event:
        """Main's first token, which was sampled with its prompt. The next step feeds it."""
        self.begun, tokenizer = 1, self.model.tokenizer
        detokenizer = self.detokenizers.setdefault(0, Detokenizer(tokenizer))
        return Event(self.number, 0, token, 1, spell_next(detokenizer, tokenizer.tags, token))

    def record_time(self, step: int) -> None:
        """Record when the host learned that this step was done."""
        self.rounds[step] = round(1000 * (time.perf_counter() - self.started), 3)

    def growth(self, snapshot: Snapshot, lane: int) -> np.ndarray:
        """Tokens fed since the last call of `events`, and how many of them were drafts, [2]."""
        before, self.kept = self.kept, int(snapshot.drafts[1][lane])
        return np.array([int(snapshot.fill[lane]) - self.request.given - self.reported, self.kept - before])

    def events(self, snapshot: Snapshot, lane: int) -> Iterator[Event]:
        """The tokens fed since the last call, but for one that `first` has reported."""
        tokenizer = self.model.tokenizer
        prompt, fill = self.request.given, int(snapshot.fill[lane])
        columns = (snapshot.thread, snapshot.token, snapshot.step)
        for slot in range(prompt + max(self.reported, self.begun), fill):
            thread, token, step = (int(column[lane, slot]) for column in columns)
            if self.request.guests and thread not in self.detokenizers:
                self.detokenizers[thread] = Detokenizer(tokenizer)
                continue  # a guest's first token is the last one of its prompt
            detokenizer = self.detokenizers.setdefault(thread, Detokenizer(tokenizer))
            yield Event(self.number, thread, token, step, spell_next(detokenizer, tokenizer.tags, token))
        self.reported = fill - prompt
        for thread, token in self._last(snapshot, lane).items():
            if thread not in self.ended:
                self.ended.add(thread)
                detokenizer = self.detokenizers.setdefault(thread, Detokenizer(tokenizer))
                step = int(snapshot.step[lane, :fill][snapshot.thread[lane, :fill] == thread].max())  # it was drawn in
                text = detokenizer.push(token) + detokenizer.flush()
                yield Event(self.number, thread, token, step, text, ended=True)

    def _last(self, snapshot: Snapshot, lane: int) -> dict[int, int]:
        """What the guests that have ended sampled last, which is never fed."""
        guests = range(1, 1 + len(self.request.guests))
        return {guest: int(snapshot.sampled[lane, guest]) for guest in guests if snapshot.closed[lane, guest] == OWN}

    def in_order(self, snapshot: Snapshot, lane: int) -> tuple[int, ...]:
        """Main's tokens up to the first tag: they stand after the prompt as a longer prompt's would."""
        prompt, fill = self.request.given, int(snapshot.fill[lane])
        token, thread = (field[lane, prompt:fill] for field in (snapshot.token, snapshot.thread))
        others = np.flatnonzero((thread != 0) | self.model.tokenizer.tags.is_tag(token))
        return tuple(token[: others[0] if len(others) else len(token)].tolist())

    def result(self, snapshot: Snapshot, lane: int, cut: bool = False) -> Result:
        """The result of the request, which has ended, or is cut off here."""
        tokenizer, request = self.model.tokenizer, self.request
        prompt, fill = request.given, int(snapshot.fill[lane])
        token, thread, step, position = (
            field[lane, prompt:fill].copy()
            for field in (snapshot.token, snapshot.thread, snapshot.step, snapshot.position)
        )
        slots = [np.flatnonzero(thread == guest) + prompt for guest in range(1, 1 + len(request.guests))]
        if request.guests:
            _, begins = np.unique(thread, return_index=True)
            token, thread, step, position = (np.delete(column, begins) for column in (token, thread, step, position))
        last, written = self._last(snapshot, lane), []
        for guest, fed in enumerate(slots, 1):  # each id was drawn where the one before it was fed
            ids = [*token[thread == guest].tolist(), *([last[guest]] if guest in last else [])]
            ids = ids[:-1] if guest in last and last[guest] in self.spec.stop_ids else ids
            scores = [_score(snapshot, lane, slot) for slot in fed[: len(ids)]] if request.scored else ()
            written.append(Written(tuple(ids), tokenizer.decode(ids), guest in last, tuple(scores)))
        trace = Trace(
            tags=tokenizer.tags,
            model=self.model.name,
            prompt=tokenizer.decode(request.prompt_ids) if request.text is None else request.text,
            prompt_ids=tuple(request.prompt_ids),
            rows=self.spec.rows,
            policy=self.spec.positions.policy,
            replayed=self.replayed,
            token=token,
            thread=thread,
            step=step,
            position=position,
            text=spell(tokenizer, token, thread),
            closed=tuple(snapshot.closed[lane, : snapshot.spawned[lane] + 1].tolist()),
            finish=LENGTH if cut else int(snapshot.finish[lane]),
            steps=int(snapshot.steps[lane]),
            rounds=tuple(self.rounds.items()),
        )
        fed, kept = (int(field[lane]) for field in snapshot.drafts) if snapshot.drafts else (0, 0)
        return Result(
            request=self.number,
            text=trace.program().strip(),
            finish_reason=trace.finish_reason,
            trace=trace,
            copied=self.copied,
            guests=tuple(written),
            given=request.given,
            scores=self._scores(snapshot, lane, trace) if request.scored and not request.guests else (),
            drafts_fed=fed,
            drafts_kept=kept,
        )

    def _scores(self, snapshot: Snapshot, lane: int, trace: Trace) -> tuple[Score | None, ...]:
        """Each token's, which stand at the token before it in its thread; main's first at the prompt's last one."""
        prompt, scores, before = self.request.given, [], {0: self.request.given - 1}
        for at, thread in enumerate(trace.thread.tolist()):
            slot, before[thread] = before.get(thread), prompt + at
            scores.append(None if slot is None else _score(snapshot, lane, slot))
        return tuple(scores)


def _score(snapshot: Snapshot, lane: int, slot: int) -> Score:
    """Of what was drawn after the token of a slot."""
    own, top, ids = (field[lane, slot] for field in vars(snapshot.scores).values())
    return Score(float(own), tuple(zip(ids.tolist(), top.tolist(), strict=True)))
