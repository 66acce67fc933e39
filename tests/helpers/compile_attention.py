"""Compile blocked attention, forward and backward, for TPUs and print what it needs as JSON; run as a process."""

import dataclasses
import itertools
import json
import sys

from pasta_jax.tpu import environment

TOKENS, BLOCK = 2048, 256
SHAPES = {  # key/value heads, groups, size, cap, type
    "gemma_7b": (16, 1, 256, None, "bfloat16"),
    "smollm2": (3, 3, 64, None, "bfloat16"),
    "capped": (4, 4, 128, 50.0, "float32"),
}


def main(*topologies: str) -> None:
    """On meshes of 2 x 4: every device has one row, and its heads where four divides them."""
    environment.prepare()
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from pasta_jax.lang.structure import Place
    from pasta_jax.models.config import PRESETS
    from pasta_jax.models.kernels.blocked import blocked_attention
    from pasta_jax.models.mask import EVERYTHING, MaskSpec
    from pasta_jax.models.sharding import make_mesh
    from pasta_jax.tpu.program import collectives, topology_devices

    report = {topology: {} for topology in topologies}
    for topology, (name, (heads, groups, size, cap, dtype)) in itertools.product(topologies, SHAPES.items()):
        mesh = make_mesh(2, 4, topology_devices(topology))
        config = dataclasses.replace(
            PRESETS["toy"], heads=heads * groups, kv_heads=heads, head_dim=size, attention_cap=cap
        )

        def shape(dtype, *dims, divided=heads % 4 == 0, mesh=mesh):
            axes = ("data", None, "model" if divided else None)[: len(dims)]
            return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

        def total(q, k, v, vectors, config=config):
            mask_spec = MaskSpec(Place(*vectors[:3]), *vectors[3:], jnp.int32(EVERYTHING), BLOCK)
            return jnp.sum(blocked_attention(config, q, k, v, mask_spec).astype(jnp.float32))

        q = shape(dtype, 2, TOKENS, heads, groups, size)
        kv = shape(dtype, 2, TOKENS, heads, size)
        vectors = [shape("int32", 2, TOKENS)] * 5
        compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).lower(q, kv, kv, vectors).compile()
        text, memory = compiled.as_text(), compiled.memory_analysis()
        report[topology][name] = {
            "kernels": text.count('custom_call_target="tpu_custom_call"'),
            "temp": memory.temp_size_in_bytes,
            "collectives": {one.kind: one.bytes for one in collectives(text)},
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
