"""The answers of one system of an evaluation, kept as they are finished: a run that was killed goes on where it was.

    WORKDIR/answers-NAME.jsonl   first what the answers depend on, then one record per answer

Answers that depend on something else are refused, and what differs is named.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.decode.generate import generate, slots_for, stream
from pasta_jax.decode.probe import well_formed
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.answers import SystemAnswer, answer_of
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.rivals.answer import answer
from pasta_jax.evaluate.rivals.skeleton import WORDING
from pasta_jax.evaluate.settings import SkeletonOptions, System
from pasta_jax.files import fingerprints
from pasta_jax.lang.structure import Positions
from pasta_jax.progress import say
from pasta_jax.runs import processes, records
from pasta_jax.runs.checkpoint import fingerprint_of_params
from pasta_jax.runs.records import Records
from pasta_jax.runs.settings import flat
from pasta_jax.weights.model import Model

SHOWN = {
    "model": "PASTA",
    "untagged": "PASTA, tags forbidden",
    "baseline": "sequential",
    "skeleton": "Skeleton-of-Thought",
    "unshared": "unshared points",
    "apar": "APAR",
    "no_topics": "without topics",
    "no_syncs": "without sync",
    "constant": "constant positions",
    "shared_start": "shared start",
}
OTHER_WORKDIR = "choose another --workdir"


@dataclasses.dataclass(frozen=True)
class Task:
    """What one system is to answer."""

    system: System
    model: Model | None  # None: a worker loads it
    template: Request  # without a prompt
    config: DecodeConfig
    options: SkeletonOptions  # of Skeleton-of-Thought
    unmasked: int  # answers to prompts below this number are compared with what is written without the grammar mask

    @property
    def is_rival(self) -> bool:
        """Whether it answers in several requests."""
        return self.system in ("skeleton", "unshared")

    def request(self, question: Question) -> Request:
        """A question's request. The seed of prompt n of a set is the template's plus n."""
        seeded, name = self.template.with_seed(question.number), f"{question.prompts}: prompt {question.number}"
        try:
            ids = tuple(self.model.tokenizer.chat(question.messages))
        except PastaError as error:
            raise PastaError(f"{name}: {error}") from None
        return dataclasses.replace(seeded, prompt_ids=ids, text=question.text, name=name)

    def depends_on(self) -> dict[str, Any]:
        """What the records depend on, flat: neither on lanes and widths, which decide how fast they come, nor on how
        many prompts are chosen."""
        request = flat(self.template.recorded())
        del request["prompt_ids"]
        about = {
            "system": self.system,
            "tags": self.model.tokenizer.tags.base,
            **self.model.recorded(),
            "positions": str(self.model.positions),
            **{f"request.{name}": value for name, value in request.items()},
            "rows": self.config.rows,
            "slots": self.config.slots,
        }
        if self.config.draft != "off":  # which changes steps
            about["draft"] = self.config.draft
        if self.config.draft == "drafter":
            about["drafter"] = fingerprint_of_params(self.model.params["drafter"])
        if self.config.forks != "eager":  # likewise, and which keys a product adds first
            about["forks"] = self.config.forks
        if self.is_rival:
            about |= {f"skeleton.{name}": value for name, value in vars(self.options).items()}
            about["skeleton.wording"] = fingerprints.of_texts([WORDING])
        return about

    def measures(self, question: Question) -> bool:
        """Whether the answer is compared with what is written without the grammar mask."""
        return self.system == "model" and question.number < self.unmasked

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[Question, SystemAnswer]]:
        """Answer the questions; each comes when it is finished."""
        requests = [self.request(question) for question in questions]
        if self.is_rival:
            for question, request in zip(questions, requests, strict=True):
                yield question, self._rival(question, request)
            return
        for item in stream(self.model, requests, self.config, round_steps=256):
            if isinstance(item, Result):
                question = questions[item.request]
                yield question, self._record(question, requests[item.request], item, self.measures(question))

    def alone(self, question: Question) -> SystemAnswer:
        """Answer one question as if nobody else asked."""
        request, config = self.request(question), dataclasses.replace(self.config, lanes=1)
        if self.is_rival:
            return self._rival(question, request)
        [result] = generate(self.model, [request], config)
        return self._record(question, request, result, measured=False)

    def _rival(self, question: Question, request: Request) -> SystemAnswer:
        shared = self.system == "skeleton"
        return answer(self.model, question, request, self.options, self.config, shared)

    def _record(self, question: Question, request: Request, result: Result, measured: bool) -> SystemAnswer:
        """`measured`: with what the model would write without the grammar mask."""
        unmasked = None
        if measured:
            unmasked = not well_formed(self.model, result.trace, self.config, request.rules)
        record = answer_of(question, request.rules.seed, result, self.model.tokenizer, unmasked)
        if self.system == "apar":  # whose forks promise nothing
            chunks = tuple(dataclasses.replace(chunk, promised=0) for chunk in record.chunks)
            record = dataclasses.replace(record, chunks=chunks)
        return record


def as_named(task: Task) -> Task:
    """The task of an ablation or of APAR, with what its name says; other tasks as they are."""
    match task.system:
        case "apar":  # forks have no topic, and nothing joins
            forks = task.template.with_rules(max_topic_tokens=0, max_topic_words=0, distinct_topics=False)
            return dataclasses.replace(task, template=dataclasses.replace(forks, syncs=False))
        case "no_topics":
            return dataclasses.replace(task, template=task.template.with_rules(max_topic_tokens=0))
        case "no_syncs":
            return dataclasses.replace(task, template=dataclasses.replace(task.template, syncs=False))
        case "constant" | "shared_start":
            other = dataclasses.replace(task.model, positions=Positions(task.system))
            return dataclasses.replace(task, model=other)
    return task


Compute = Callable[[Task, Sequence[Question]], Iterator[SystemAnswer]]


def decoded(task: Task, questions: Sequence[Question]) -> Iterator[SystemAnswer]:
    """The answers by this process, each when it is finished."""
    return (record for _, record in task.answers(questions))


def answer_all(
    task: Task, questions: Sequence[Question], workdir: Path, compute: Compute = decoded
) -> list[SystemAnswer]:
    """Every question's answer, in order, then the second turns'; those of an earlier run are read.

    `compute` yields answers as they are finished. Of several processes, each answers a share; the first one keeps and
    returns all, the others return nothing.
    """
    path = workdir / f"answers-{task.system}.jsonl"
    with records.opened(path, task.depends_on(), SystemAnswer, _key, OTHER_WORKDIR) as done:
        first = _turn(task, questions, done, compute)
        texts = processes.told([answer.text for answer in first], list[str])
        later = [
            question.next_turn(text)
            for question, text in zip(questions, texts, strict=True)
            if question.follow_up is not None
        ]
        return first + _turn(task, later, done, compute)


def _key(asked: Question | SystemAnswer) -> tuple[str, int]:
    return asked.prompts, asked.number


def _turn(
    task: Task, questions: Sequence[Question], done: Records[SystemAnswer], compute: Compute
) -> list[SystemAnswer]:
    """The answers to the questions; what is not known yet is computed and kept."""
    for question in questions:
        record = done.known.get(_key(question))
        if record is not None and record.prompt != question.text:
            place = f"{done.path}: answer {question.number} of {question.prompts}"
            raise PastaError(f"{place}: to another prompt, so the set has changed; {OTHER_WORKDIR}")
        if record is not None and record.malformed_unmasked is None and task.measures(question):
            del done.known[_key(question)]  # of a run that measured fewer: answered again, and measured
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    slots = slots_for(task.model, [task.request(question) for question in questions], task.config)
    if not task.is_rival:
        task = dataclasses.replace(task, config=dataclasses.replace(task.config, slots=slots))
    missing = done.missing([*map(_key, questions)])
    found = len(questions) - len(missing)
    if found and processes.is_first():
        say(f"{SHOWN[task.system]}: {found} of {len(questions)} answers are there")
    if missing:
        with records.progress(f"{SHOWN[task.system]}: answers", len(questions), missing) as progress:
            for _ in done.fill(missing, lambda numbers: compute(task, [questions[number] for number in numbers])):
                progress.add()
    return [done.known[_key(question)] for question in questions] if processes.is_first() else []
