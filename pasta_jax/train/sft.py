"""Supervised training, from settings to a written model: Pasta-SFT on annotated answers, or its untagged baseline."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax
from jax.sharding import Mesh

from pasta_jax.decode.probe import probe
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.device import devices
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import typed
from pasta_jax.files.workdir import claim
from pasta_jax.models import transformer
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.sharding import devices_of, sharing_rows, training_mesh
from pasta_jax.progress import doing, say
from pasta_jax.runs import settings as run_config
from pasta_jax.runs.checkpoint import git_revision, provenance
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train.fit import fit
from pasta_jax.train.legal import Grammar
from pasta_jax.train.loop import Run
from pasta_jax.train.loss import KINDS, sft_loss
from pasta_jax.train.optimizer import new_optimizer, schedule
from pasta_jax.train.settings import FreshSettings, SftSettings, parts_of, refuse_unclear_end, refuse_uneven_parts
from pasta_jax.train.sft_data import read_data
from pasta_jax.train.speed import flops_per_token, peak_flops, peak_gb
from pasta_jax.train.state import Params, new_state
from pasta_jax.train.trainable import (
    Trainable,
    divide,
    load,
    merged,
    place,
    scoring,
    with_rows_apart,
    write,
)
from pasta_jax.weights import card
from pasta_jax.weights.card import Training
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import trained_on

TRAINING_COPIES = 4  # of the parameters: themselves, gradients, two moments


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run did."""

    step: int  # optimizer steps done
    steps: int  # of the whole run
    metrics: dict[str, float]  # the latest value of each
    model: Path | None  # folder of the trained model, or of its adapter if that is all; None: stopped before the end


def run(
    settings: SftSettings, workdir: Path, stopping: Callable[[], bool] = lambda: False, command: str = ""
) -> Result:
    """Train to the last step or until `stopping()`, from the newest checkpoint in `workdir` if it has one.

    The folder holds config.json, metrics.jsonl, checkpoints/ and, at the end, model/ (and adapter/), with cards that
    quote `command`. A folder that another process trains in is refused.
    """
    with claim(workdir) if jax.process_index() == 0 else contextlib.nullcontext():  # hosts of one run share it
        return _run(settings, workdir, stopping, command)


def _run(settings: SftSettings, workdir: Path, stopping: Callable[[], bool], command: str) -> Result:
    plain = run_config.plain(settings)
    run_config.refuse_other(workdir, plain, run_config.plain(SftSettings()))
    mesh = training_mesh(settings.mesh)
    start = start_of(settings, mesh)
    model = start.model
    with doing("reading the data"):
        data = read_data(settings, model.tokenizer)
    steps = settings.train.steps or data.feed.steps(settings.train.seed, settings.train.epochs)
    optimizer = new_optimizer(settings.train, steps)
    # The state takes over the memory of start.params.
    state = place(new_state(place(start.params, mesh), optimizer, settings.train.seed), mesh)
    frozen = place(start.frozen, mesh)
    training = Run(
        steps=steps,
        accumulate=parts_of(settings.train, settings.data.rows, sharing_rows(mesh)),
        batch=data.feed.batch,
        held_out=data.held_out,
        loss=sft_loss(
            scoring(settings.train, model),
            tuple(getattr(settings.weights, kind) for kind in KINDS),
            settings.weights.bracket,
            Grammar(model.tokenizer.tags, model.tokenizer.stop_ids) if settings.weights.legal else None,
            settings.weights.legal,
        ),
        optimizer=optimizer,
        learning_rate=schedule(settings.train, steps),
        flops_per_token=flops_per_token(
            model.params, model.config, settings.data.lengths[-1], adapter=start.frozen is not None
        ),
        peak_flops=peak_flops(devices_of(mesh)),
        probe=probe_of(settings, model, data.prompts),
        every=settings.every,
    )
    if jax.process_index() == 0:
        run_config.write(workdir, plain)
    positions, beside = model.positions and dataclasses.asdict(model.positions), model.fingerprint if frozen else ""
    made_from = provenance(plain, data.fingerprint, positions, beside)
    result = fit(workdir, training, state, frozen, made_from, settings.keep, settings.tensorboard, stopping)
    say(f"peak memory {peak_gb():.2f} GB")
    folder = None
    if result.complete:
        origins = (*trained_on(settings.model), *data.origins)
        about = Training(command, settings.train.seed, origins, card.plain(settings), git_revision())
        folder = write(model, result.state.trainable, settings.adapter, workdir, about, result.metrics)
    return Result(result.step, result.steps, result.metrics, folder)


def start_of(settings: SftSettings, mesh: Mesh | None) -> Trainable:
    """The model to start from, with the positions that it is trained with: none without tags."""
    seed = settings.train.seed
    refuse_unclear_end("config.train", settings.train.steps, settings.train.epochs)
    refuse_uneven_parts(settings.train, settings.data.rows, sharing_rows(mesh))
    if settings.tag_rows == "apart" and not settings.adapter.rank:
        raise PastaError(
            "config.tag_rows=apart: only an adapter has tag rows of its own; set --config.adapter.rank, "
            "or --config.tag_rows=words"
        )
    if settings.fresh.layers:
        if settings.model.preset or settings.model.path or settings.model.adapter:
            raise PastaError(
                "config.fresh.layers: starts from random weights, not from config.model; set it to 0 to train that one"
            )
        start = divide(fresh_model(settings.fresh, seed), settings.adapter, seed)
    else:
        start = load(settings.model, settings.adapter, seed, mesh)
        if settings.tag_rows == "apart" and start.frozen is not None and start.model.positions is None:
            start = dataclasses.replace(start, params=with_rows_apart(start, seed))
    recorded = start.model.positions
    if settings.strip_tags:
        positions = None
    elif recorded is None or recorded.matches(settings.positions):
        positions = settings.positions
    else:
        source = settings.model.adapter or settings.model.path or start.model.name
        raise PastaError(
            f"{source}: trained with positions {recorded}, config.positions is {settings.positions}; "
            f"set --config.positions.policy={recorded.policy}"
            + (f" --config.positions.constant={recorded.constant}" if recorded.policy == "constant" else "")
        )
    model = dataclasses.replace(start.model, positions=positions, defaults=settings.defaults)
    return dataclasses.replace(start, model=model)


def fresh_model(settings: FreshSettings, seed: int) -> Model:
    """A model with random weights, for the toy task's tokenizer."""
    tokenizer = toy_tokenizer()
    fields = dataclasses.asdict(settings)
    widen = fields.pop("widen")
    fields |= {"vocab": tokenizer.model_vocab, "rope": {"base": 10_000.0}, "norm_eps": 1e-5}
    fields |= {"activation": "silu", "tied_head": True}
    config = typed(fields, TransformerConfig, "config.fresh", "change it")
    stacked = jax.default_backend() != "cpu"
    shapes = jax.eval_shape(functools.partial(transformer.init, config, stacked=stacked), jax.random.key(0))
    devices.require(shapes, "config.fresh: training this model", "make it smaller", copies=TRAINING_COPIES)
    params = transformer.init(config, jax.random.key(seed), stacked)
    # Norms, whose leaves are named `weight`, keep their ones.
    params = jax.tree_util.tree_map_with_path(lambda path, x: x if path[-1].key == "weight" else x * widen, params)
    return Model("fresh", config, params, tokenizer)


def probe_of(
    settings: SftSettings, model: Model, prompts: tuple[tuple[int, ...], ...]
) -> Callable[[Params, Params | None], dict[str, float]] | None:
    """Metrics of greedy answers to held-out prompts; None for a model that doesn't decode with tags."""
    if settings.strip_tags or not prompts or settings.positions.policy == "oracle" or not settings.every.probe:
        return None
    if model.is_narrow:
        raise PastaError("config.every.probe: can't decode beside a base in bfloat16; set it to 0")
    decoding = DecodeConfig(lanes=len(prompts), rows=settings.probe.rows, slots=0)

    def metrics(params: Params, frozen: Params | None) -> dict[str, float]:
        return probe(merged(model, params, frozen), prompts, decoding, settings.probe.max_tokens)

    return metrics
