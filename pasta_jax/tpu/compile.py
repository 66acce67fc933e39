"""Compile decoding and training for a TPU topology, without a TPU, from shapes alone. See configs/compile_tpu.py."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pasta_jax.data.packing import Batch
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.interpreter import LoopSpec, run
from pasta_jax.decode.prefill import write
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import DecodeState, empty_state
from pasta_jax.device.devices import Chip, share_of_chip
from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.kernels.flash_tpu import TILE
from pasta_jax.models.sharding import rows
from pasta_jax.preference.loss import best_of_n_margin, preference_loss
from pasta_jax.preference.settings import PreferenceLoss
from pasta_jax.progress import say, track
from pasta_jax.tpu import program as tpu
from pasta_jax.tpu.report import Report
from pasta_jax.tpu.room import Largest, Room
from pasta_jax.tpu.settings import CompileSettings
from pasta_jax.train.loop import train_step, where_it_is
from pasta_jax.train.loss import KINDS, Loss, Scoring, sft_loss
from pasta_jax.train.optimizer import new_optimizer
from pasta_jax.train.pairs import PairBatch
from pasta_jax.train.settings import DrafterSettings, OptimizerSettings
from pasta_jax.train.state import Params, new_state
from pasta_jax.weights.model import Model

TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v6e:2x4", "v5p:2x2x1", "v4:2x2x1", "tpu7x:2x2x1")


TRAINING = frozenset({"sft", "preference"})


def refuse_impossible(settings: CompileSettings) -> None:
    """Refuse an unknown architecture, and lanes and shapes of training that the kernels or the mesh can't divide."""
    if unknown := [preset for preset in settings.presets if preset not in PRESETS]:
        raise PastaError(f"config.presets {unknown[0]!r}: unknown architecture; choose from {', '.join(PRESETS)}")
    if settings.lanes % settings.data:  # all devices would hold all lanes
        raise PastaError(
            f"config.lanes {settings.lanes}: must be a multiple of config.data={settings.data}, which divides them"
        )
    train = settings.train
    if TRAINING.isdisjoint(settings.programs):
        return
    if min(train.block, train.tokens) % TILE:
        raise PastaError(
            f"config.train.block {train.block}: a TPU needs a multiple of {TILE}, as config.train.tokens must be"
        )
    multiple = train.data * (2 if "preference" in settings.programs else 1)
    if train.rows % multiple:
        raise PastaError(
            f"config.train.rows {train.rows}: must be a multiple of {multiple}, for rows, or pairs of rows, on "
            f"each of config.train.data={train.data} devices"
        )


def compile_all(settings: CompileSettings, names: Sequence[str]) -> Iterator[Report]:
    """Compile for each topology and preset. A single one that doesn't fit is an error, of several it is reported."""
    refuse_impossible(settings)
    several = len(names) * len(settings.presets) > 1
    for topology in names:
        for preset in settings.presets:
            yield compile_programs(settings, topology, preset, several)


def compile_programs(settings: CompileSettings, topology: str, preset: str, keep_on: bool = False) -> Report:
    """Compile each program and report what it needs; with `keep_on`, also of those that don't fit."""
    devices = tpu.topology_devices(topology)
    mesh, chip = tpu.topology_mesh(devices, settings.data), share_of_chip(devices)
    training_mesh = tpu.topology_mesh(devices, settings.train.data, settings.train.fsdp)
    say(f"compiling {preset} for {len(devices)} x {devices[0].device_kind}; nothing runs")
    shapes = shapes_of(settings, preset, mesh)
    room = Room(shapes.config, topology, len(devices), chip)
    programs, refused = {}, {}
    for name in track(settings.programs, "compiling", len(settings.programs)):
        training = name in TRAINING
        lowered = functools.partial(LOWER[name], settings, shapes, training_mesh if training else mesh)
        try:
            programs[name] = tpu.compile_program(f"{name} of {preset}", lowered, chip, settings.used)
        except tpu.DoesNotFit as error:
            advice = "fewer rows or tokens" if training else f"fewer lanes or slots{room.suggestion(settings.slots)}"
            refused[name] = f"{error}; use more devices, or {advice}"
            if not keep_on:
                raise PastaError(refused[name]) from None
        say(f"{name}: " + (refused.get(name) or f"{programs[name]['compile_s']} s"))
    largest = {}
    if settings.search and (run_program := programs.get("run")):
        largest = room.search(settings.slots, run_program["temp"] / (settings.lanes / settings.data))
        largest = verified(settings, largest, devices, preset, chip)
    keys_values = tpu.device_bytes(shapes.state.pool.kv)
    params = tpu.device_bytes(shapes.params)
    return {
        "topology": topology,
        "device": devices[0].device_kind,
        "mesh": dict(mesh.shape),  # of decoding
        "training_mesh": dict(training_mesh.shape),
        "preset": preset,
        **{name: getattr(settings, name) for name in ("lanes", "rows", "slots", "used", "prefill")},
        "bytes": "of one device",
        "params": params,  # in bfloat16
        "state": tpu.device_bytes(shapes.state),
        "keys_values": keys_values,
        # Parameters, and the keys and values in use: what a decoding step has to read.
        "live": params + keys_values * min(settings.used, settings.slots) // settings.slots,
        "chip": chip and dataclasses.asdict(chip),  # one device's share of its published figures
        "programs": programs,
        "refused": refused,  # programs that don't fit, and why
        "largest": {slots: dataclasses.asdict(found) for slots, found in largest.items()},
    }


def verified(
    settings: CompileSettings, largest: dict[int, Largest], devices: list[jax.Device], preset: str, chip: Chip | None
) -> dict[int, Largest]:
    """The largest pool at the configured slots, compiled; with fewer lanes as long as the compiler rejects it."""
    if settings.slots not in largest:
        return largest
    found = largest[settings.slots]
    while found.lanes:
        tried = dataclasses.replace(settings, lanes=found.lanes, data=found.data)
        mesh = tpu.topology_mesh(devices, found.data)
        lowered = functools.partial(lower_run, tried, shapes_of(tried, preset, mesh), mesh)
        try:
            tpu.compile_program(f"run of {preset}", lowered, chip, settings.used)
        except tpu.DoesNotFit:
            found = dataclasses.replace(found, lanes=found.lanes - found.data)
        else:
            found = dataclasses.replace(found, compiled=True)
            break
    return largest | {settings.slots: found}


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Parameters and decode state of a model as shapes that know their devices."""

    config: TransformerConfig
    params: Params
    state: DecodeState
    spec: LoopSpec


def shapes_of(settings: CompileSettings, preset: str, mesh: Mesh) -> Shapes:
    """A preset in bfloat16 with scanned layers, as on a TPU."""
    config = PRESETS[preset]
    init = functools.partial(transformer.init, config, stacked=True)
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), jax.eval_shape(init, jax.random.key(0))
    )
    if settings.draft == "drafter":
        width, ids, embed = DrafterSettings().width, DrafterSettings().ids, config.embed
        kernels = {"inward": (width, 2 * embed), "outward": (embed, width), "table": (ids, embed)}
        drafter = {name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.bfloat16)} for name, shape in kernels.items()}
        params |= {"drafter": drafter | {"ids": jax.ShapeDtypeStruct((ids,), jnp.int32)}}
    params = tpu.placed(params, mesh)
    # What a compiled loop needs of a tokenizer.
    vocabulary = SimpleNamespace(
        tags=TagIds(config.vocab - NUM_TAGS), stop_ids=(1,), vocab_size=config.vocab, encode=str.encode
    )
    decoding = DecodeConfig(settings.lanes, settings.rows, settings.slots, draft=settings.draft)
    spec = loop_spec(Model(preset, config, params, vocabulary), decoding, settings.slots, False)
    sizes = settings.lanes, settings.slots, jnp.bfloat16
    state = jax.eval_shape(functools.partial(empty_state, config, *sizes, stacked=True, drafts=spec.drafts))
    if spec.drafts:
        state = dataclasses.replace(state, prices=jax.ShapeDtypeStruct((len(spec.priced_rows),), jnp.float32))
    return Shapes(config, params, tpu.placed(state, mesh), spec)


def lower_run(settings: CompileSettings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """The interpreter's loop."""
    return run.lower(
        shapes.params, shapes.state, scalar("int32"), scalar("bool"), config=shapes.config, spec=shapes.spec
    )


def lower_prefill(settings: CompileSettings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """One chunk of a prompt, written to the pool."""
    columns = (scalar("int32", settings.prefill) for _ in range(4))  # tokens, their threads, what they see, positions
    arrays = scalar("int32"), *columns, scalar("int32")
    return write.lower(shapes.params, shapes.state, *arrays, config=shapes.config, spec=shapes.spec)


def lower_sft(settings: CompileSettings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """A step of supervised training, on rows of packed records."""
    scoring = scoring_for(settings, shapes)
    return lower_step(
        shapes, sft_loss(scoring, (1.0,) * len(KINDS)), batch_of(settings.train.rows, settings, mesh), mesh
    )


def lower_preference(settings: CompileSettings, shapes: Shapes, mesh: Mesh) -> jax.stages.Lowered:
    """A step of preference optimisation, on half as many pairs as rows."""
    scoring, pairs = scoring_for(settings, shapes), settings.train.rows // 2
    answers, number = batch_of(pairs, settings, mesh), jax.ShapeDtypeStruct((pairs,), jnp.float32, sharding=rows(mesh))
    loss = preference_loss(scoring, PreferenceLoss("bonbon", alpha=0.005, margin=best_of_n_margin(10), beta=0.1))
    return lower_step(shapes, loss, PairBatch(answers, answers, number, number, number), mesh)


def scoring_for(settings: CompileSettings, shapes: Shapes) -> Scoring:
    """Blocked attention, and each layer recomputed in the backward pass."""
    train = settings.train
    return Scoring(
        shapes.config, shapes.spec.tags, jnp.bfloat16, train.slice, train.block, remat=True, products=jnp.bfloat16
    )


def batch_of(count: int, settings: CompileSettings, mesh: Mesh) -> Batch:
    """That many rows of tokens."""
    vector = jax.ShapeDtypeStruct((count, settings.train.tokens), jnp.int32, sharding=rows(mesh))
    return Batch(**{field.name: vector for field in dataclasses.fields(Batch)})


def lower_step(shapes: Shapes, loss: Loss, batch: Batch | PairBatch, mesh: Mesh) -> jax.stages.Lowered:
    """A step of the training loop with AdamW over all parameters, which are float32 as in every training run."""
    optimizer = new_optimizer(OptimizerSettings(), steps=1)
    step = functools.partial(train_step, loss=loss, optimizer=optimizer, accumulate=1)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), shapes.params)
    state = tpu.placed(jax.eval_shape(lambda params: new_state(params, optimizer, 0), params), mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=where_it_is(state)).lower(state, None, batch)


def scalar(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    """A small host value, which every device gets whole."""
    return jax.ShapeDtypeStruct(shape, dtype)


LOWER = {"run": lower_run, "prefill": lower_prefill, "sft": lower_sft, "preference": lower_preference}
