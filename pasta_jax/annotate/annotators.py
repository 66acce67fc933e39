"""The annotators: by form, by a language model behind an API, by likelihood, a model's own answers, the toy task's."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pasta_jax.annotate import cues, endpoint, hiding, likelihood, outline, own, prompt, structural
from pasta_jax.annotate.run import Annotate, Annotation, Unanswered
from pasta_jax.annotate.settings import EndpointSettings, ToyProblems, Weighing
from pasta_jax.annotate.verify import NOT_ENCODABLE
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import messages, read_records
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.lang import words
from pasta_jax.lang.program import Program
from pasta_jax.progress import Progress
from pasta_jax.tokenizers.tokenizer import Tokenizer, tokenizer_fingerprint
from pasta_jax.toy.task import HELD_OUT, Problem, problems
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load

UNWEIGHED = "the model must be able to weigh the answer"


@dataclasses.dataclass(frozen=True)
class Annotator:
    """A way of annotating pairs, and everything that its answers depend on."""

    about: dict[str, object]
    annotate: Annotate


def by_form(pairs: Sequence[Pair]) -> Annotator:
    """List items, headed sections, parallel paragraphs: no model, no network."""

    about = {"annotator": "structure", "code": fingerprints.of_code(structural, outline, cues, words)}
    return Annotator(about, _each(pairs, lambda pair: {"text": structural.annotate(pair.instruction, pair.response)}))


def toy_problems(source: ToyProblems) -> list[Problem]:
    """The problems; if several have the same instruction, the first of them."""
    if source.seed == HELD_OUT:
        raise PastaError(f"config.toy.seed {HELD_OUT}: its problems are held out; use another seed")
    drawn = problems(source.seed, 0, source.count, source.level)
    return list({problem.instruction: problem for problem in drawn[::-1]}.values())[::-1]


def by_toy_task(pairs: Sequence[Pair], source: ToyProblems) -> Annotator:
    """The toy task's own annotations."""
    annotations = {problem.instruction: problem.annotation for problem in toy_problems(source)}
    annotate = _each(pairs, lambda pair: {"text": annotations[pair.instruction]})
    return Annotator({"annotator": "toy", **dataclasses.asdict(source)}, annotate)


def by_own_answers(pairs: Sequence[Pair], answers: str, tokenizer: Tokenizer) -> Annotator:
    """A model's own answers, with promises as long as their chunks."""
    rows = own.read_answers(answers)
    about = {"annotator": "own", "code": fingerprints.of_code(own)}
    about |= {"answers": fingerprints.of_texts(own.fingerprint_fields(rows))}
    about |= {"tokenizer": tokenizer_fingerprint(tokenizer)}
    return Annotator(about, _each(pairs, lambda pair: own.annotation(rows[pair.id], tokenizer)))


def _each(pairs: Sequence[Pair], annotation: Callable[[Pair], Annotation]) -> Annotate:
    """Annotate one pair after the other."""
    return lambda numbers, _: ((number, annotation(pairs[number])) for number in numbers)


def by_language_model(
    pairs: Sequence[Pair], tokenizer: Tokenizer, settings: EndpointSettings, cache: Path
) -> Annotator:
    """A language model behind an API; its answers are cached in the file `cache` and paid for once."""

    def annotate(numbers: list[int], progress: Progress) -> Iterator[tuple[int, Annotation | Unanswered]]:
        texts = ((pairs[number].instruction, pairs[number].response) for number in numbers)
        for index, answer, usage in endpoint.annotate_all(texts, settings, cache, check):
            progress.note = usage.text()
            yield numbers[index], answer

    def check(text: str) -> Program:
        return Program.from_annotation(text, tokenizer)

    code = fingerprints.of_code(endpoint, prompt)
    about = {"annotator": settings.annotator, "code": code, "attempts": settings.attempts}
    about |= {"tokenizer": tokenizer_fingerprint(tokenizer)} | settings.endpoint.identity()
    return Annotator(about, annotate)


def by_likelihood(pairs: Sequence[Pair], records: Path, source: ModelSource, weighing: Weighing) -> Annotator:
    """An earlier run's chunks, weighed by a model: a chunk that later text needs is joined first or left to main."""
    programs = {record.id: record.program for record in read_records(records)}

    def annotate(numbers: list[int], _: Progress) -> Iterator[tuple[int, Annotation]]:
        model = load(source)
        for number in numbers:
            pair = pairs[number]
            try:  # another tokenizer may have counted the records
                model.tokenizer.chat(messages(pair)), model.tokenizer.encode(pair.response)
            except PastaError as error:
                yield number, {"failure": NOT_ENCODABLE, "detail": str(error)}
                continue
            proposal = Program.parse(programs[pair.id])
            try:
                program, evidence = likelihood.prune(model, messages(pair), proposal, weighing)
            except PastaError as error:  # line by line, a text may have more ids than weighing.lengths allow
                yield number, {"failure": UNWEIGHED, "detail": str(error), "refused": proposal.render()}
                continue
            yield number, {"program": program.render(), "evidence": evidence}

    about = dataclasses.asdict(weighing) | {"lengths": list(weighing.lengths), "model": dataclasses.asdict(source)}
    about |= {"records": fingerprints.of_texts(programs[pair.id] for pair in pairs)}
    about |= {"annotator": "likelihood", "code": fingerprints.of_code(likelihood, hiding, words)}
    return Annotator(about, annotate)
