"""Compile decoding and training for a TPU topology without a TPU; print what they need. See configs/compile_tpu.py."""

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax import settings
from pasta_jax.benchmark import tpu_environment

TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x4", "kind:AxB or kind:AxBxC, as --topology=v6e:2x2 or v5p:2x2x1")


def main(config: ConfigDict) -> None:
    """Compile each program and print the report."""
    tpu_environment.prepare()

    from pasta_jax.pipelines import compile_tpu  # imports JAX, which reads the environment just prepared

    print(compile_tpu.compile_programs(settings.read(config, compile_tpu.Settings), TOPOLOGY.value).json())


if __name__ == "__main__":
    cli.run(main, default_config="configs/compile_tpu.py", keep_programs=False)
