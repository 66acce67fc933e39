"""Annotate a dataset: read pairs, annotate them resumably, verify every answer, write records and the dataset."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from pasta_jax.annotate import annotators, own
from pasta_jax.annotate.annotators import Annotator
from pasta_jax.annotate.form import keep
from pasta_jax.annotate.results import RECORDS, Skipped, Summary, write_results
from pasta_jax.annotate.run import Unanswered, collect_answers
from pasta_jax.annotate.settings import (
    AnnotateSettings,
    EndpointSettings,
    FormSettings,
    LikelihoodSettings,
    ToySettings,
)
from pasta_jax.annotate.verify import Refusal, verify
from pasta_jax.data import builder, sources
from pasta_jax.data.pairs import Pair, Unreadable, split_of
from pasta_jax.data.records import read_records
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.remote import path_of
from pasta_jax.files.workdir import claim
from pasta_jax.llm.cache import total_cost
from pasta_jax.progress import doing, say, track
from pasta_jax.runs import processes
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.config_file import read_config
from pasta_jax.weights.load import PACKAGED, tokenizer_file, weights_at
from pasta_jax.weights.settings import ModelSource

ANSWERS = "answers.jsonl"  # what an endpoint answered
DATASET = "dataset"


def run(settings: AnnotateSettings, folder: Path) -> Summary | None:
    """Annotate and verify all pairs and write the results to `folder`; resumes a run that was stopped there.

    Pairs that an endpoint did not answer are counted in the summary; the same call asks for them again. Several
    processes share the annotating; the first one does everything else, and the others return None.
    """
    if isinstance(settings, LikelihoodSettings) and not settings.records:
        raise PastaError("config.records is missing: set the records.jsonl of the run whose chunks to weigh")
    with claim(folder) if processes.is_first() else nullcontext():
        with doing("reading the pairs"):
            pairs, skipped, splits = read_pairs(settings)
        tokenizer = tokenizer_for(settings.model)
        annotator = annotator_for(settings, pairs, tokenizer, folder)
        answers = collect_answers(folder, annotator.about, pairs, annotator.annotate)
        if not processes.is_first():
            return None
        skipped.unanswered.update(answer.reason for answer in answers if isinstance(answer, Unanswered))
        verdicts = [
            verify(pair, answer, tokenizer, settings.max_tokens, settings.annotator, splits[pair.id])
            for pair, answer in track(zip(pairs, answers, strict=True), "verifying", len(pairs))
            if not isinstance(answer, Unanswered)
        ]
        if isinstance(settings, FormSettings | LikelihoodSettings) and settings.form:
            verdicts, left_out = keep(verdicts, settings.form)
            skipped.left_out.extend(left_out)
        source = settings.records or settings.source
        cost = total_cost(folder / ANSWERS, settings.endpoint) if isinstance(settings, EndpointSettings) else None
        summary = write_results(folder, verdicts, skipped, settings.annotator, source, tokenizer.name, cost)
        write_dataset(folder, tokenizer, settings.dataset)
        return summary


def write_dataset(folder: Path, tokenizer: Tokenizer, wanted: bool) -> None:
    """Write the tokenised dataset of a run unless it is current, or say that the one there may be of other records."""
    records, target = read_records(folder / RECORDS), folder / DATASET
    if records and builder.is_current(target, records, tokenizer):
        say(f"{target} is current")
    elif records and wanted:
        builder.write(target, records, tokenizer)
        say(f"wrote {target}")
    elif (target / builder.ABOUT).exists():
        fix = "" if wanted else "; config.dataset=True writes it again"
        say(f"{target} is of an earlier run, perhaps of other records{fix}")


def read_pairs(settings: AnnotateSettings) -> tuple[list[Pair], Skipped, dict[str, str]]:
    """The pairs to annotate, in order, the records that were skipped, and the split of each pair by its id."""
    skipped, splits = Skipped([], [], Counter()), {}
    if settings.records:
        records = read_records(path_of(settings.records))
        pairs = [Pair(r.id, r.system, r.instruction, r.response, r.source, r.origin) for r in records]
        splits = {r.id: r.split for r in records}  # else some that were held out would be trained on
    elif isinstance(settings, ToySettings):
        drawn = annotators.toy_problems(settings.toy)
        pairs = [Pair.of("", problem.instruction, problem.answer, "toy") for problem in drawn]
    else:
        if not settings.source:
            raise PastaError("config.source is missing: set it to a file, or to a name that docs/DATA.md lists")
        names = sources.separated(settings.source)
        sources.refuse_for_training(names)
        rows = [row for name in names for row in sources.read(name, settings.later_turns)]
        limits = sources.Filter(
            settings.prompt_words, settings.response_words, settings.drop_duplicates, settings.drop_evaluation
        )
        pairs, left_out = sources.select([row for row in rows if isinstance(row, Pair)], limits)
        if not pairs:
            raise PastaError(f"{settings.source}: {_why_none(rows, left_out)}")
        unreadable = [row for row in rows if isinstance(row, Unreadable)]
        skipped = Skipped(unreadable, [_left_out(*each) for each in left_out], Counter())
    if settings.annotator == "own":
        pairs = own.corrected(pairs, own.read_answers(settings.source))
    part = first_by_id(pairs, settings.max_pairs)
    ids = {pair.id for pair in part}
    skipped.left_out.extend(_left_out(pair, "beyond max_pairs") for pair in pairs if pair.id not in ids)
    return part, skipped, {pair.id: split_of(pair, settings.validation_percent) for pair in part} | splits


def _why_none(rows: list[Pair | Unreadable], left_out: list[tuple[Pair, str]]) -> str:
    """Why no record of a source is used; the first that can't be read with its place."""
    if not rows:
        return "has no records; write one JSON object per line"
    unreadable = [row for row in rows if isinstance(row, Unreadable)]
    counts = Counter([row.reason for row in unreadable] + [reason for _, reason in left_out])
    reasons = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
    remedy = "widen prompt_words or response_words"
    if unreadable:
        first = ": ".join(filter(None, (unreadable[0].place, unreadable[0].detail)))
        remedy = f"see {first}; docs/DATA.md lists the forms"
    return f"none of its {len(rows)} records is usable ({reasons}); {remedy}"


def _left_out(pair: Pair, reason: str) -> Refusal:
    return Refusal(pair.id, pair.source, pair.origin, reason, "", "")


def first_by_id(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """The pairs whose ids come first: as good as random, and always the same. 0: all."""
    if not count or count >= len(pairs):
        return list(pairs)
    ids = set(sorted(pair.id for pair in pairs)[:count])
    return [pair for pair in pairs if pair.id in ids]


def tokenizer_for(source: ModelSource) -> Tokenizer:
    """A model's tokenizer without its weights, which take longer to load."""
    if source.preset == "toy":
        return toy_tokenizer()
    if not source.path and source.preset not in PACKAGED:
        raise PastaError(f"model {source.preset}: no package ships its tokenizer; set --config.model.path")
    path = weights_at(source.path) if source.path else packages.path(source.preset)
    if path.is_dir():
        read_config(path)  # what can't be trained is refused before annotating
        path = tokenizer_file(path)
    return load_tokenizer(path)


def annotator_for(settings: AnnotateSettings, pairs: Sequence[Pair], tokenizer: Tokenizer, folder: Path) -> Annotator:
    """The annotator that the settings describe."""
    match settings:
        case LikelihoodSettings():
            return annotators.by_likelihood(pairs, path_of(settings.records), settings.model, settings.weighing)
        case EndpointSettings():
            return annotators.by_language_model(pairs, tokenizer, settings, folder / ANSWERS)
        case FormSettings(annotator="own"):
            return annotators.by_own_answers(pairs, settings.source, tokenizer)
        case ToySettings():
            return annotators.by_toy_task(pairs, settings.toy)
        case _:
            return annotators.by_form(pairs)
