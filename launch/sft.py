"""Train a model on PASTA-LANG; goes on where it was stopped. See configs/sft.py."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

WORKDIR = flags.DEFINE_string("workdir", None, "folder of this run: checkpoints, metrics, and the model at the end")

# What may change between two starts of a run: how often it looks at itself, not what it computes.
FREE = ("every", "keep", "probe", "tensorboard", "mesh")


@dataclasses.dataclass(frozen=True)
class Data:
    """What is trained and measured on."""

    feed: Any  # data/batches.py::Feed
    held_out: tuple  # batches
    prompts: tuple[tuple[int, ...], ...]  # held-out, to look at what the model answers
    fingerprint: str


def main(config: ConfigDict) -> None:
    """Train, or go on."""
    if not WORKDIR.value:
        raise PastaError("--workdir: give a folder for this run")
    cli.announce_device()
    from pasta_jax.train.fit import until_sigterm

    with until_sigterm() as stopping:
        sft(config, Path(WORKDIR.value), stopping)


def sft(config: ConfigDict, workdir: Path, stopping: Callable[[], bool]) -> None:
    """One run in its folder, from its newest checkpoint if it has one, to its end or until `stopping()`."""
    import jax

    from pasta_jax.checkpoint import provenance
    from pasta_jax.train.fit import Keep, fit
    from pasta_jax.train.optimizer import new_optimizer, schedule
    from pasta_jax.train.speed import peak_gb
    from pasta_jax.train.state import new_state

    plain = json.loads(config.to_json_best_effort())
    agree(workdir, plain)
    model = model_of(config)
    model = dataclasses.replace(model, positions=None if config.strip_tags else positions_of(config))
    data = data_of(config, model.tokenizer)
    plan = plan_of(config, data.feed)
    optimizer = new_optimizer(plan)
    trainable, frozen = parts_of(config, model)
    state = place(config, new_state(trainable, optimizer, config.train.seed))
    frozen = place(config, frozen)

    part = workdir / ".config.json"
    workdir.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(plain, indent=1) + "\n")
    part.replace(workdir / "config.json")
    run = run_of(config, model, plan, optimizer, schedule(plan), data)
    about = provenance(plain, data.fingerprint, model.positions and dataclasses.asdict(model.positions))
    result = fit(workdir, run, state, frozen, about, Keep(**config.keep.to_dict()), config.tensorboard, stopping)
    say(f"peak memory {peak_gb():.2f} GB")
    if result.complete:
        write_model(config, model, jax.device_get(result.state.trainable), workdir)


def model_of(config: ConfigDict):
    """The model to start from: real weights, or fresh ones for the toy task's tokenizer."""
    import jax

    from pasta_jax.models import transformer
    from pasta_jax.models.config import Rope, TransformerConfig
    from pasta_jax.models.weights import Model, load_model

    if not config.fresh.layers:
        # What is trained is float32; what stays frozen is as the platform computes.
        return load_model(config.model.preset, config.model.path, dtype=None if config.adapter.rank else "float32")
    from pasta_jax.data.toy_tokenizer import toy_tokenizer

    tokenizer = toy_tokenizer()
    fields = config.fresh.to_dict()
    widen = fields.pop("widen")
    shape = TransformerConfig(
        vocab=tokenizer.model_vocab,
        **fields,
        rope=Rope(10_000.0),
        norm_eps=1e-5,
        activation="silu",
        tied_head=True,
    )
    stacked = jax.default_backend() != "cpu"
    params = transformer.init(shape, jax.random.key(config.train.seed), stacked)
    # Norms keep their ones; the leaf of each is named so.
    params = jax.tree_util.tree_map_with_path(lambda path, x: x if path[-1].key == "weight" else x * widen, params)
    return Model("fresh", shape, params, tokenizer)


def data_of(config: ConfigDict, tokenizer) -> Data:
    """Records of the toy task, or those that launch.annotate wrote."""
    import hashlib

    import jax

    from pasta_jax.data.batches import Feed, Layout

    asked = config.data
    if bool(asked.toy) == bool(asked.records):
        raise PastaError(
            "config.data: give either records=<folder written by launch.annotate> or toy=<level of the toy task>"
        )
    if asked.toy:
        train = toy_examples(config, tokenizer, asked.toy_seed, asked.toy_count)
        held_out = toy_examples(config, tokenizer, 0, asked.held_out)
        digest = hashlib.sha256()
        for example in (*train, *held_out):
            for field in dataclasses.fields(example):
                digest.update(getattr(example, field.name).tobytes())
        fingerprint = digest.hexdigest()[:16]
    else:
        from pasta_jax.data.builder import Examples

        how = (tokenizer, config.strip_tags, positions_of(config))
        train = Examples(Path(asked.records), "train", *how)
        held_out = Examples(Path(asked.records), "validation", *how) if asked.held_out else ()
        held_out = [held_out[number] for number in range(min(len(held_out), asked.held_out))]
        fingerprint = train.about["fingerprint"]
    layout = Layout(tuple(asked.lengths), asked.rows, asked.packed, asked.too_long)
    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    feed = Feed(train, layout, **hosts)
    say(f"data {fingerprint}: {len(train)} records, {feed.dropped} too long for {asked.lengths[-1]} tokens")
    batches = ()
    if held_out:
        apart = Feed(held_out, layout, **hosts)
        batches = tuple(apart.batch(0, step) for step in range(apart.steps(0, 1)))
    prompts = tuple(prompt_of(example) for example in held_out[: config.probe.prompts])
    return Data(feed, batches, prompts, fingerprint)


def prompt_of(example) -> tuple[int, ...]:
    """The prompt in an example: what comes before the first token that is learnt."""
    from pasta_jax.lang.structure import NO_LABEL

    return tuple(example.token[: int((example.label != NO_LABEL).argmax()) + 1].tolist())


def toy_examples(config: ConfigDict, tokenizer, seed: int, count: int) -> list:
    """Problems of the toy task as a model reads them."""
    from pasta_jax.data.example import encode
    from pasta_jax.data.toy import problems

    examples = []
    for problem in problems(seed, 0, count, config.data.toy):
        prompt = tokenizer.chat([("user", problem.instruction)])
        answer = tokenizer.encode(problem.answer) if config.strip_tags else problem.program(tokenizer).ids(tokenizer)
        examples.append(encode(prompt, answer, tokenizer.tags, tokenizer.end_of_turn, positions_of(config)))
    return examples


def positions_of(config: ConfigDict):
    """The positions to train with."""
    from pasta_jax.lang.structure import Positions

    return Positions(**config.positions.to_dict())


def plan_of(config: ConfigDict, feed):
    """How far to go: a number of steps, or of passes over the data."""
    from pasta_jax.train.optimizer import OptimizerConfig

    asked = config.train
    if bool(asked.steps) == bool(asked.epochs):
        raise PastaError("config.train: give either steps or epochs, and 0 for the other")
    steps = asked.steps or feed.steps(asked.seed, asked.epochs)
    names = ("learning_rate", "warmup", "weight_decay", "clip", "b1", "b2", "eps")
    return OptimizerConfig(steps=steps, **{name: asked[name] for name in names})


def parts_of(config: ConfigDict, model):
    """(trainable, frozen): all parameters and None, or an adapter and the parameters."""
    from pasta_jax.models.adapter import AdapterConfig, new_adapter

    if not config.adapter.rank:
        return model.params, None
    wanted = AdapterConfig(config.adapter.rank, config.adapter.alpha, tuple(config.adapter.targets))
    return new_adapter(model.params, wanted, model.tokenizer.tags, config.train.seed), model.params


def place(config: ConfigDict, tree):
    """The tree on the config's mesh; one device needs none."""
    import jax

    from pasta_jax.sharding import make_mesh, shard

    if jax.device_count() == 1:
        return tree
    return shard(tree, make_mesh(config.mesh.data or jax.device_count() // config.mesh.model, config.mesh.model))


def run_of(config: ConfigDict, model, plan, optimizer, rate, data: Data):
    """What is trained, as the loop takes it."""
    import jax

    from pasta_jax.models.weights import platform_dtype
    from pasta_jax.train.loop import Intervals, Run
    from pasta_jax.train.loss import KINDS, Scoring, sft_loss
    from pasta_jax.train.speed import flops_per_token, peak_flops

    asked = config.train
    scoring = Scoring(model.config, model.tokenizer.tags, platform_dtype(), asked.slice, asked.block, asked.remat)
    return Run(
        steps=plan.steps,
        accumulate=asked.accumulate,
        batch=data.feed.batch,
        held_out=data.held_out,
        loss=sft_loss(scoring, tuple(config.weights[kind] for kind in KINDS)),
        optimizer=optimizer,
        learning_rate=rate,
        flops_per_token=flops_per_token(model.params, model.config, config.data.lengths[-1], bool(config.adapter.rank)),
        peak_flops=peak_flops(jax.devices()),
        probe=probe_of(config, model, data),
        every=Intervals(**config.every.to_dict()),
    )


def probe_of(config: ConfigDict, model, data: Data):
    """A look at what the model answers to held-out prompts; none for a baseline, which has no tags to look at."""
    if config.strip_tags or not data.prompts or config.positions.policy == "oracle":
        return None

    def look(trainable, frozen) -> dict:
        from pasta_jax.decode.generate import DecodeConfig
        from pasta_jax.evaluate.probe import probe

        settings = DecodeConfig(lanes=len(data.prompts), rows=config.probe.rows, slots=0)
        return probe(finished(config, model, trainable, frozen), data.prompts, settings, config.probe.max_tokens)

    return look


def finished(config: ConfigDict, model, trainable, frozen):
    """The model as it is decoded with: an adapter inside its kernels, computing as this machine does."""
    import jax

    from pasta_jax.models.adapter import merge
    from pasta_jax.models.weights import platform_dtype

    params = trainable if frozen is None else merge(frozen, trainable, model.tokenizer.tags)
    params = jax.tree.map(lambda leaf: leaf.astype(platform_dtype()), params)
    return dataclasses.replace(model, params=params)


def agree(workdir: Path, config: dict) -> None:
    """Refuse to go on with another training than the one that was begun here."""
    path = workdir / "config.json"
    if not path.is_file():
        return
    try:
        begun = json.loads(path.read_text())
    except ValueError:
        raise PastaError(f"{path}: not JSON; give another workdir") from None
    for name in config:
        if name not in FREE and begun.get(name) != config[name]:
            raise PastaError(
                f"{workdir}: was begun with {name} {begun.get(name)}, now it is {config[name]}; "
                "give another workdir, or the first command again"
            )


def write_model(config: ConfigDict, model, trainable, workdir: Path) -> None:
    """The result where other programs read it, whole or not at all."""
    from pasta_jax.models.adapter import AdapterConfig, describe, merge, save_adapter
    from pasta_jax.models.weights import export_model

    if config.adapter.rank:
        settings = AdapterConfig(config.adapter.rank, config.adapter.alpha, tuple(config.adapter.targets))
        save_adapter(workdir / "adapter.safetensors", trainable, describe(model, settings, model.positions))
        trainable = merge(model.params, trainable, model.tokenizer.tags)
    export_model(dataclasses.replace(model, params=trainable), workdir / "model")
    say(f"wrote {workdir / 'model'}")


def say(line: str) -> None:
    """Progress beside the figures."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/sft.py")
