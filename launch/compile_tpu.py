"""Compile decoding and training for a real TPU topology without a TPU, and say what it takes.

See configs/compile_tpu.py.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import re
import sys
import time
from collections import Counter

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

# Read when JAX and libtpu load: arrays stay on the CPU, no metadata server is asked, no log files are left in the
# temporary folder, and several processes may compile at once.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x4", "kind:AxB or kind:AxBxC, as v5e:2x4, v6e:2x2, v5p:2x2x1")


def main(config: ConfigDict) -> None:
    """Compile each program and print what it takes."""
    if importlib.util.find_spec("libtpu") is None:
        raise PastaError("the TPU compiler is not installed: bash launch/setup.sh --tpu")
    os.environ.update(ENVIRONMENT)
    from pasta_jax.sharding import make_mesh

    devices = topology_devices(TOPOLOGY.value)
    try:
        mesh = make_mesh(config.data, len(devices) // max(config.data, 1), devices)
    except AssertionError as error:  # JAX makes no mesh of chips that show two cores each, as v4 does here
        raise PastaError(f"--topology={TOPOLOGY.value}: {str(error).split(' (')[0]}; take another kind") from None
    print(f"compiling for {len(devices)} x {devices[0].device_kind}; nothing runs", file=sys.stderr, flush=True)
    job = Job(config, mesh)
    programs = {}
    for name in config.programs:
        programs[name] = report = job.compile(name)
        print(f"{name}: {report['compile_s']} s", file=sys.stderr, flush=True)
    about = {
        "topology": TOPOLOGY.value,
        "device": devices[0].device_kind,
        "mesh": dict(mesh.shape),
        **{key: config[key] for key in ("preset", "lanes", "rows", "slots", "prefill")},
        "bytes": "of one device",
        "params": bytes_of(job.params),
        "state": bytes_of(job.state),
        "keys_values": bytes_of(job.state.pool.kv),
    }
    print(json.dumps(about | {"programs": programs}))


def topology_devices(name: str):
    """The devices of a topology that need not exist."""
    from jax.experimental import topologies

    one = {"chips_per_host_bounds": (1, 1, 1)} if name.endswith(":1x1") else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **one).devices
    except Exception as error:  # the plugin raises what it likes
        reason = " ".join(str(error).split())[:200]
        raise PastaError(
            f"--topology={name}: {reason}; names are as v5e:2x4, v6e:2x2, v5p:2x2x1, tpu7x:2x2x1"
        ) from None


@dataclasses.dataclass(frozen=True)
class Ids:
    """What a compiled loop needs to know of a tokenizer."""

    tags: object
    stop_ids: tuple[int, ...]
    vocab_size: int


class Job:
    """Parameters and state of a model as shapes that know their devices, and the programs over them."""

    def __init__(self, config: ConfigDict, mesh):
        import jax
        import jax.numpy as jnp

        from pasta_jax.decode.generate import DecodeConfig, rules_for
        from pasta_jax.decode.prefill import PIECES
        from pasta_jax.decode.state import empty_state
        from pasta_jax.lang.tags import NUM_TAGS, TagIds
        from pasta_jax.models import transformer
        from pasta_jax.models.config import PRESETS
        from pasta_jax.models.weights import Model

        if config.preset not in PRESETS:
            raise PastaError(f"preset {config.preset!r}: there is none of this name; choose of {', '.join(PRESETS)}")
        if config.prefill not in PIECES:
            raise PastaError(f"prefill {config.prefill}: prompts are written {', '.join(map(str, PIECES))} at a time")
        self.asked, self.mesh = config, mesh
        self.config = PRESETS[config.preset]
        init = functools.partial(transformer.init, self.config, stacked=True)
        params = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), jax.eval_shape(init, jax.random.key(0))
        )
        state = functools.partial(empty_state, self.config, config.lanes, config.slots, jnp.bfloat16, stacked=True)
        self.params = placed(params, mesh)
        self.state = placed(jax.eval_shape(state), mesh)
        ids = Ids(TagIds(self.config.vocab - NUM_TAGS), (1,), self.config.vocab)
        settings = DecodeConfig(config.lanes, config.rows, config.slots)
        self.rules = rules_for(Model(config.preset, self.config, self.params, ids), settings, config.slots, False)

    def compile(self, name: str) -> dict:
        """What one program takes; the compiler itself refuses what doesn't fit into a device's memory."""
        import jax

        lower = {"run": self.lower_run, "prefill": self.lower_prefill, "train": self.lower_train}
        if name not in lower:
            raise PastaError(f"programs: there is no {name!r}; choose of {', '.join(lower)}")
        began = time.perf_counter()
        try:
            compiled = lower[name]().compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            reason = re.sub(r"\s+", " ", str(error))[:160]
            raise PastaError(
                f"{name} of {self.asked.preset} doesn't fit: {reason}; take more devices, or fewer lanes or slots"
            ) from None
        memory = compiled.memory_analysis()
        text = compiled.as_text()
        found = collectives(text)
        return {
            "arguments": memory.argument_size_in_bytes,
            "alias": memory.alias_size_in_bytes,
            "temp": memory.temp_size_in_bytes,
            "peak": memory.peak_memory_in_bytes,
            "collectives": {
                "in_layers": Counter(one.kind for one in found if one.in_layers),
                "outside": Counter(one.kind for one in found if not one.in_layers),
                "largest": largest(found),
            },
            "kernels": text.count('custom_call_target="tpu_custom_call"'),
            "compile_s": round(time.perf_counter() - began, 1),
        }

    def lower_run(self):
        from pasta_jax.decode.interpreter import run

        return run.lower(self.params, self.state, scalar("int32"), scalar("bool"), config=self.config, rules=self.rules)

    def lower_prefill(self):
        from pasta_jax.decode.prefill import prefill

        lane, tokens, start, count, first = (
            scalar("int32", *shape) for shape in ((), (self.asked.prefill,), (), (), ())
        )
        return prefill.lower(
            self.params, self.state, lane, tokens, start, count, first, config=self.config, rules=self.rules
        )

    def lower_train(self):
        """One step of the training loop, of all parameters, with attention by blocks."""
        import jax
        import jax.numpy as jnp

        from pasta_jax.data.batch import Batch
        from pasta_jax.models.flash_tpu import TILE
        from pasta_jax.sharding import rows
        from pasta_jax.train.loop import train_step
        from pasta_jax.train.loss import KINDS, Scoring, sft_loss
        from pasta_jax.train.optimizer import OptimizerConfig, new_optimizer
        from pasta_jax.train.state import new_state

        asked = self.asked.train
        if asked.block < 1 or min(asked.block, asked.tokens) % TILE:
            raise PastaError(f"train.block {asked.block}: a TPU takes multiples of {TILE}; give one, and rows as long")
        if asked.rows % self.asked.data:
            raise PastaError(f"train.rows {asked.rows}: {self.asked.data} devices share them; give a multiple of that")
        scoring = Scoring(self.config, self.rules.tags, jnp.bfloat16, asked.slice, asked.block, remat=True)
        plan = OptimizerConfig(1, learning_rate=1e-5, warmup=0, weight_decay=0.0, clip=1.0, b1=0.9, b2=0.999, eps=1e-8)
        optimizer = new_optimizer(plan)
        loss = sft_loss(scoring, (1.0,) * len(KINDS))
        step = functools.partial(train_step, loss=loss, optimizer=optimizer, accumulate=1)
        state = jax.eval_shape(lambda params: new_state(params, optimizer, 0), self.params)
        vector = jax.ShapeDtypeStruct((asked.rows, asked.tokens), jnp.int32, sharding=rows(self.mesh))
        batch = Batch(**{field.name: vector for field in dataclasses.fields(Batch)})
        return jax.jit(step, donate_argnums=0).lower(placed(state, self.mesh), None, batch)


def scalar(dtype: str, *shape: int):
    """A small host value: every device gets all of it."""
    import jax

    return jax.ShapeDtypeStruct(shape, dtype)


def placed(tree, mesh):
    """Shapes that lie where pasta_jax/sharding.py says."""
    import jax

    from pasta_jax.sharding import shardings

    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree, shardings(tree, mesh)
    )


def bytes_of(tree) -> int:
    """Bytes that one device holds of a tree of placed shapes or arrays."""
    import jax
    import numpy as np

    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Collective:
    """One instruction by which devices exchange values. In a loop it stands once and is done in every turn."""

    kind: str
    bytes: int  # of its result on one device
    in_layers: bool  # once in every layer, by the model's name for a layer


def largest(found: list[Collective]) -> dict[str, int]:
    """Bytes of the longest collective of each kind."""
    return {kind: max(one.bytes for one in found if one.kind == kind) for kind in sorted({one.kind for one in found})}


_COLLECTIVE = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(-start)?\("
)
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")


def collectives(program: str) -> list[Collective]:
    """The collectives in the text of a compiled program."""
    found = []
    for line in program.splitlines():
        if match := _COLLECTIVE.search(line):
            size = sum(_size(*array) for array in _ARRAY.findall(match["result"]))
            found.append(Collective(match["kind"], size, "/Layer/" in line))
    return found


def _size(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
    size = bits // 8
    for dim in filter(None, dims.split(",")):
        size *= int(dim)
    return size


if __name__ == "__main__":
    cli.run(main, default_config="configs/compile_tpu.py")
