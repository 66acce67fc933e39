"""Measure how well the likelihood verifier separates text that needs a chunk from text that doesn't."""

import dataclasses

from pasta_jax.annotate.dependence import Detection, detect, last_costs, parallel_twins, twins
from pasta_jax.annotate.settings import VerifierSettings
from pasta_jax.progress import track
from pasta_jax.weights.source import load


@dataclasses.dataclass(frozen=True)
class VerifierReport:
    """How well the verifier detects dependence, over all twins and by what their last part is."""

    model: str
    pairs: int
    seed: int
    window: int
    max_cost: float
    all: Detection
    main: Detection  # the last part is main text
    sibling: Detection | None  # the last part is a third chunk; None if there is no such pair
    parallel: Detection  # the last part has the form of the only other chunk

    def text(self) -> str:
        """One line per group."""
        groups = {"all": self.all, "main": self.main, "sibling": self.sibling, "parallel": self.parallel}
        return "\n".join(
            f"{name:8} {group.pairs:4} pairs   AUC {group.auc:.4f}   {group.accuracy:.1%} correct at "
            f"{group.threshold:.3f} nats per token; above {self.max_cost:g} are {group.detected:.1%} of dependent and "
            f"{group.false_alarms:.1%} of independent parts"
            for name, group in groups.items()
            if group
        )


def run(settings: VerifierSettings) -> VerifierReport:
    """Cost both answers of every pair and compare."""
    model = load(settings.model)
    pairs = twins(settings.pairs, settings.seed)
    parallel = parallel_twins()
    every = [*pairs, *parallel]
    costs = [
        last_costs(model, twin, settings.window, settings.lengths) for twin in track(every, "weighing", len(every))
    ]
    costs, of_parallel = costs[: len(pairs)], costs[len(pairs) :]
    siblings = [cost for twin, cost in zip(pairs, costs, strict=True) if twin.by_sibling]
    return VerifierReport(
        model=model.name,
        pairs=settings.pairs,
        seed=settings.seed,
        window=settings.window,
        max_cost=settings.max_cost,
        all=detect(costs, settings.max_cost),
        main=detect([cost for twin, cost in zip(pairs, costs, strict=True) if not twin.by_sibling], settings.max_cost),
        sibling=detect(siblings, settings.max_cost) if siblings else None,
        parallel=detect(of_parallel, settings.max_cost),
    )
