"""Agreement of judges with the preferences of a dataset or of a person."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pasta_jax.data.sources import known_preferences
from pasta_jax.files.jsonl import read_records
from pasta_jax.files.remote import path_of
from pasta_jax.judges.choice import judge_of
from pasta_jax.judges.judge import Agreement, Entry, Verdict, agreement, both_orders
from pasta_jax.judges.settings import AgreementSettings, JudgeName
from pasta_jax.progress import track


@dataclasses.dataclass(frozen=True)
class JudgedPair:
    """Two answers to a prompt, and which of them a person prefers."""

    prompt: str
    first: str | Entry
    second: str | Entry
    verdict: Literal["first", "second", "tie"]


@dataclasses.dataclass(frozen=True)
class Written:
    """What a blind reader must not see of an answer, and judges may."""

    system: str
    finished: bool
    topics: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PairKey:
    """Who wrote the answers of a blind pair."""

    prompt: str
    first: Written
    second: Written


def key_of(path: Path) -> Path:
    """Where the key to a file of blind pairs is."""
    return path.with_name(f"{path.stem}-key{path.suffix}")


@dataclasses.dataclass(frozen=True)
class AgreementReport:
    """The agreement of each kind of judge."""

    pairs: int
    judges: dict[str, Agreement]
    ties: int = 0  # pairs without a preference, left out

    def fields(self) -> dict[str, object]:
        """As JSON holds it."""
        judges = {
            kind: dataclasses.asdict(result) | {"near_chance": result.near_chance}
            for kind, result in self.judges.items()
        }
        return {"pairs": self.pairs, "ties": self.ties, "judges": judges}


def measure(settings: AgreementSettings) -> AgreementReport:
    """Every judge over the same pairs."""
    if settings.file:
        pairs = read_pairs(path_of(settings.file))
    else:
        pairs = [(prompt, Entry(chosen), Entry(rejected)) for prompt, chosen, rejected in known_preferences()]
    pairs = pairs[: settings.pairs or None]
    with_preference = [pair for pair in pairs if pair is not None]

    def judged(kind: JudgeName) -> Iterator[tuple[Verdict, ...] | None]:
        judge = judge_of(kind, settings, settings.rules)
        for question, chosen, rejected in track(with_preference, kind, len(with_preference)):
            yield both_orders(judge, question, chosen, [rejected])

    judges = {kind: agreement(judged(kind)) for kind in settings.kinds}
    return AgreementReport(len(with_preference), judges, pairs.count(None))


def read_pairs(path: Path) -> list[tuple[str, Entry, Entry] | None]:
    """(prompt, preferred answer, other answer) of every record; None where neither is preferred.

    An answer is a text, or an object with `text`, `finished` and `topics`; the key of blind pairs adds these.
    """
    pairs, keys = [], {}
    if key_of(path).exists():
        fix = "use the file that launch.evaluate wrote"
        keys = {key.prompt: key for _, key in read_records(key_of(path), PairKey, fix)}
    fix = "write prompt, first, second, and as verdict first, second or tie"
    for _, pair in read_records(path, JudgedPair, fix):
        answers = [Entry(answer) if isinstance(answer, str) else answer for answer in (pair.first, pair.second)]
        if key := keys.get(pair.prompt):
            written = key.first, key.second
            answers = [Entry(one.text, of.finished, of.topics) for one, of in zip(answers, written, strict=True)]
        preferred = answers if pair.verdict == "first" else answers[::-1]
        pairs.append(None if pair.verdict == "tie" else (pair.prompt, *preferred))
    return pairs
