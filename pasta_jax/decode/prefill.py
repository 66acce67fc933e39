"""Admission: give a lane to a request, write or copy its prompt and sample the first token; or take the lane back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.drafts import begin as begin_drafts
from pasta_jax.decode.drafts import without_next
from pasta_jax.decode.extras import fields_of, keep_scores
from pasta_jax.decode.grammar import tags_of
from pasta_jax.decode.next_token import next_of_one
from pasta_jax.decode.prefix_cache import Admission
from pasta_jax.decode.request import Request
from pasta_jax.decode.rows import see_pool
from pasta_jax.decode.seat import Seat, begin_guests
from pasta_jax.decode.state import DONE, LIVE, RUNNING, STOP, DecodeState, LoopSpec, RequestFields, arrays
from pasta_jax.lang.structure import Place
from pasta_jax.models.adapters import choose
from pasta_jax.models.attention import Cache
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.pool import put
from pasta_jax.models.sharding import picked_slice
from pasta_jax.models.transformer import logits, trunk, uses_kernels
from pasta_jax.weights.model import Model

PREFILL_CHUNKS = (16, 32, 64, 128, 256, 512)  # lengths of what is computed of a prompt at once; each is a program


def prefill_chunks(length: int, longest: int) -> list[tuple[int, int, int]]:
    """(start, tokens, padded length) of each chunk of a prompt: full ones, then the shortest that holds the rest.

    A full chunk always has the same shape, whatever follows it: see prefix_cache.py.
    """
    starts = range(0, length, longest)
    counts = [min(longest, length - start) for start in starts]
    padded = [next(chunk for chunk in PREFILL_CHUNKS if chunk >= count) for count in counts]
    return list(zip(starts, counts, padded, strict=True))


@dataclasses.dataclass(frozen=True)
class Prefill:
    """A request on its way into a lane: admitted, then its prompt is computed chunk by chunk after what was copied."""

    model: Model
    admission: Admission
    request: Request
    spec: LoopSpec
    first: int = -1  # the first token, in a replay; -1: sampled

    @functools.cached_property
    def chunks(self) -> list[tuple[np.ndarray, ...]]:
        """Arguments of `write`: what isn't copied of the prompt, then the guests' own tokens."""
        ids, seats = np.asarray(self.request.prompt_ids[self.admission.copied :], np.int32), Seat.of(self.request)
        position = self.admission.copied + np.arange(len(ids), dtype=np.int32)
        after = np.full(len(seats.token), len(self.request.prompt_ids), np.int32)
        parts = (
            (ids, np.zeros_like(ids), position + 1, position),
            (seats.token, seats.guest, after, seats.position),
        )
        return [
            (*(np.pad(column[start : start + count], (0, padded - count)) for column in columns), np.int32(count))
            for columns in parts
            for start, count, padded in prefill_chunks(len(columns[0]), self.spec.prefill_chunk)
        ]

    @property
    def steps(self) -> int:
        """Calls of `step`, in their order, until the lane is live; a prompt that is copied whole needs one too."""
        return max(len(self.chunks), 1)

    def computes(self, number: int) -> int:
        """Tokens that this step computes, padding included."""
        return len(self.chunks[number][0]) if self.chunks else 0

    def step(self, state: DecodeState, number: int) -> DecodeState:
        """Compute a chunk; the first step empties the lane and copies, in the last one the answer begins."""
        params, lane = self.model.params, np.int32(self.admission.lane)
        static = {"config": self.model.config, "spec": self.spec}
        if number == 0:
            state = self._admit(state)
        if self.chunks:
            state = write(params, state, lane, *self.chunks[number], **static)
        if number + 1 < self.steps:
            return state
        if self.request.guests:
            first = Seat.of(self.request).first(state.threads.status.shape[1])
            return begin_guests(state, lane, np.int32(len(self.request.prompt_ids)), first)
        return begin(params, state, lane, np.int32(self.first), **static)

    def _admit(self, state: DecodeState) -> DecodeState:
        lane, source, copied = (np.int32(value) for value in dataclasses.astuple(self.admission))
        # Each guest has positions of its own, so that all together may take more slots than the context has.
        context = state.pool.slots if self.request.guests else self.model.config.context
        fields = RequestFields(
            limit=np.int32(min(self.request.longest, state.pool.slots, context)),
            tags_allowed=np.int32(tags_of(self.request)),
            rules=arrays(self.request.rules),
            adapter=np.int32(self.request.adapter),
        )
        optional = {
            "extras": fields_of(self.request.bias, self.request.scored),
            "guests": {"count": np.int32(len(self.request.guests)), "budget": np.int32(self.request.max_tokens)},
        }
        optional = {part: values for part, values in optional.items() if getattr(state, part) is not None}
        state = admit(state, lane, fields, optional, np.bool_(self.request.drafts))
        return copy_slots(state, lane, source, copied, size=self.spec.prefill_chunk) if copied else state


def start(
    model: Model, state: DecodeState, lane: int, request: Request, spec: LoopSpec, first: int = -1
) -> DecodeState:
    """Put a request into a lane."""
    whole = Prefill(model, Admission(lane), request, spec, first)
    for number in range(whole.steps):
        state = whole.step(state, number)
    return state


@functools.partial(jax.jit, donate_argnames="state")
def admit(
    state: DecodeState,
    lane: jax.Array,
    request: RequestFields,
    optional: dict[str, dict[str, jax.Array]],
    drafts: jax.Array,
) -> DecodeState:
    """Empty the lane and store the request's parameters, which are scalars here: of `optional` parts of the state, too.

    `drafts`: whether the request may have any, where the state has them.
    """
    parts = {part: put(getattr(state, part), (lane,), **values) for part, values in optional.items()}
    if state.drafts is not None:
        parts["drafts"] = begin_drafts(state.drafts, lane, drafts)
    return dataclasses.replace(
        put(state, (lane,), live=False, finish=RUNNING, step=0, spawned=0, topic=-1, highest=-1),
        pool=put(state.pool, (lane,), fill=0),
        threads=jax.tree.map(lambda field_BxM: field_BxM.at[lane].set(0), state.threads),
        topics=jax.tree.map(lambda field: field.at[lane].set(jnp.zeros((), field.dtype)), state.topics),
        request=jax.tree.map(lambda field_B, value: field_B.at[lane].set(value), state.request, request),
        **parts,
    )


@functools.partial(jax.jit, donate_argnames="state")
def release(state: DecodeState, lane: jax.Array) -> DecodeState:
    """End the lane's request where it is."""
    return put(dataclasses.replace(state, drafts=without_next(state.drafts)), (lane,), live=False)


@functools.partial(jax.jit, static_argnames=("config", "spec"), donate_argnames="state")
def write(
    params: Params,
    state: DecodeState,
    lane: jax.Array,
    tokens_P: jax.Array,
    thread_P: jax.Array,
    main_P: jax.Array,
    position_P: jax.Array,
    count: jax.Array,
    config: TransformerConfig,
    spec: LoopSpec,
) -> DecodeState:
    """Compute the first `count` of these tokens and write them to the lane's next slots: its prompt's, or its guests'.

    Each sees, of main's tokens, the first `main_P`, and of its thread's those before it. Profiles show the phases write
    and model.
    """
    length, fill = tokens_P.shape[0], state.pool.fill[lane]
    index_P = jnp.arange(length)
    slot_P = jnp.where(index_P < count, fill + index_P, state.pool.slots)

    with jax.named_scope("write"):
        pool = put(state.pool, (lane,), fill=fill + count)
        integers = {"position": position_P, "token": tokens_P, "step": 0}
        pool = put(pool, (lane, slot_P), chunk=thread_P, epoch=0, main=main_P, **integers)
    with jax.named_scope("model"):
        one = jax.tree.map(lambda field: field[lane][None], dataclasses.replace(pool, kv=()))
        place = Place(thread_P[None], jnp.zeros_like(thread_P)[None], main_P[None])
        # Tokens of one guest see each other whatever their order; here several are written at once.
        earlier_PxS = jnp.arange(pool.slots)[None, :] <= slot_P[:, None]
        see_1xPxS = see_pool(one, place) & earlier_PxS[None]
        cache = Cache(pool.kv, slot_P[None], lanes=lane[None], prefixes=spec.prefixes, fill=fill + length)
        own = choose(params, jnp.broadcast_to(state.request.adapter[lane], length))
        x_1xPxE, kv = trunk(own, config, tokens_P[None], position_P[None], see_1xPxS, one.position, cache)

        hidden = state.hidden
        if hidden is not None:
            hidden = hidden.at[lane, slot_P].set(x_1xPxE[0], mode="drop", unique_indices=True)
        x_E = jax.lax.dynamic_index_in_dim(x_1xPxE[0], count - 1, keepdims=False)
        prompted_E = jnp.where(thread_P[count - 1] == 0, x_E, state.prompted[lane])  # the end of the prompt itself
    state = put(dataclasses.replace(state, hidden=hidden), (lane,), prompted=prompted_E)
    return dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv))


@functools.partial(jax.jit, static_argnames="size", donate_argnames="state")
def copy_slots(state: DecodeState, lane: jax.Array, source: jax.Array, count: jax.Array, size: int) -> DecodeState:
    """Copy the first `count` slots of lane `source` as a prompt's, and what was computed at the end of its prompt."""
    slots = state.pool.slots
    size_of_copy = min(size, slots)

    def moved(field: jax.Array, first: jax.Array, lanes: int, slots: int) -> jax.Array:
        """Copy `size` slots; `lanes` and `slots` are the axes of the field that count them."""
        start, size = [0] * field.ndim, list(field.shape)
        start[lanes], start[slots], size[lanes], size[slots] = source, first, 1, size_of_copy
        copied = picked_slice(field, start, size)
        start[lanes] = lane
        return jax.lax.dynamic_update_slice(field, copied, start)

    def copy(number: jax.Array, state: DecodeState) -> DecodeState:
        first = jnp.minimum(number * size_of_copy, slots - size_of_copy)
        pool = state.pool
        integers = ("chunk", "epoch", "main", "position", "token")
        per_slot = {name: moved(getattr(pool, name), first, 0, 1) for name in integers}
        kv = jax.tree.map(lambda field: moved(field, first, field.ndim - 4, field.ndim - 2), pool.kv)
        hidden = state.hidden if state.hidden is None else moved(state.hidden, first, 0, 1)
        return dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv, **per_slot), hidden=hidden)

    copies = jnp.where(lane == source, 0, -(-count // size_of_copy))
    state = jax.lax.fori_loop(0, copies, copy, state)
    # An answer's tokens are a prompt's now, which count as fed in no step.
    state = dataclasses.replace(state, pool=put(state.pool, (lane,), fill=count, step=0))
    return put(state, (lane,), prompted=state.prompted[source])


@functools.partial(jax.jit, static_argnames=("config", "spec"), donate_argnames="state")
@jax.named_scope("sample")
def begin(
    params: Params, state: DecodeState, lane: jax.Array, first: jax.Array, config: TransformerConfig, spec: LoopSpec
) -> DecodeState:
    """Sample main's first token after the prompt that the lane holds; `first` is that token instead, or -1."""
    own, done = choose(params, state.request.adapter[lane][None]), state.pool.fill[lane]
    logits_1xV = logits(own, config, state.prompted[lane][None, None])[:, 0]
    sampled, scores = next_of_one(state, spec, logits_1xV, lane, done - 1, uses_kernels(params))
    if scores is not None:
        state = dataclasses.replace(state, extras=keep_scores(state.extras, (lane, done - 1), scores))
    sampled = jnp.where(first >= 0, first, sampled)

    stops = functools.reduce(jnp.logical_or, [sampled == stop for stop in spec.stop_ids])
    place = {"token": sampled, "position": done, "main": done}
    threads = put(state.threads, (lane, 0), status=jnp.where(stops, DONE, LIVE), count=1, **place)
    state = put(state, (lane,), live=~stops, finish=jnp.where(stops, STOP, RUNNING), highest=done - 1)
    return dataclasses.replace(state, threads=threads, drafts=without_next(state.drafts))
