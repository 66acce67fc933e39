"""Step 2 of a round: verdicts on every sampled answer, and the judge's agreement with known preferences.

Verdicts do not depend on the quality weight, so changing it reuses all of them.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from pasta_jax.data.sources import known_preferences
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import Count
from pasta_jax.judges.judge import Agreement, Entry, Verdict, agreement
from pasta_jax.preference.artifacts import Artifact, Step
from pasta_jax.preference.sample import Answers
from pasta_jax.preference.stage import Stage, as_judged, at_a_time, judge_inputs, judged
from pasta_jax.progress import say, track


@dataclasses.dataclass(frozen=True)
class Scores:
    """Verdicts on the answers to one prompt, and the length that their speed is relative to."""

    prompt: Count
    baseline_tokens: Count
    verdicts: tuple[tuple[Verdict, ...] | None, ...]  # one entry per answer; None: the judge returned no verdict


def score(stage: Stage, samples: Artifact[Answers], baseline: Artifact[Answers]) -> Artifact[Scores]:
    """Compare each answer with the baseline's answer and the reference, if there is one, each in both orders."""
    inputs = {
        "samples": samples.fingerprint,
        "baseline": baseline.fingerprint,
        "references": fingerprints.of_data([[prompt.question, prompt.response] for prompt in stage.prompts]),
        "judge": judge_inputs(stage.settings),
    }

    def asked(number: int) -> Iterator[tuple[str, Entry, list[Entry]]]:
        prompt = stage.prompts[number]
        others = *baseline.records[number].answers, *([prompt.response] if prompt.response else [])
        entries = as_judged(stage, prompt.question, (*others, *samples.records[number].answers))
        for entry in entries[len(others) :]:
            yield prompt.question, entry, entries[: len(others)]

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, Scores]]:
        verdicts = judged(stage, itertools.chain.from_iterable(map(asked, numbers)))
        for number in numbers:
            [baseline_answer] = baseline.records[number].answers
            own = itertools.islice(verdicts, len(samples.records[number].answers))
            yield number, Scores(number, baseline_answer.critical_path, tuple(own))

    def fits(number: int, record: Scores) -> bool:
        return record.prompt == number and len(record.verdicts) == len(samples.records[number].answers)

    return stage.artifacts.make(
        Step("score", inputs, Scores, len(samples.records), compute, at_a_time(stage.settings), fits)
    )


def judge_agreement(stage: Stage) -> Agreement | None:
    """How often the judge agrees with preferences from a dataset; None if it is exact, or not to be measured."""
    settings = stage.settings.judge
    if settings.kind == "toy":
        say("judge: toy, an exact grader")
        return None
    if not settings.agreement:
        return None
    preferences = known_preferences()[: settings.agreement]
    inputs = {"judge": judge_inputs(stage.settings), "pairs": fingerprints.of_data(preferences)}

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, Agreement]]:
        pairs = track(preferences, "preferences", len(preferences))
        entries = ((q, *as_judged(stage, q, (chosen, rejected))) for q, chosen, rejected in pairs)
        yield 0, agreement(judged(stage, ((q, chosen, [rejected]) for q, chosen, rejected in entries)))

    [result] = stage.artifacts.make(Step("agreement", inputs, Agreement, 1, compute)).records
    say(f"judge: {settings.kind}{'' if settings.kind in ('llm', 'reward') else ', a proxy'}; {result}")
    return result
