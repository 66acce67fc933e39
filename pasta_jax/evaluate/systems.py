"""The answers of one system of an evaluation, kept as they are finished: a run that was killed goes on where it was.

    WORKDIR/answers-NAME.jsonl   first what the answers depend on, then one record per answer

Answers that depend on something else are refused, and what differs is named.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from pasta_jax.decode.generate import DecodeConfig, Request, Result, generate, slots_for, stream
from pasta_jax.decode.probe import well_formed
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.answers import Answer, answer_of, answer_of_outcome
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.rivals.answer import Options, answer
from pasta_jax.evaluate.rivals.skeleton import WORDING
from pasta_jax.files import atomic, fingerprints
from pasta_jax.lang.structure import Positions
from pasta_jax.progress import Progress, say
from pasta_jax.runs import processes
from pasta_jax.weights.model import Model

Ablation = Literal["no_topics", "no_syncs", "constant", "shared_start"]
System = Literal["model", "baseline", "skeleton", "unshared", "apar", Ablation]
SHOWN = {
    "model": "PASTA",
    "baseline": "sequential",
    "skeleton": "Skeleton-of-Thought",
    "unshared": "unshared points",
    "apar": "APAR",
    "no_topics": "without topics",
    "no_syncs": "without sync",
    "constant": "constant positions",
    "shared_start": "shared start",
}


@dataclasses.dataclass(frozen=True)
class Task:
    """What one system is to answer."""

    system: System
    model: Model
    template: Request  # without a prompt
    config: DecodeConfig
    options: Options  # of Skeleton-of-Thought
    unmasked: int  # answers of each set to compare with what the model would write without the grammar mask

    @property
    def is_rival(self) -> bool:
        """Whether it answers in several requests."""
        return self.system in ("skeleton", "unshared")

    def request(self, question: Question) -> Request:
        """A question's request. The seed of prompt n of a set is the template's plus n."""
        seed = (self.template.sampling.seed + question.number) % 2**32
        return dataclasses.replace(
            self.template,
            prompt_ids=tuple(self.model.tokenizer.chat(question.messages)),
            sampling=dataclasses.replace(self.template.sampling, seed=seed),
            text=question.text,
            name=f"{question.prompts}: prompt {question.number}",
        )

    def depends_on(self) -> dict[str, Any]:
        """What the records depend on, flat: neither on lanes and widths, which decide how fast they come, nor on how
        many prompts are chosen."""
        request = {f"request.{name}": value for name, value in _flat(self.template).items() if name != "prompt_ids"}
        about = {
            "system": self.system,
            "tags": self.model.tokenizer.tags.base,
            "model": self.model.identity,
            "positions": str(self.model.positions),
            **request,
            "rows": self.config.rows,
            "slots": self.config.slots,
        }
        if self.is_rival:
            about |= {f"skeleton.{name}": value for name, value in vars(self.options).items()}
            about["skeleton.wording"] = fingerprints.of_texts([WORDING])
        return about

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer the questions; each comes when it is finished."""
        requests = [self.request(question) for question in questions]
        if self.is_rival:
            for question, request in zip(questions, requests, strict=True):
                yield question, self._rival(question, request)
            return
        for item in stream(self.model, requests, self.config, round_steps=256):
            if isinstance(item, Result):
                question = questions[item.request]
                measured = self.system == "model" and question.number < self.unmasked
                yield question, self._record(question, requests[item.request], item, measured)

    def alone(self, question: Question) -> Answer:
        """Answer one question as if nobody else asked."""
        request, config = self.request(question), dataclasses.replace(self.config, lanes=1)
        if self.is_rival:
            return self._rival(question, request)
        [result] = generate(self.model, [request], config)
        return self._record(question, request, result, measured=False)

    def _rival(self, question: Question, request: Request) -> Answer:
        outcome = answer(
            self.model, question.messages, request, self.options, self.config, shared=self.system == "skeleton"
        )
        return answer_of_outcome(outcome, question.prompts, question.number, question.text, request.sampling.seed)

    def _record(self, question: Question, request: Request, result: Result, measured: bool) -> Answer:
        """`measured`: with what the model would write without the grammar mask."""
        unmasked = None
        if measured:
            unmasked = not well_formed(self.model, result.trace, self.config, request.sampling)
        number, seed, tokenizer = question.number, request.sampling.seed, self.model.tokenizer
        record = answer_of(result, question.prompts, number, question.text, seed, tokenizer, unmasked)
        if self.system == "apar":  # whose forks promise nothing
            chunks = tuple(dataclasses.replace(chunk, promised=0) for chunk in record.chunks)
            record = dataclasses.replace(record, chunks=chunks)
        return record


def as_named(task: Task) -> Task:
    """The task of an ablation or of APAR, with what its name says; other tasks as they are."""
    match task.system:
        case "apar":  # forks have no topic, and nothing joins
            rules = {"max_topic_tokens": 0, "max_topic_words": 0, "distinct_topics": False, "syncs": False}
            return dataclasses.replace(task, template=dataclasses.replace(task.template, **rules))
        case "no_topics":
            return dataclasses.replace(task, template=dataclasses.replace(task.template, max_topic_tokens=0))
        case "no_syncs":
            return dataclasses.replace(task, template=dataclasses.replace(task.template, syncs=False))
        case "constant" | "shared_start":
            other = dataclasses.replace(task.model, positions=Positions(task.system))
            return dataclasses.replace(task, model=other)
    return task


Compute = Callable[[Task, Sequence[Question]], Iterator[Answer]]


def by_processes(task: Task, questions: Sequence[Question]) -> Iterator[Answer]:
    """The answers to the first process's questions: in that process all of them, in others those of their share."""
    text = processes.told(msgspec.json.encode((task.config.slots, questions)).decode())
    slots, missing = msgspec.json.decode(text, type=tuple[int, tuple[Question, ...]])
    task = dataclasses.replace(task, config=dataclasses.replace(task.config, slots=slots))
    share = processes.share(missing)
    own = (record for _, record in task.answers(share)) if share else iter(())
    return processes.gathered(own, len(missing), Answer)


def answer_all(
    task: Task, questions: Sequence[Question], workdir: Path, compute: Compute = by_processes
) -> list[Answer]:
    """Every question's answer, in order, then the second turns'; those of an earlier run are read.

    `compute` yields answers as they are finished. Of several processes, each answers a share; the first one keeps and
    returns all, the others return nothing.
    """
    if not processes.is_first():
        for _turn in range(2):
            list(compute(task, ()))
        return []
    about, path = task.depends_on(), workdir / f"answers-{task.system}.jsonl"
    with atomic.JsonLines(path, exclusive=True) as lines:
        if lines.lines:
            refuse_other(path, lines.lines[0], about)
        else:
            lines.append(about)
        known = read_answers(lines.lines[1:], path)
        first = _answer_missing(task, questions, known, lines, path, compute)
        later = [
            question.next_turn(earlier.text)
            for question, earlier in zip(questions, first, strict=True)
            if question.follow_up is not None
        ]
        return first + _answer_missing(task, later, known, lines, path, compute)


def _answer_missing(
    task: Task,
    questions: Sequence[Question],
    known: dict[tuple[str, int], Answer],
    lines: atomic.JsonLines,
    path: Path,
    compute: Compute,
) -> list[Answer]:
    """Answer what is not known yet, and keep it."""
    for question in questions:
        record = known.get((question.prompts, question.number))
        if record is not None and record.prompt != question.text:
            place = f"{path}: answer {question.number} of {question.prompts}"
            raise PastaError(f"{place}: to another prompt, so the set has changed; choose another --workdir")
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    slots = slots_for(task.model, [task.request(question) for question in questions], task.config)
    if not task.is_rival:
        task = dataclasses.replace(task, config=dataclasses.replace(task.config, slots=slots))
    missing = [question for question in questions if (question.prompts, question.number) not in known]
    found = len(questions) - len(missing)
    if found:
        say(f"{SHOWN[task.system]}: {found} of {len(questions)} answers are there")
    records = compute(task, missing)
    if missing:
        with Progress(f"{SHOWN[task.system]}: answers", len(questions), found) as progress:
            for record in records:
                lines.append(dataclasses.asdict(record))
                known[record.prompts, record.number] = record
                progress.add()
    return [known[question.prompts, question.number] for question in questions]


def refuse_other(path: Path, line: bytes, about: Mapping[str, Any]) -> None:
    """Refuse records that depend on other values, and name the first that differs."""
    if line + b"\n" == atomic.json_line(about):
        return
    try:
        before = msgspec.json.decode(line, type=dict[str, Any])
        now = msgspec.json.decode(atomic.json_line(about), type=dict[str, Any])
        key = next(key for key in (*now, *before) if before.get(key) != now.get(key))
    except (msgspec.DecodeError, StopIteration, RecursionError):
        raise PastaError(f"{path}: not the answers of an evaluation; choose another --workdir") from None
    raise PastaError(
        f"{path}: begun with {key} {before.get(key)}, now {now.get(key)}; change it back, or choose another --workdir"
    )


def read_answers(lines: Sequence[bytes], path: Path) -> dict[tuple[str, int], Answer]:
    """The answers in a file, by set and number."""
    answers = {}
    for number, line in enumerate(lines, start=2):
        try:
            record = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PastaError(f"{path}: line {number}: {error}; delete that line to have it answered again") from None
        answers[record.prompts, record.number] = record
    return answers


def _flat(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; those of a dataclass within it by their path."""
    flat = {}
    for name, part in vars(value).items():
        inner = _flat(part) if dataclasses.is_dataclass(part) else None
        flat |= {name: part} if inner is None else {f"{name}.{key}": one for key, one in inner.items()}
    return flat
