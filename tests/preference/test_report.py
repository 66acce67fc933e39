"""The figures of held-out answers, worked by hand."""

from types import SimpleNamespace

from pasta_jax.data.pairs import Pair
from pasta_jax.judges.judge import TIE, Verdict
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.report import Comparison, Figures, comparison_of, figures

WON = Verdict(0.9, 0.1), Verdict(0.7, 0.3)
LOST = Verdict(0.4, 0.6), Verdict(0.1, 0.9)


def compared(verdicts, path: int, text: int, baseline: int, chunks: int = 0, exact=None, whole=True) -> Comparison:
    return Comparison("Why?", verdicts, exact, path, text, baseline, chunks, whole, baseline_whole=True)


def test_means_over_prompts():
    """A prompt counts once however sure the judge is, and ratios are of prompts at which both said something."""
    records = [
        compared(WON, path=10, text=20, baseline=40, chunks=2, exact=True),
        compared(LOST, path=20, text=10, baseline=20, exact=False, whole=False),
        compared((TIE, TIE), path=0, text=0, baseline=7),
        compared(None, path=5, text=5, baseline=0, chunks=1),
    ]
    assert figures(records, 1.7) == Figures(
        win_rate=0.5,
        exact=0.5,
        speedup=2.0,  # of 4 and 1
        speedup_arithmetic=2.5,
        speedup_of_ended=4.0,  # the other was cut off
        parallelism=1.0,  # of 2 and a half
        length_ratio=2.0,
        chunks=0.75,
        cut_off=1,
        realised=1.7,
    )
    nothing = figures(records[2:3], None)
    assert (nothing.win_rate, nothing.exact, nothing.speedup, nothing.parallelism) == (0.5, None, None, None)


def test_speed_is_relative_to_the_steps_of_the_baselines_answer():
    answer, baseline = (Candidate((), "", text, path, 3, True, True) for text, path in ((60, 20), (70, 80)))
    stage = SimpleNamespace(problems={})
    assert comparison_of(stage, Pair.of("", "Why?", "", "x"), answer, baseline, WON) == compared(WON, 20, 60, 80, 3)
