"""Measure how well the likelihood verifier detects text that depends on a chunk. See configs/verifier.py."""

import dataclasses
import json

from launch import cli
from pasta_jax.annotate.settings import VerifierSettings


def main(settings: VerifierSettings) -> None:
    """Print the figures of each group of pairs; JSON on the last line."""
    from pasta_jax.annotate import verifier  # imports JAX; --help need not wait for it

    cli.announce_device()
    report = verifier.run(settings)
    print(report.text())
    print(json.dumps(dataclasses.asdict(report)))


if __name__ == "__main__":
    cli.run(main, default_config="configs/verifier.py")
