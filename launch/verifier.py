"""Measure how well the likelihood verifier tells used facts from unused ones. See configs/verifier.py."""

import json
import sys

from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError


def main(config: ConfigDict) -> None:
    """Constructed pairs in; the area under the curve and the best threshold out, JSON on the last line."""
    if config.pairs < 1:
        raise PastaError(f"--config.pairs={config.pairs}: give at least 1")
    cli.announce_device()

    from tqdm import tqdm

    from pasta_jax.evaluate.dependence import auc, last_costs, threshold, twins
    from pasta_jax.models.weights import load_model

    model = load_model(config.model.preset, config.model.path)
    made = twins(config.pairs, config.seed)
    found = [
        last_costs(model, twin, config.window, tuple(config.lengths))
        for twin in tqdm(made, desc="pairs", file=sys.stderr, mininterval=5)
    ]
    result = {"model": model.name, "pairs": config.pairs, "seed": config.seed, "window": config.window}
    result["max_cost"] = config.max_cost
    for name, chosen in (
        ("all", made),
        ("main", [twin for twin in made if not twin.by_sibling]),
        ("sibling", [twin for twin in made if twin.by_sibling]),
    ):
        costs = [pair for twin, pair in zip(made, found, strict=True) if twin in chosen]
        if not costs:
            continue
        used, free = (list(values) for values in zip(*costs, strict=True))
        at, right = threshold(used, free)
        taken = [sum(cost > config.max_cost for cost in values) / len(values) for values in (used, free)]
        result[name] = {
            "auc": auc(used, free),
            "threshold": at,
            "right": right,
            "found": taken[0],
            "mistaken": taken[1],
        }
        print(
            f"{name:8} {len(used):4} pairs   AUC {auc(used, free):.4f}   {right:.1%} right at {at:.3f} nats a token; "
            f"above {config.max_cost:g} are {taken[0]:.1%} of used facts, {taken[1]:.1%} of unused ones"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run(main, default_config="configs/verifier.py")
