"""AlpacaEval's length-controlled win rate, fitted by its own package alpaca-eval where that and its data are installed.

The fit has a term for how difficult each instruction is, found by the row's place in the annotations. That place is
right for all 805 in AlpacaEval's order only, so here every row has the place of its instruction.
"""

import dataclasses
import warnings
from collections.abc import Sequence

from pasta_jax.judges.verdicts import Annotation
from pasta_jax.progress import say

REPOSITORY, FILE = "tatsu-lab/alpaca_eval", "df_gamed.csv"  # on the Hugging Face Hub, in the cache of its client


@dataclasses.dataclass(frozen=True)
class LengthControlled:
    """Percent."""

    win_rate: float
    standard_error: float


def length_controlled(rows: Sequence[Annotation], instructions: Sequence[str]) -> LengthControlled | None:
    """The rate in some annotations, of at least two rows; None where it can't be fitted, and a line says why.

    `instructions`: all of AlpacaEval's, in its order.
    """
    places = {instruction: place for place, instruction in enumerate(instructions)}
    if len(rows) < 2 or any(row.instruction not in places for row in rows):
        return _none("the annotations are not of several of AlpacaEval's instructions")
    try:
        import pandas as pd  # all three are optional, and slow to import
        from alpaca_eval import constants, metrics
        from huggingface_hub import try_to_load_from_cache
    except ImportError as missing:
        return _none(f"{missing}; bash launch/setup.sh --dev")
    found = try_to_load_from_cache(REPOSITORY, FILE, cache_dir=constants.DEFAULT_CACHE_DIR, repo_type="dataset")
    if not isinstance(found, str):
        return _none(f"its data is not here; hf download {REPOSITORY} {FILE} --repo-type dataset")
    rows = sorted(rows, key=lambda row: places[row.instruction])  # the folds of the fit depend on the order
    frame = pd.DataFrame([vars(row) for row in rows], index=[places[row.instruction] for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of scikit-learn, about the package's calls
        fitted = metrics.get_length_controlled_winrate(
            frame, save_weights_dir=None, is_add_glm_preference_inplace=False, is_warn_extreme_changes=False
        )
    return LengthControlled(float(fitted["length_controlled_winrate"]), float(fitted["lc_standard_error"]))


def _none(reason: str) -> None:
    say(f"no length-controlled win rate: {reason}")
