"""Measure whether the likelihood verifier can tell text that uses a chunk's fact from text that doesn't.

    python -m launch.verifier --config=configs/verifier.py:smollm2_135m

The pairs are constructed from a seed: twin answers that differ only in their last part, which uses a fact of a hidden
chunk or speaks of something else (pasta_jax/annotate/dependence.py). 200 pairs take three minutes on two CPU cores; the
area under the curve is 0.997. `tiny` measures 8 pairs in half a minute.
"""

from pasta_jax.annotate.settings import VerifierSettings


def smollm2_135m() -> VerifierSettings:
    """200 pairs: three minutes on two CPU cores."""
    return VerifierSettings()


def tiny() -> VerifierSettings:
    """8 pairs: half a minute."""
    return VerifierSettings(pairs=8)
