"""Print how often judges agree with known preferences; JSON on the last line. See configs/judges.py."""

import json

from launch import cli
from pasta_jax.judges.settings import AgreementSettings


def main(settings: AgreementSettings) -> None:
    """Print a line per judge, then the report as JSON."""
    from pasta_jax.judges import agreement  # imports JAX, which --help does not need

    if {"reward", "checked"} & set(settings.kinds):
        cli.announce_device()
    report = agreement.measure(settings)
    for kind, result in report.judges.items():
        print(f"{kind:12} {'' if kind == 'reward' else 'a proxy; '}{result}")
    print(json.dumps(report.fields()))


if __name__ == "__main__":
    cli.run(main, default_config="configs/judges.py")
