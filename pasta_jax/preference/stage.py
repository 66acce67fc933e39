"""What all steps of the preference stage share: settings, models, prompts, the judge, and the folder of artifacts."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from pasta_jax.answer.prompts import read_prompts_file
from pasta_jax.data import repetition
from pasta_jax.data.batches import Layout
from pasta_jax.data.pairs import VALIDATION_PERCENT, Pair, split_of
from pasta_jax.data.records import read_records
from pasta_jax.data.sources import Filter, read, refuse_for_training, select
from pasta_jax.decode.generate import positions_for
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic, fingerprints
from pasta_jax.files.remote import absolute, path_of
from pasta_jax.judges import checked, choice, llm, minilm, offline, reward, rules
from pasta_jax.judges import judge as verdicts
from pasta_jax.judges.checked import CheckedJudge
from pasta_jax.judges.choice import judge_of
from pasta_jax.judges.judge import Entry, Judge
from pasta_jax.judges.llm import LLMJudge
from pasta_jax.judges.offline import toy_grader
from pasta_jax.judges.rules import rules_of
from pasta_jax.lang import words
from pasta_jax.lang.program import Chunk, Program
from pasta_jax.llm.client import Client
from pasta_jax.models.sharding import decoding_mesh, sharing_rows, training_mesh
from pasta_jax.preference.artifacts import Artifacts
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.settings import PreferenceSettings, PromptSettings
from pasta_jax.progress import say
from pasta_jax.toy import task
from pasta_jax.toy.level import refuse_other_level
from pasta_jax.toy.task import HELD_OUT, Problem, problems
from pasta_jax.train.settings import refuse_uneven_parts
from pasta_jax.train.state import Params
from pasta_jax.train.trainable import Trainable, merged, refuse_narrow
from pasta_jax.train.trainable import load as load_trainable
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import load

WAVES = 8  # verdicts of a block for each request at a time: few wait for the block's last one


@dataclasses.dataclass(frozen=True)
class Stage:
    """What all steps share."""

    settings: PreferenceSettings
    artifacts: Artifacts
    trainable: Trainable  # Pasta-SFT, divided into what is trained and what stays frozen
    sft: Model  # Pasta-SFT as a whole: the reference of every round
    baseline: Model  # Baseline-SFT: the same data without tags
    prompts: tuple[Pair, ...]
    held_out: tuple[Pair, ...]
    problems: Mapping[str, Problem]  # of the toy task, by instruction; empty for other prompts
    judge: Judge


@dataclasses.dataclass(frozen=True)
class RoundModel:
    """The model before the first round, or after one of them."""

    round: int  # 0: Pasta-SFT
    params: Params  # what is trained: all parameters, or an adapter
    fingerprint: str  # of the parameters; for round 0, of Pasta-SFT as a whole

    @property
    def kind(self) -> Literal["sft", "round"]:
        return "round" if self.round else "sft"


def open_stage(settings: PreferenceSettings, workdir: Path) -> Stage:
    """Check the settings, and load models and prompts."""
    for name, source in (("model", settings.model), ("baseline", settings.baseline)):
        if not source.path and not source.preset:
            raise PastaError(f"config.{name}.path: empty; set it to the folder model/ of a run of launch.sft")
    chosen = settings.prompts
    if sum(map(bool, (chosen.toy, chosen.source, chosen.records, chosen.file))) != 1:
        raise PastaError(
            "config.prompts: set one of toy (a level of the toy task), source (where pairs come from), records (the "
            "folder that launch.annotate wrote) and file (JSON lines with prompt)"
        )
    if settings.decoding.draft == "drafter":
        raise PastaError("config.decoding.draft=drafter: a model in training has none; set it to lookup or off")
    mesh = training_mesh(settings.mesh)
    refuse_uneven_parts(settings.train, settings.train.rows, sharing_rows(mesh))  # not after hours of sampling
    Layout(settings.train.lengths, settings.train.rows, packed=False, too_long="drop")
    if (settings.judge.kind == "toy") != bool(settings.prompts.toy):
        raise PastaError("config.judge.kind: toy judges the toy task's prompts, and no others")
    if settings.prompts.toy:
        refuse_other_level(settings.prompts.toy, "prompts.toy", model=settings.model, baseline=settings.baseline)
    artifacts = Artifacts(path_of(settings.artifacts) if settings.artifacts else workdir / "artifacts")
    try:
        atomic.check_writable(artifacts.folder)
    except OSError as error:
        raise PastaError(f"{artifacts.folder}: {error.strerror}; set --config.artifacts to a writable folder") from None
    trainable = load_trainable(settings.model, settings.adapter, settings.train.seed, mesh)
    sft = trainable.model
    refuse_narrow(sft)  # before the baseline is sampled
    if settings.adapter.rank and settings.model.adapter:  # without an adapter file, the new one changes nothing yet
        sft = merged(trainable.model, trainable.params, trainable.frozen)
    positions_for(sft)  # refuses one whose positions can't be decoded with
    baseline = load(settings.baseline, mesh=decoding_mesh(settings.mesh))
    prompts, held_out, toy_problems = read_prompts(settings)
    run = number_of(workdir) if settings.artifacts else 0
    judge = judge_for(settings, toy_problems, artifacts.folder, run)
    return Stage(settings, artifacts, trainable, sft, baseline, prompts, held_out, toy_problems, judge)


def read_prompts(settings: PreferenceSettings) -> tuple[tuple[Pair, ...], tuple[Pair, ...], dict[str, Problem]]:
    """(prompts to sample from, held-out prompts, problems of the toy task by instruction)."""
    chosen, count = settings.prompts, settings.evaluate.count
    if chosen.toy:
        if chosen.toy_seed == HELD_OUT:
            raise PastaError(f"config.prompts.toy_seed {HELD_OUT}: its problems are held out; use another seed")
        trained = problems(chosen.toy_seed, 0, chosen.count, chosen.toy)
        held_out = problems(HELD_OUT, 0, count, chosen.toy)
        by_instruction = {problem.instruction: problem for problem in (*trained, *held_out)}
        return tuple(map(toy_pair, trained)), tuple(map(toy_pair, held_out)), by_instruction
    by_split = {"train": [], "validation": []}
    for split, pair in pairs_of(chosen):
        by_split[split].append(pair)
    response_words = (0, 0) if chosen.file else chosen.response_words
    limits = Filter(chosen.prompt_words, response_words, True, chosen.drop_evaluation)
    (train, left_out), (validation, others) = (select(by_split[split], limits) for split in ("train", "validation"))
    name = chosen.records or chosen.file or chosen.source
    if len(validation) < count or not train:
        raise PastaError(
            f"{name}: has {len(train)} usable pairs to train on and {len(validation)} to validate, and {count} are "
            "held out; lower config.evaluate.count, or use more data"
        )
    reasons = Counter(reason for _, reason in left_out + others)
    say(f"{name}: {len(train)} and {len(validation)} pairs, left out: {dict(reasons)}")
    if count and chosen.file:
        say(f"{name}: {count} prompts are held out of this round; earlier training may have had them")
    return tuple(train[: chosen.count]), tuple(sorted(validation, key=lambda pair: pair.id)[:count]), {}


def pairs_of(prompts: PromptSettings) -> Iterator[tuple[str, Pair]]:
    """(split, pair) of a source, an annotation run or a file. Supervised training saw nothing of the validation split.

    Prompts of a file have no answer.
    """
    if prompts.file:
        path = Path(prompts.file)
        for one in read_prompts_file(path):
            place = path.name + one.place.removeprefix(str(path))  # the same wherever the file is
            pair = Pair.of("", one.text, "", path.name, place)
            yield split_of(pair, VALIDATION_PERCENT), pair
        return
    if not prompts.records:
        refuse_for_training([prompts.source])
        yield from (
            (split_of(pair, VALIDATION_PERCENT), pair) for pair in read(prompts.source) if isinstance(pair, Pair)
        )
        return
    given = path_of(prompts.records)
    for record in read_records(given if given.suffix == ".jsonl" else given / "records.jsonl"):
        texts = record.system, record.instruction, record.response
        yield record.split, Pair(record.id, *texts, record.source, record.origin)


def toy_pair(problem: Problem) -> Pair:
    """A problem of the toy task with its correct answer."""
    return Pair.of("", problem.instruction, problem.answer, "toy")


def number_of(workdir: Path) -> int:
    """A number that only this run has of those that share artifacts."""
    return int(fingerprints.of_texts([str(absolute(workdir))]), 16)


def judge_for(settings: PreferenceSettings, toy_problems: Mapping[str, Problem], folder: Path, run: int = 0) -> Judge:
    """The judge that the settings name; a language model's verdicts are cached in `folder`, those of a run apart."""
    judge = settings.judge
    match judge.kind:
        case "toy":
            return toy_grader(toy_problems)
        case "llm":
            return LLMJudge(Client(judge.endpoint, folder / "judge_cache.jsonl", run=run), judge.asks)
        case _:
            return judge_of(judge.kind, judge, settings.prompts.source, judge.scale, "config.judge")


def judge_inputs(settings: PreferenceSettings) -> dict[str, Any]:
    """What verdicts depend on, apart from the texts."""
    judge = settings.judge
    inputs: dict[str, Any] = {"kind": judge.kind, "scale": judge.scale, "asks": judge.asks}
    counted = repetition, words, task  # what judges count by
    inputs["code"] = fingerprints.of_code(checked, choice, verdicts, llm, minilm, offline, reward, rules, *counted)
    match judge.kind:
        case "llm":
            inputs["endpoint"] = judge.endpoint.identity()
        case "reward":
            inputs["reward"] = reward.identity(judge.reward)
        case "checked":
            inputs["checked"] = dataclasses.asdict(judge.checked)
    if judge.kind in ("checked", "rules"):
        asked = rules_of(settings.prompts.source) if settings.prompts.source else {}
        inputs["rules"] = fingerprints.of_data(
            [[question, *map(dataclasses.astuple, of)] for question, of in asked.items()]
        )
    return inputs


def at_a_time(settings: PreferenceSettings) -> int:
    """Prompts whose answers are judged together. A kill loses a block, but no verdict that a language model gave."""
    return WAVES * settings.judge.concurrency if settings.judge.kind == "llm" else 1


def judged(
    stage: Stage, asked: Iterable[tuple[str, Entry, Sequence[Entry]]]
) -> Iterator[tuple[verdicts.Verdict, ...] | None]:
    """The verdicts on each (question, answer, others), in order; a language model is asked for several at a time."""

    def verdicts_of(one: tuple[str, Entry, Sequence[Entry]]) -> tuple[verdicts.Verdict, ...] | None:
        return verdicts.both_orders(stage.judge, *one)

    judge = stage.settings.judge
    if judge.kind != "llm":
        yield from map(verdicts_of, asked)
        return
    with ThreadPoolExecutor(judge.concurrency) as threads:
        try:
            yield from threads.map(verdicts_of, asked)
        except KeyboardInterrupt:  # what is asked already is waited for, but no pauses are
            if isinstance(stage.judge, LLMJudge):
                stage.judge.client.stop()
            raise


def as_judged(stage: Stage, question: str, answers: Sequence[Candidate | str]) -> list[Entry]:
    """Answers as judges read them."""

    def entry(answer: Candidate | str) -> Entry:
        if isinstance(answer, str):
            return Entry(answer)
        # A sequential answer has no chunks, and a baseline may have a tokenizer of its own.
        parts = Program.from_ids(answer.ids, stage.sft.tokenizer).parts if answer.chunks else ()
        return Entry(answer.text, answer.whole, tuple(part.topic for part in parts if isinstance(part, Chunk)))

    entries = [entry(answer) for answer in answers]
    if isinstance(stage.judge, CheckedJudge):
        stage.judge.prepare(question, entries)  # all log-probabilities together
    return entries
