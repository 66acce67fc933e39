"""The data of a decoding loop: lanes (one request each), their threads, the pool they write to, and its constants.

Letters: B lanes, M threads per lane (thread 0 is main, thread k is chunk k), S slots, R rows per step.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.extras import Extras, no_extras
from pasta_jax.decode.guests import Guests
from pasta_jax.decode.settings import Room
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import is_stacked
from pasta_jax.models.pool import Pool, empty_pool
from pasta_jax.models.sharding import mesh_of, shardings
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules

# Status of a thread
#
#               the prefill samples main's first token,
#               or main closes the promise of a chunk
#      UNUSED ─────────────────────────────────────────> LIVE ──┐ feeds its token, samples the next;
#                                                        │  ^───┘ keeps its token while it waits
#                                                        │
#        ┌───────────────────────────────────────────────┤
#        │ main samples a stop id,                       │ a chunk samples [/ASYNC] (OWN), or is full and the
#        │ which is never fed                            │ interpreter closes it (BUDGET)
#        v                                               v
#      DONE <──────────────────────────────────────────ENDED
#                          feeds [/ASYNC]
#
# Main waits before [SYNC] until no chunk is LIVE; a chunk waits until a row is free. A request is finished when main is
# DONE and no chunk is LIVE, or when its slots are used up; its other threads then keep their status and are OPEN.
UNUSED, LIVE, ENDED, DONE = range(4)
# how a thread ended
OPEN, OWN, BUDGET = range(3)
# finish of a lane
RUNNING, STOP, LENGTH = range(3)
DRAFT_KINDS = 6  # drafts.py::SHARES
FINISH_NAMES = {STOP: "stop", LENGTH: "length"}


jax.tree_util.register_dataclass(Rules, [field.name for field in dataclasses.fields(Rules)], [])
_DTYPES = {bool: np.bool_, int: np.int32, float: np.float32}


def arrays(rules: Rules) -> Rules:
    """Rules as scalars of the types that a compiled program expects; [B] each in a state, [N] for rows."""
    dtypes = {field.name: _DTYPES[type(field.default)] for field in dataclasses.fields(Rules)} | {"seed": np.uint32}
    return Rules(**{name: dtype(getattr(rules, name)) for name, dtype in dtypes.items()})


@dataclasses.dataclass(frozen=True)
class TopicIds:
    """What each id below the tokenizer's size adds to a topic (topics.py). Bytes, whose hash is computed once."""

    kinds: bytes = dataclasses.field(repr=False)  # uint8: EXTENDS, BEGINS, BLANK, SEVERAL
    ends: bytes = dataclasses.field(repr=False)  # uint8: 1 if its text ends with whitespace
    lengths: bytes = dataclasses.field(repr=False)  # uint8: bytes of its spelling
    digests: bytes = dataclasses.field(repr=False)  # uint32: digest of its spelling


@dataclasses.dataclass(frozen=True)
class LoopSpec:
    """The constants of a compiled loop: another value compiles another program."""

    tags: TagIds
    stop_ids: tuple[int, ...]  # the first is end-of-turn
    vocab: int  # ids at or above it are padding
    rows: int  # R: threads that feed in one step, main included
    widths: tuple[int, ...]  # ascending, the last is `rows`: a step computes the smallest that holds its threads
    prefixes: tuple[int, ...]  # ascending: attention reads the shortest run of slots that holds all used ones
    positions: Positions
    prefill_chunk: int  # tokens of a prompt that are computed at once, at most
    packed: tuple[int, ...] = ()  # ascending: rows of all lanes, likewise; empty: widths count
    kernel: bool = False  # a step's attention by models/kernels/pool_tpu.py
    topics: TopicIds | None = None  # None: no request limits the words of its topics or forbids to repeat one
    guests: Room | None = None  # None: no request has guests (guests.py)
    extras: bool = False  # requests may have biases and log-probabilities (extras.py)
    priced: bool = False  # chunks begin when a step has room for them (admission.py)
    drafts: int = 0  # most drafts of a lane in a step (drafts.py)
    drafter: bool = False  # the parameters have a drafter, which guesses some of them (guesses.py)
    digits: tuple[int, ...] = ()  # ids of "0" to "9", for drafts

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ascending: the rows that steps compute."""
        return self.packed or self.widths

    @property
    def priced_rows(self) -> tuple[int, ...]:
        """Ascending: the rows whose steps are measured, the fewest and the most of each size (cost.py)."""
        return tuple(sorted({*self.sizes, 1, *(size + 1 for size in self.sizes[:-1])}))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Threads:
    """Every thread of every lane; [B, M] each. Threads of a lane are numbered in spawn order."""

    status: jax.Array  # int32: UNUSED, LIVE, ENDED, DONE
    token: jax.Array  # int32: the next token to feed; sampled, except for [ASYNC], which is inserted
    position: jax.Array  # int32: the position of that token
    main: jax.Array  # int32: main tokens fed before it; a chunk's: at its promise
    epoch: jax.Array  # int32: [SYNC]s fed when the thread began; main's is the lane's current epoch
    count: jax.Array  # int32: tokens sampled in this thread, the number that its next draw folds in
    closed: jax.Array  # int32: OPEN, OWN (sampled its end), BUDGET (the interpreter closed it)
    tens: jax.Array  # int32: of its promise


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RequestFields:
    """The parameters of each lane's request; [B] each. Arrays, so that new values need no compilation."""

    limit: jax.Array  # int32: slots the request may fill, its prompt included
    tags_allowed: jax.Array  # int32: those that main may write, FORK and SYNC of grammar.py; 0 decodes sequentially
    rules: Rules  # arrays, see `arrays`
    adapter: jax.Array  # int32: of its rows (models/adapters.py); 0: none


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Topics:
    """The topic that main is writing, or wrote last, and those before it (topics.py)."""

    words: jax.Array  # int32 [B]: words begun
    in_word: jax.Array  # bool [B]: the last one has not ended
    length: jax.Array  # int32 [B]: bytes of its spelling
    digest: jax.Array  # uint32 [B]: digest of its spelling
    earlier_length: jax.Array  # int32 [B, M]: by chunk; 0: none
    earlier_digest: jax.Array  # uint32 [B, M]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drafts:
    """What the lanes' next step feeds besides what their threads have sampled (drafts.py)."""

    thread: jax.Array  # int32 [B]: the thread that may go on like this
    token: jax.Array  # int32 [B, K]
    kind: jax.Array  # int32 [B]: of these guesses, as `tried` counts them
    count: jax.Array  # int32 [B]: tokens of it that are fed
    allowed: jax.Array  # bool [B]: the request may have drafts
    fed: jax.Array  # int32 [B]: drafts fed so far
    kept: jax.Array  # int32 [B]: those of them that the thread sampled
    tried: jax.Array  # float32 [B, kinds]: drafts by kind that were right, or the first wrong one of their step
    right: jax.Array  # float32 [B, kinds]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """What the loop carries. A lane that is not live feeds nothing and does not change."""

    pool: Pool
    threads: Threads
    request: RequestFields
    live: jax.Array  # bool [B]: a request is being decoded
    finish: jax.Array  # int32 [B]: RUNNING, STOP, LENGTH
    step: jax.Array  # int32 [B]: steps since the prefill
    spawned: jax.Array  # int32 [B]: chunks so far
    topic: jax.Array  # int32 [B]: topic tokens of the promise that main is writing; -1 outside of one
    topics: Topics | None  # None: without rules for topics
    highest: jax.Array  # int32 [B]: greatest position fed so far
    prompted: jax.Array  # [B, E]: final hidden state of the prompt's last token; copies of the prompt start from it
    hidden: jax.Array | None  # [B, S, E]: final hidden state of each slot's token, if it is stored; see replay.py
    guests: Guests | None = None  # None: no lane has any
    extras: Extras | None = None  # None: no request asks for any
    prices: jax.Array | None = None  # float32: ms of a step, by LoopSpec.priced_rows; None: nothing asks for them
    drafts: Drafts | None = None  # None: none are fed

    @property
    def lanes(self) -> int:
        """B."""
        return self.live.shape[0]


def max_threads(slots: int) -> int:
    """M: main and as many chunks as a pool can hold, since each takes at least [PROMISE], [/PROMISE:n] and [ASYNC]."""
    return 1 + slots // 3


def slots_of_threads(threads: int) -> int:
    """The fewest slots of a pool with so many."""
    return 3 * (threads - 1)


def new_state(model: Model, lanes: int, slots: int, **parts: int) -> DecodeState:
    """`empty_state` for a model, sharded over the mesh of its parameters from the start, if they have one.

    Programs run where their parameters are, since jitted functions follow their arguments. Nothing else needs to know
    about a mesh.
    """
    sizes = model.config, lanes, slots, model.dtype, is_stacked(model.params)
    if (mesh := mesh_of(model.params)) is None:
        return empty_state(*sizes, **parts)
    static = dict(static_argnums=tuple(range(len(sizes))), static_argnames=tuple(parts))
    results = shardings(jax.eval_shape(lambda: empty_state(*sizes, **parts)), mesh)
    return jax.jit(empty_state, **static, out_shardings=results)(*sizes, **parts)


def empty_state(
    config: TransformerConfig,
    lanes: int,
    slots: int,
    dtype: jnp.dtype,
    stacked: bool,
    keep_hidden: bool = False,
    topics: bool = False,
    drafts: int = 0,
    extras: bool = False,
    prices: int = 0,
) -> DecodeState:
    """A state without a live lane. `prices`: how many."""

    def full(shape: int | tuple[int, ...], value: float, dtype: jnp.dtype = jnp.int32) -> jax.Array:
        return jnp.full(shape, value, dtype)

    per_thread = {field.name: full((lanes, max_threads(slots)), 0) for field in dataclasses.fields(Threads)}
    return DecodeState(
        pool=empty_pool(config, lanes, slots, dtype, stacked),
        threads=Threads(**per_thread),
        request=RequestFields(
            limit=full(lanes, 0),
            tags_allowed=full(lanes, 0),
            rules=jax.tree.map(lambda value: full(lanes, value, value.dtype), arrays(Rules())),
            adapter=full(lanes, 0),
        ),
        live=full(lanes, False, jnp.bool),
        finish=full(lanes, RUNNING),
        step=full(lanes, 0),
        spawned=full(lanes, 0),
        topic=full(lanes, -1),
        topics=Topics(
            words=full(lanes, 0),
            in_word=full(lanes, False, jnp.bool),
            length=full(lanes, 0),
            digest=full(lanes, 0, jnp.uint32),
            earlier_length=full((lanes, max_threads(slots)), 0),
            earlier_digest=full((lanes, max_threads(slots)), 0, jnp.uint32),
        )
        if topics
        else None,
        highest=full(lanes, -1),
        prompted=full((lanes, config.embed), 0, dtype),
        hidden=full((lanes, slots, config.embed), 0, dtype) if keep_hidden else None,
        drafts=Drafts(
            **{name: full(lanes, 0) for name in ("thread", "kind", "count", "fed", "kept")},
            token=full((lanes, drafts), 0),
            allowed=full(lanes, False, jnp.bool),
            tried=full((lanes, DRAFT_KINDS), 1, jnp.float32),
            right=full((lanes, DRAFT_KINDS), 0, jnp.float32),
        )
        if drafts
        else None,
        extras=no_extras(lanes, slots) if extras else None,
        prices=full(prices, 1, jnp.float32) if prices else None,
    )
