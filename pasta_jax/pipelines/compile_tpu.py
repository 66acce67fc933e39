"""Compile decoding and training for a TPU topology, without a TPU, from shapes alone. See configs/compile_tpu.py."""

import dataclasses
import functools
import json
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from msgspec import Meta

from pasta_jax.benchmark import tpu
from pasta_jax.data.batch import Batch
from pasta_jax.decode.generate import DecodeConfig, rules_for
from pasta_jax.decode.interpreter import Rules, run
from pasta_jax.decode.prefill import prefill
from pasta_jax.decode.state import DecodeState, empty_state
from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.flash_tpu import TILE
from pasta_jax.models.weights import Model
from pasta_jax.progress import say, track
from pasta_jax.ranges import Lanes, Length, Positive, Rows, Slots, Threads
from pasta_jax.sharding import make_mesh, rows
from pasta_jax.train.loop import train_step
from pasta_jax.train.loss import KINDS, Scoring, sft_loss
from pasta_jax.train.optimizer import OptimizerConfig, new_optimizer
from pasta_jax.train.state import Params, new_state


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The shape of a training step."""

    rows: Rows
    tokens: Length
    block: Slots
    slice: Slots


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/compile_tpu.py."""

    preset: str
    data: Positive
    lanes: Lanes
    rows: Threads
    slots: Slots
    prefill: Literal[16, 32, 64, 128, 256, 512]  # decode/prefill.py::PIECES
    train: TrainSettings
    programs: Annotated[tuple[Literal["run", "prefill", "train"], ...], Meta(min_length=1, max_length=3)]


@dataclasses.dataclass(frozen=True)
class Report:
    """The topology, the model's size on one device, and what each program needs."""

    topology: str
    device: str
    mesh: dict[str, int]
    preset: str
    lanes: int
    rows: int
    slots: int
    prefill: int
    bytes: Literal["of one device"]
    params: int
    state: int
    keys_values: int
    programs: dict[str, tpu.Program]

    def json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))


def compile_programs(settings: Settings, topology: str) -> Report:
    """Compile each program and report what it needs."""
    if settings.preset not in PRESETS:
        raise PastaError(f"config.preset {settings.preset!r}: unknown architecture; choose one of {', '.join(PRESETS)}")
    devices = tpu.topology_devices(topology)
    try:
        mesh = make_mesh(settings.data, len(devices) // settings.data, devices)
    except AssertionError as error:  # JAX makes no mesh of chips that show two cores each, as v4 does here
        raise PastaError(f"--topology={topology}: {str(error).split(' (')[0]}; use another kind") from None
    say(f"compiling for {len(devices)} x {devices[0].device_kind}; nothing runs")
    shapes = shapes_of(settings, mesh)
    lower = {"run": lower_run, "prefill": lower_prefill, "train": lower_train}
    programs = {}
    for name in track(settings.programs, "compiling", len(settings.programs)):
        lowered = functools.partial(lower[name], settings, shapes, mesh)
        programs[name] = tpu.compile_program(f"{name} of {settings.preset}", lowered)
        say(f"{name}: {programs[name].compile_s} s")
    return Report(
        topology=topology,
        device=devices[0].device_kind,
        mesh=dict(mesh.shape),
        preset=settings.preset,
        lanes=settings.lanes,
        rows=settings.rows,
        slots=settings.slots,
        prefill=settings.prefill,
        bytes="of one device",
        params=tpu.device_bytes(shapes.params),
        state=tpu.device_bytes(shapes.state),
        keys_values=tpu.device_bytes(shapes.state.pool.kv),
        programs=programs,
    )


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The ids that a compiled loop needs of a tokenizer."""

    tags: TagIds
    stop_ids: tuple[int, ...]
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Parameters and decode state of a model as shapes that know their devices."""

    config: TransformerConfig
    params: Params
    state: DecodeState
    rules: Rules


def shapes_of(settings: Settings, mesh: Mesh) -> Shapes:
    """A preset in bfloat16 with scanned layers, as on a TPU."""
    config = PRESETS[settings.preset]
    init = functools.partial(transformer.init, config, stacked=True)
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), jax.eval_shape(init, jax.random.key(0))
    )
    state = functools.partial(empty_state, config, settings.lanes, settings.slots, jnp.bfloat16, stacked=True)
    params = tpu.placed(params, mesh)
    vocabulary = Vocabulary(TagIds(config.vocab - NUM_TAGS), (1,), config.vocab)
    decoding = DecodeConfig(settings.lanes, settings.rows, settings.slots)
    rules = rules_for(Model(settings.preset, config, params, vocabulary), decoding, settings.slots, False)
    return Shapes(config, params, tpu.placed(jax.eval_shape(state), mesh), rules)


def lower_run(settings: Settings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """The interpreter's loop."""
    return run.lower(
        shapes.params, shapes.state, scalar("int32"), scalar("bool"), config=shapes.config, rules=shapes.rules
    )


def lower_prefill(settings: Settings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """One piece of a prompt, written to the pool."""
    sizes = ((), (settings.prefill,), (), (), ())
    lane, tokens, start, count, first = (scalar("int32", *size) for size in sizes)
    return prefill.lower(
        shapes.params, shapes.state, lane, tokens, start, count, first, config=shapes.config, rules=shapes.rules
    )


def lower_train(settings: Settings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """A step of the training loop over all parameters, with blocked attention."""
    train = settings.train
    if min(train.block, train.tokens) % TILE:
        raise PastaError(
            f"config.train.block {train.block}: a TPU needs a multiple of {TILE}, as config.train.tokens must be"
        )
    if train.rows % settings.data:
        raise PastaError(f"config.train.rows {train.rows}: must be a multiple of config.data ({settings.data})")
    scoring = Scoring(shapes.config, shapes.rules.tags, jnp.bfloat16, train.slice, train.block, remat=True)
    optimizer = new_optimizer(
        OptimizerConfig(steps=1, learning_rate=1e-5, warmup=0, weight_decay=0.0, clip=1.0, b1=0.9, b2=0.999, eps=1e-8)
    )
    loss = sft_loss(scoring, (1.0,) * len(KINDS))
    step = functools.partial(train_step, loss=loss, optimizer=optimizer, accumulate=1)
    state = jax.eval_shape(lambda params: new_state(params, optimizer, 0), shapes.params)
    vector = jax.ShapeDtypeStruct((train.rows, train.tokens), jnp.int32, sharding=rows(mesh))
    batch = Batch(**{field.name: vector for field in dataclasses.fields(Batch)})
    return jax.jit(step, donate_argnums=0).lower(tpu.placed(state, mesh), None, batch)


def scalar(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    """A small host value, which every device gets whole."""
    return jax.ShapeDtypeStruct(shape, dtype)
