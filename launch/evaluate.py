"""Compare a trained model with its baseline; the last line on stdout is one JSON object. See configs/evaluate.py."""

import json
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax import settings

OUTPUT = flags.DEFINE_string("output", None, "write every answer to this file as JSON lines")


def main(config: ConfigDict) -> None:
    """Evaluate and print the report."""
    from pasta_jax.pipelines import evaluate  # imports JAX, which would slow down --help

    cli.announce_device()
    output = Path(OUTPUT.value) if OUTPUT.value else None
    report = evaluate.run(settings.read(config, evaluate.Settings), output)
    print(report.text())
    print(json.dumps(report.fields()))


if __name__ == "__main__":
    cli.run(main, default_config="configs/evaluate.py")
