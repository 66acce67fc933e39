"""What teaching is going to take, before anything starts: stages, tokens, memory, hours on this machine.

Two measurements of a second, of products and of memory, stand for the machine. What answers and records will be is
guessed from those of a 1.5B model: half of the most tokens an answer may have, half of the answers kept.
"""

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.benchmark.steps import least_seconds
from pasta_jax.data.prompt_sets import in_parts
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.bfloat16 import multiplies_bfloat16, row_product
from pasta_jax.models.parameters import packed_shapes
from pasta_jax.progress import doing
from pasta_jax.teaching.prompts import choose, room
from pasta_jax.teaching.settings import TeachSettings
from pasta_jax.teaching.stages import HELD_OUT, PROMPTS, Stage, config_of, refuse_untrainable, stages

GIB = 2**30
OF_MOST, KEPT, EFFICIENCY = 0.5, 0.5, 0.7  # of an answer's tokens; of answers; of the measured speed, in long runs
WEIGHT_BYTES = 0.83  # of a weight in the blocks that decoding reads (4 and 6 bits with scales)
COPIES = 5  # of the weights in preference training: base, its adapter merged, baseline, judge, what decodes
BESIDE = 0.8  # GiB: programs, caches, one slice of logits


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a second's measurement found."""

    copies: float  # bytes per second
    float32: float  # operations per second in products
    bfloat16: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """One stage."""

    stage: Stage
    tokens: int
    gib: float
    hours: float


def estimate(settings: TeachSettings, workdir: Path) -> list[Estimate]:
    """Each stage; those that are done take no time."""
    refuse_untrainable(settings)
    config = config_of(settings.model)
    with doing("measuring this machine"):
        machine = measure()
    kernels = packed_shapes(config)
    matrices = config.layers * sum(math.prod(shape) for name, shape in kernels.items() if name.endswith("kernel"))
    table = config.vocab * config.embed
    weights = matrices + table * (1 if config.tied_head else 2)
    prompts, held_out = counts(settings, workdir)
    answers = prompts * settings.answers.samples
    found = []
    for stage in stages(settings, workdir):
        tokens, gib, seconds = 0, 0.3, 20.0
        match stage.script:
            case "decode":
                lanes = settings.answers.lanes
                tokens = round(prompts * OF_MOST * settings.answers.max_tokens)
                step = max(weights * WEIGHT_BYTES / machine.copies, lanes * 2 * (matrices + table) / machine.float32)
                gib, seconds = weights * (WEIGHT_BYTES + 0.3) / GIB + BESIDE, tokens / lanes * step / EFFICIENCY
            case "sft":
                tokens, gib, seconds = _of_training(settings, stage, config, matrices, table, answers, machine)
            case "annotate" if stage.variant.endswith(("likelihood", "weighed")):
                tokens = round(10 * answers * KEPT * OF_MOST * settings.answers.max_tokens)
                gib, seconds = 4 * weights / GIB + BESIDE, tokens * 2 * matrices / machine.float32 / EFFICIENCY
            case "preference":
                chosen = stage.settings()
                tokens = round(chosen.rounds * prompts * chosen.sample.count * OF_MOST * chosen.request.max_tokens)
                of_prompts = 2 * chosen.rounds * prompts * OF_MOST * chosen.request.max_tokens  # of all pairs
                lanes = chosen.decoding.lanes
                step = max(4 * weights / machine.copies, lanes * 2 * (matrices + table) / machine.float32)
                learnt = of_prompts * (8 * matrices + 6 * table) / machine.float32
                gib, seconds = COPIES * 4 * weights / GIB + BESIDE, (tokens / lanes * step + learnt) / EFFICIENCY
            case "evaluate":
                tokens = round(3 * held_out * OF_MOST * settings.evaluate_tokens)
                step = max(weights * WEIGHT_BYTES / machine.copies, 4 * 2 * (matrices + table) / machine.float32)
                alone = 2 * 3 * 8 * OF_MOST * settings.evaluate_tokens * weights * WEIGHT_BYTES / machine.copies
                gib = weights * 2 * (WEIGHT_BYTES + 0.3) / GIB + BESIDE
                seconds = (tokens / 4 * step + alone) / EFFICIENCY
        found.append(Estimate(stage, tokens, gib, 0.0 if stage.done.exists() else seconds / 3600))
    return found


def _of_training(
    settings: TeachSettings,
    stage: Stage,
    config: TransformerConfig,
    matrices: int,
    table: int,
    answers: int,
    machine: Machine,
) -> tuple[int, float, float]:
    training, a_step = settings.training, settings.training.rows * max(settings.training.lengths)
    steps = stage.changes["train.steps"] or math.ceil(
        stage.changes["train.epochs"] * answers * KEPT * (OF_MOST * settings.answers.max_tokens + 40) / (0.85 * a_step)
    )
    narrow = training.base == "bfloat16"
    outputs = sum(math.prod(shape[:-1]) for name, shape in packed_shapes(config).items() if name.endswith("kernel"))
    kept = config.layers * a_step * 4 * (config.embed + outputs * training.keep_products)
    frozen = (2 if narrow else 4) * (matrices + table * (1 if config.tied_head else 2))
    adapter = 16 * training.adapter.rank * config.layers * 2 * (outputs + config.embed)
    slices = 4 * 4 * training.rows * 64 * config.vocab
    gib = (frozen + adapter + kept + slices) / GIB + BESIDE
    flops = a_step * ((4 if training.keep_products else 6) * matrices + 6 * table)
    rate = machine.bfloat16 if narrow and multiplies_bfloat16() else machine.float32
    return steps * a_step, gib, steps * flops / rate / EFFICIENCY


def text(estimates: list[Estimate]) -> str:
    """The plan as a table, and the commands."""
    rows = [("stage", "tokens", "GiB", "hours")]
    rows += [(e.stage.name, f"{e.tokens:,}" if e.tokens else "", f"{e.gib:.1f}", f"{e.hours:.1f}") for e in estimates]
    rows.append(("together", "", f"{max(e.gib for e in estimates):.1f}", f"{sum(e.hours for e in estimates):.1f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join((a.ljust(widths[0]), *(b.rjust(w) for b, w in zip(rest, widths[1:], strict=True))))
        for a, *rest in rows
    ]
    if jax.default_backend() != "cpu":
        table.append("measured on the host: an accelerator takes far less time (docs/results/training.md)")
    return "\n".join([*table, "", *(e.stage.command for e in estimates)])


def counts(settings: TeachSettings, workdir: Path) -> tuple[int, int]:
    """How many prompts are going to be learnt from and evaluated on, as far as that is known."""
    if (workdir / PROMPTS).is_file():
        train, held_out = (len((workdir / name).read_bytes().splitlines()) for name in (PROMPTS, HELD_OUT))
        return train, held_out
    if settings.prompts.file:
        chosen = choose(settings.prompts, room(settings))
        return len(chosen.train), len(chosen.held_out)
    return min(settings.prompts.count, len(in_parts()) + 1000), settings.prompts.held_out


def measure() -> Machine:
    """The speeds of this machine, each the best of some tries."""
    ours = np.ones(2**27, np.uint8)
    x = jnp.ones((512, 2048), jnp.float32)
    product = jax.jit(row_product)
    flops = 2 * 512 * 2048 * 4096

    def rate(dtype) -> float:
        kernel = jnp.ones((4096, 2048), dtype)
        product(x, kernel).block_until_ready()
        return flops / least_seconds(lambda: product(x, kernel).block_until_ready(), 5)

    narrow = rate(jnp.bfloat16) if multiplies_bfloat16() else 0.0
    return Machine(2 * len(ours) / least_seconds(ours.copy, 5), rate(jnp.float32), narrow)
