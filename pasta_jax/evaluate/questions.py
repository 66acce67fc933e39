"""The questions of an evaluation: all of a set, or the ones whose text has the smallest hash; and second turns."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from pasta_jax.answer.prompts import read_prompts_file
from pasta_jax.data.pairs import Unreadable, parse_pair
from pasta_jax.data.prompt_sets import NO_FORK, by_hash
from pasta_jax.data.sources import rows_of
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import multipart
from pasta_jax.evaluate.settings import PromptCounts
from pasta_jax.files import fingerprints

SECOND_TURN = " 2"  # ends the name of the set of second turns


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt to answer."""

    prompts: str  # its set
    number: int  # its place in the set, by hash
    text: str
    category: str  # "": none
    follow_up: str | None = None  # the second turn's text, if there is one
    id: int | None = None  # MT-bench's
    history: tuple[tuple[str, str], ...] = ()  # (role, text) of the turns before it

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The conversation that ends with this question."""
        return [*self.history, ("user", self.text)]

    def next_turn(self, answer: str) -> "Question":
        """The second turn, after this answer."""
        assert self.follow_up is not None
        return dataclasses.replace(
            self,
            prompts=self.prompts + SECOND_TURN,
            text=self.follow_up,
            follow_up=None,
            history=(("user", self.text), ("assistant", answer)),
        )


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """The questions of one set, and the fingerprint of all that it has, chosen or not."""

    chosen: tuple[Question, ...]
    fingerprint: str


def question_sets(prompts: PromptCounts, limit: int | None = None) -> dict[str, QuestionSet]:
    """The sets with at least one question, by name; sets that are not asked for need not be installed.

    A file of prompts is the only set.

    With `limit`, at most so many of each: a smaller choice is the beginning of a larger one.
    """
    counts = dataclasses.asdict(prompts)
    skip, file = counts.pop("skip"), counts.pop("file")
    if file:
        counts = {"file": sys.maxsize}
    sets = {}
    for name, count in counts.items():
        if count := count if limit is None else min(count, limit):
            known = _questions_of_file(file) if file else _questions(name)
            texts = by_hash(list(known), skip + count)[skip:]
            chosen = tuple(dataclasses.replace(known[text], number=number) for number, text in enumerate(texts, skip))
            if not chosen:
                raise PastaError(f"config.prompts.skip: {skip} leaves none of the {len(known)} prompts of {name}")
            sets[name] = QuestionSet(chosen, fingerprints.of_texts(sorted(known)))
    if not sets:
        raise PastaError("config.prompts: all sets have 0 prompts; raise one of them")
    return sets


def alpaca_eval_instructions() -> list[str]:
    """AlpacaEval's 805 instructions, in its order."""
    return [_text(row, "instruction") for _, row in rows_of("alpaca_eval") if isinstance(row, Mapping)]


def _questions(name: str) -> dict[str, Question]:
    """All questions of a set, by text."""
    if name == multipart.NAME:
        return {text: Question(name, 0, text, "") for text in multipart.questions()}
    questions = {}
    for place, row in rows_of(str(NO_FORK) if name == "no_fork" else name):
        pair = row if isinstance(row, Unreadable) else parse_pair(row, name, place)
        if isinstance(pair, Unreadable) or not isinstance(row, dict):
            continue
        question = Question(name, 0, pair.instruction, _text(row, "category") or _text(row, "dataset"))
        turns = row.get("turns")
        if isinstance(turns, list) and len(turns) > 1 and isinstance(turns[1], str):
            question = dataclasses.replace(question, follow_up=turns[1], id=int(row.get("question_id") or 0))
        questions[question.text] = question
    return questions


def _questions_of_file(path: str) -> dict[str, Question]:
    prompts = read_prompts_file(Path(path))
    return {prompt.text: Question("file", 0, prompt.text, prompt.dataset or "") for prompt in prompts}


def _text(row: Mapping[str, object], field: str) -> str:
    value = row.get(field)
    return value if isinstance(value, str) else ""
