"""Compile decoding and training for a TPU topology without a TPU; print what they need. See configs/compile_tpu.py."""

from absl import flags

from launch import cli
from pasta_jax.tpu import environment
from pasta_jax.tpu.settings import CompileSettings

TOPOLOGY = flags.DEFINE_string(
    "topology", "v5e:2x4", "kind:AxB or kind:AxBxC, as --topology=v6e:2x2 or v5p:2x2x1; or all, for one of each kind"
)


def main(settings: CompileSettings) -> None:
    """Compile each program; print what it needs, and all of it as JSON at the end."""
    environment.prepare()

    # These import JAX, which reads the environment just prepared.
    from pasta_jax.tpu import compile as compile_tpu
    from pasta_jax.tpu import report as compile_tpu_report

    names = compile_tpu.TOPOLOGIES if TOPOLOGY.value == "all" else (TOPOLOGY.value,)
    reports = []
    for report in compile_tpu.compile_all(settings, names):
        reports.append(report)
        print(*compile_tpu_report.lines(report), sep="\n", flush=True)
    print(compile_tpu_report.as_json(reports))


if __name__ == "__main__":
    cli.run(main, default_config="configs/compile_tpu.py", keep_programs=False)
