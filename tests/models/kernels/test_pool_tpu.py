"""The TPU kernel of decoding: interpreted, it equals dense attention and decodes the same tokens; what it reads."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pasta_jax.decode import generate as generate_module
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.decode.rows import Rows, end_of, see_pool, spec_pool
from pasta_jax.models.attention import attention
from pasta_jax.models.config import PRESETS
from pasta_jax.models.kernels import pool_tpu
from pasta_jax.models.mask import EVERYTHING
from pasta_jax.models.pool import Pool
from tests.models.test_sharding import MIXED, NARROW, REQUESTS, SETTINGS, UNEVEN, model_on

LANES, LAYERS, SLOTS, CHUNKS = 4, 2, 384, 9
FILLS = [(0, 1, 128, 384), (5, 0, 129, 300), (384, 384, 384, 384), (17, 64, 127, 257)]  # of each lane
WINDOWS = (EVERYTHING, 100, 1)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a program is compiled for."""

    rows: int
    heads: int
    groups: int
    size: int
    cap: float | None = None
    sinks: bool = False


def with_drafts(rng: np.random.Generator, fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same step, of which each lane's last rows are drafts."""
    drafts = rng.integers(0, fields["active"].sum(axis=1) + 1)
    first = fields["active"].sum(axis=1) - drafts
    ahead = np.arange(fields["active"].shape[1]) - first[:, None] + 1
    return fields | {"ahead": np.where(fields["active"] & (ahead > 0), ahead, 0).astype(np.int32)}


def random_step(rng: np.random.Generator, rows: int, fills: Sequence[int]) -> tuple[Pool, dict[str, np.ndarray]]:
    """A pool of random integers, and the fields of `Rows`, whose tokens are in the last slots of their lanes."""
    fill = np.asarray(fills, np.int32)
    shape = LANES, SLOTS
    integers = {
        "chunk": rng.integers(0, CHUNKS, shape) * rng.integers(0, 2, shape),
        "epoch": rng.integers(0, 4, shape),
        "main": rng.integers(1, SLOTS, shape),
        "position": np.arange(SLOTS) + rng.integers(0, 30, shape),
        "token": np.zeros(shape),
        "step": np.zeros(shape),
    }
    active = np.arange(rows) < np.minimum(rng.integers(0, rows + 1, (LANES, 1)), fill[:, None])
    slot = np.where(active, fill[:, None] - 1 - np.arange(rows), SLOTS)
    mine = {name: np.take_along_axis(field, np.minimum(slot, SLOTS - 1), 1) for name, field in integers.items()}
    pool = Pool(kv=(), fill=fill, **{name: field.astype(np.int32) for name, field in integers.items()})
    fields = {"thread": np.where(active, mine.pop("chunk"), CHUNKS), "slot": slot, **mine}
    del fields["step"]
    return pool, {"active": active} | {name: field.astype(np.int32) for name, field in fields.items()}


@functools.cache
def programs(shape: Shape):
    """Dense attention, and the kernel, as functions of any step."""
    config = dataclasses.replace(
        PRESETS["toy"],
        heads=shape.heads * shape.groups,
        kv_heads=shape.heads,
        head_dim=shape.size,
        attention_cap=shape.cap,
    )
    sinks = jnp.linspace(-1.0, 4.0, shape.heads * shape.groups).reshape(shape.heads, -1) if shape.sinks else None

    def dense(q, k, v, pool, fields, window):
        rows = Rows(**fields)
        near = rows.position[:, :, None] - pool.position[:, None, :] < window
        see = see_pool(pool, rows.place, end_of(pool, rows)) & rows.active[:, :, None] & near
        return attention(config, q, k[1], v[1], see, sinks), jnp.any(see, axis=2)

    def kernel(q, k, v, pool, fields, window):
        spec, nowhere = spec_pool(pool, Rows(**fields)).within(window), jnp.full_like(fields["slot"], SLOTS)
        return pool_tpu.write_and_attend(config, q, q[:, :, :, 0], q[:, :, :, 0], (k, v), 1, nowhere, spec, sinks)[0]

    return jax.jit(dense), jax.jit(kernel)


def difference(
    seed: int, shape: Shape, fills: Sequence[int], window: int, added_BxS=None, drafts: bool = False
) -> float:
    """The greatest difference of the two; of rows that see nothing, from zero. `added` changes the kernel's pool."""
    rng = np.random.default_rng(seed)
    pool, fields = random_step(rng, shape.rows, fills)
    fields = with_drafts(rng, fields) if drafts else fields
    q = rng.standard_normal((LANES, shape.rows, shape.heads, shape.groups, shape.size), np.float32) * 3
    k, v = rng.standard_normal((2, LAYERS, LANES, shape.heads, SLOTS, shape.size), np.float32)
    dense, kernel = programs(shape)
    expected, sees_any = dense(q, k, v, pool, fields, np.int32(window))
    expected = np.where(np.asarray(sees_any)[:, :, None, None, None], expected, 0.0)
    if added_BxS is not None:
        k, v = (pool + added_BxS[:, None, :, None] for pool in (k, v))
    return float(np.max(np.abs(kernel(q, k, v, pool, fields, np.int32(window)) - expected)))


@pytest.fixture
def interpreted(monkeypatch, own_programs):
    """Run the kernel interpreted, with blocks of one tile; its uses."""
    used, real = [], pl.pallas_call

    def pallas_call(kernel, name, **rest):
        used.append(name)
        return real(kernel, name=name, interpret=True, **rest)

    monkeypatch.setattr(pool_tpu.pl, "pallas_call", pallas_call)
    monkeypatch.setattr(pool_tpu, "LONGEST", pool_tpu.TILE)
    return used


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(1, 2, 1, 256), marks=pytest.mark.slow),
        Shape(16, 1, 2, 64, 20.0),
        pytest.param(Shape(4, 2, 2, 64, sinks=True), marks=pytest.mark.slow),
        pytest.param(Shape(8, 2, 4, 128), marks=pytest.mark.slow),
        pytest.param(Shape(3, 1, 16, 64), marks=pytest.mark.slow),
    ],
)
def test_the_kernel_equals_dense_attention(interpreted, shape):
    for seed, fills in enumerate(FILLS):
        for window in WINDOWS:
            assert difference(seed, shape, fills, window) < 1e-5
            assert difference(seed, shape, fills, window, drafts=True) < 1e-5


def test_no_other_slot_is_read(interpreted):
    """A block of 128 slots is read if a row sees one of them, or if it is between such blocks; the rest may be NaN."""
    shape, fills = Shape(1, 2, 1, 256), (0, 1, 128, 300)
    for window, first in ((EVERYTHING, 0), (60, 128)):
        stop = -(-np.asarray(fills) // pool_tpu.TILE) * pool_tpu.TILE
        slots = np.arange(SLOTS)
        unread = (slots >= np.maximum(stop, pool_tpu.TILE)[:, None]) | ((slots < first) & (stop > 2 * 128)[:, None])
        assert difference(5, shape, fills, window, np.where(unread, np.nan, 0).astype(np.float32)) < 1e-5
        assert not difference(5, shape, fills, window, np.where(unread, 0, np.nan).astype(np.float32)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [NARROW, pytest.param(MIXED, marks=pytest.mark.extended), UNEVEN],  # sinks: the kernel alone has them above
    ids=["narrow", "mixed", "uneven"],
)
def test_decoded_tokens_are_equal_with_the_kernel(config, interpreted, few_programs, monkeypatch):
    """On a mesh, with local and global layers, and more requests than lanes."""
    settings = dataclasses.replace(SETTINGS, slots=256)
    expected = generate(model_on(config, "stacked", None), REQUESTS, settings)
    monkeypatch.setattr(generate_module, "_platform", lambda params: "tpu")
    assert not loop_spec(model_on(config, "stacked", None), settings, 200, sequential=False).kernel
    ours = generate(model_on(config, "stacked", (2, 2)), REQUESTS, settings)
    assert [one.trace.token.tolist() for one in ours] == [one.trace.token.tolist() for one in expected]
    assert interpreted
