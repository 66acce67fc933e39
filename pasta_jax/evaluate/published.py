"""The figures that the paper states (arXiv 2502.11517, figures 4 and 9), to stand beside ours.

Gemma 7B on an H100, one prompt at a time, greedy, AlpacaEval's 805 prompts. Win rates are GPT-4's, length-controlled,
against Baseline-SFT; all means are geometric.
"""

import dataclasses

SETTING = "Gemma 7B, H100, batch 1, greedy; 805 prompts of AlpacaEval; win rate by GPT-4, length-controlled"


@dataclasses.dataclass(frozen=True)
class Published:
    """A row of the paper's table."""

    name: str
    win_rate: float  # percent; the baseline has 50
    realised: float
    speedup: float  # theoretical
    parallelism: float

    @property
    def efficiency(self) -> float:
        """Realised over theoretical speedup."""
        return self.realised / self.speedup


PAPER = (
    Published("Baseline-SFT", 50.0, 1.0, 1.0, 1.0),
    Published("Pasta-SFT", 32.6, 1.31, 1.90, 2.36),
    Published("Pasta-BoN λ=1", 42.9, 1.93, 2.44, 2.33),
    Published("Pasta-BoN λ=2", 45.5, 1.62, 2.08, 2.08),
    Published("Pasta-BoN λ=4", 47.4, 1.54, 1.90, 1.91),
    Published("Pasta-BoN λ=8", 48.8, 1.46, 1.78, 1.80),
    Published("Pasta-BoN λ=∞", 52.3, 1.21, 1.40, 1.57),
    Published("APAR", 41.2, 1.60, 1.79, 1.70),
    Published("Skeleton-of-Thought", 38.4, 0.73, 0.90, 1.14),
)
