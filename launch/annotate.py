"""Annotate a data set and verify every record; go on after any stop; show what came out. See configs/annotate.py."""

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

OUTPUT = flags.DEFINE_string(  # other scripts have one too, and a test process may import both
    "output", None, "folder for records, refusals and summary; the same again goes on", allow_override=True
)
INSPECT = flags.DEFINE_integer("inspect", None, "show so many records of the --output folder, threads in colour")
SEED = flags.DEFINE_integer("seed", 0, "which records --inspect draws")


def main(config: ConfigDict) -> None:
    """Read, annotate, verify, write; or show."""
    if not OUTPUT.value:
        raise PastaError("--output is missing: give a folder for the records")
    folder = Path(OUTPUT.value)
    if INSPECT.value is not None:
        inspect(folder, INSPECT.value, SEED.value)
        return

    from pasta_jax.annotate import run as annotating
    from pasta_jax.annotate.verify import Limits

    annotator = ANNOTATORS.get(config.annotator)
    if annotator is None:
        raise PastaError(f"config.annotator {config.annotator!r}: choose one of {', '.join(ANNOTATORS)}")
    pairs, taken = read_pairs(config)
    tokenizer = tokenizer_of(config)
    about, annotate, judge = annotator(config, pairs, tokenizer, folder)
    answers = annotating.run(folder, about, pairs, annotate, Progress())
    limits = Limits(config.max_tokens)
    judged = [judge(pair, answer, limits) for pair, answer in zip(pairs, answers, strict=True)]
    about = {"annotator": config.annotator, "source": config.records or config.source, "tokenizer": tokenizer.name}
    tell(annotating.write_results(folder, judged, taken, about), folder)
    if config.dataset:
        build(folder, tokenizer)


def build(folder: Path, tokenizer) -> None:
    """The tokenised data set, anew where what it is made from has changed."""
    from pasta_jax.data import builder
    from pasta_jax.data.records import read_records

    records, target = read_records(folder / "records.jsonl"), folder / "dataset"
    if not records:
        return
    if not builder.is_current(target, records, tokenizer):
        print(f"writing {target}", file=sys.stderr, flush=True)
        builder.write(target, records, tokenizer)
    print(f"tokenised in {target}")


def read_pairs(config: ConfigDict):
    """What is to be annotated, in order, and what was left out."""
    from collections import Counter

    from pasta_jax.annotate.run import Taken
    from pasta_jax.data import sources
    from pasta_jax.data.pairs import Bad, Pair

    if config.records:
        from pasta_jax.data.records import read_records

        records = read_records(Path(config.records))
        pairs = [Pair(r.id, r.system, r.instruction, r.response, r.source) for r in records]
        return part_of(pairs, config.most, Taken([], Counter()))
    if config.annotator == "toy":
        return part_of(toy_pairs(config), config.most, Taken([], Counter()))
    sources.refuse_for_training([config.source])
    rows = list(sources.read(config.source))
    wanted = sources.Filter(
        tuple(config.prompt_words), tuple(config.response_words), config.drop_duplicates, config.drop_evaluation
    )
    pairs, left_out = sources.select([row for row in rows if isinstance(row, Pair)], wanted)
    if not pairs:
        raise PastaError(f"{config.source}: none of its {len(rows)} records can be used; widen the limits of words")
    return part_of(pairs, config.most, Taken([row for row in rows if isinstance(row, Bad)], left_out))


def part_of(pairs: list, most: int, taken):
    """The pairs whose ids come first: as if drawn by chance, but always the same. 0: all."""
    if not most or most >= len(pairs):
        return pairs, taken
    kept = set(sorted(pair.id for pair in pairs)[:most])
    part = [pair for pair in pairs if pair.id in kept]
    taken.left_out["not in the part that was asked for"] += len(pairs) - len(part)
    return part, taken


def tokenizer_of(config: ConfigDict):
    """The tokenizer alone: the weights take longer."""
    from pasta_jax.models.tokenizer import load_tokenizer
    from pasta_jax.models.weights import PACKAGED, tokenizer_file

    if config.model.preset == "toy":
        from pasta_jax.data.toy_tokenizer import toy_tokenizer

        return toy_tokenizer()
    if not config.model.path and config.model.preset not in PACKAGED:
        raise PastaError(f"model {config.model.preset}: no package ships its tokenizer; give --config.model.path=...")
    path = Path(config.model.path) if config.model.path else PACKAGED[config.model.preset]()
    return load_tokenizer(tokenizer_file(path) if path.is_dir() else path)


# An annotator gives what its answers depend on, a function from numbers of pairs to answers, and an answer's judge.
Annotator = tuple[dict, Callable[[list[int]], Iterable[tuple[int, dict]]], Callable]


def structure(config: ConfigDict, pairs: list, tokenizer, folder: Path) -> Annotator:
    """By the form of the text alone."""
    from pasta_jax.annotate import cues, outline, structural
    from pasta_jax.fingerprints import of_code as code_fingerprint

    def annotate(left: list[int]) -> Iterator[tuple[int, dict]]:
        for number in left:
            yield number, {"text": structural.annotate(pairs[number].instruction, pairs[number].response)}

    about = {"annotator": "structure", "code": code_fingerprint(structural, outline, cues)}
    return about, annotate, text_judge(config, tokenizer)


def toy(config: ConfigDict, pairs: list, tokenizer, folder: Path) -> Annotator:
    """The toy task's own annotation."""
    annotations = {problem.instruction: problem.annotation for problem in toy_problems(config)[::-1]}

    def annotate(left: list[int]) -> Iterator[tuple[int, dict]]:
        for number in left:
            yield number, {"text": annotations[pairs[number].instruction]}

    return {"annotator": "toy", **config.toy.to_dict()}, annotate, text_judge(config, tokenizer)


def toy_problems(config: ConfigDict) -> list:
    from pasta_jax.data.toy import problems

    return problems(config.toy.seed, 0, config.toy.count, config.toy.level)


def toy_pairs(config: ConfigDict) -> list:
    """The first of several equal problems stays."""
    from pasta_jax.data.pairs import Pair, id_of

    first = {problem.instruction: problem.answer for problem in toy_problems(config)[::-1]}
    return [Pair(id_of("", asked, answer), "", asked, answer, "toy") for asked, answer in list(first.items())[::-1]]


def endpoint(config: ConfigDict, pairs: list, tokenizer, folder: Path) -> Annotator:
    """By a language model behind an API; its answers are kept in answers.jsonl and paid for once."""
    from pasta_jax.annotate import endpoint as endpoints
    from pasta_jax.annotate import prompt as annotation_prompt
    from pasta_jax.fingerprints import of_code as code_fingerprint
    from pasta_jax.lang.program import Program
    from pasta_jax.llm import Endpoint

    asked = config.endpoint.to_dict()
    settings = endpoints.Settings(Endpoint(**asked), config.concurrency, config.asks)

    def annotate(left: list[int]) -> Iterator[tuple[int, dict]]:
        texts = ((pairs[number].instruction, pairs[number].response) for number in left)
        said = Spending()
        for index, found in endpoints.annotate_all(
            texts,
            settings,
            folder / "answers.jsonl",
            check=lambda text: Program.from_annotation(text, tokenizer),
            usage=said,
        ):
            failed = isinstance(found, endpoints.Failure)
            yield left[index], {"failure": found.reason, "detail": found.detail} if failed else {"text": found}

    about = {key: asked[key] for key in ("kind", "model", "temperature", "max_tokens")} | {"asks": config.asks}
    code = code_fingerprint(endpoints, annotation_prompt)
    return {"annotator": config.annotator, "code": code, **about}, annotate, text_judge(config, tokenizer)


class Spending:
    """Tells now and then what an endpoint has used."""

    def __init__(self):
        self._next = 0.0

    def __call__(self, usage) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + 30
        print(
            f"asked {usage.asked}, from the cache {usage.cached}, retried {usage.retried}; tokens in "
            f"{usage.tokens_in:,}, out {usage.tokens_out:,}; ${usage.dollars:.2f}",
            file=sys.stderr,
            flush=True,
        )


def likelihood(config: ConfigDict, pairs: list, tokenizer, folder: Path) -> Annotator:
    """An earlier run's chunks, weighed by a model: what the later text can't do without is joined, or left to main."""
    from pasta_jax.annotate import hiding
    from pasta_jax.annotate import likelihood as weighing
    from pasta_jax.data.records import messages, read_records
    from pasta_jax.fingerprints import of_code as code_fingerprint
    from pasta_jax.fingerprints import of_texts as fingerprint
    from pasta_jax.lang.program import Program

    if not config.records:
        raise PastaError(
            "config.records is missing: give the records.jsonl of an earlier run, whose chunks are weighed"
        )
    programs = {record.id: record.program for record in read_records(Path(config.records))}
    asked = config.weighing.to_dict()

    def annotate(left: list[int]) -> Iterator[tuple[int, dict]]:
        from pasta_jax.models.weights import load_model

        cli.announce_device()
        model = load_model(config.model.preset, config.model.path)
        items = ((messages(pairs[n]), Program.parse(programs[pairs[n].id])) for n in left)
        for index, program, evidence in weighing.prune_all(model, items, weighing.Settings(**asked)):
            yield left[index], {"program": program.render(), "evidence": evidence}

    about = asked | {"lengths": list(asked["lengths"])}
    about |= {"records": fingerprint(programs[pair.id] for pair in pairs), "model": config.model.preset}
    about |= {"annotator": "likelihood", "code": code_fingerprint(weighing, hiding)}
    return about, annotate, program_judge(config, tokenizer)


ANNOTATORS = {"structure": structure, "likelihood": likelihood, "openai": endpoint, "gemini": endpoint, "toy": toy}


def text_judge(config: ConfigDict, tokenizer) -> Callable:
    """For answers that are annotated text, or a failure."""
    from pasta_jax.annotate.run import NO_ANSWER
    from pasta_jax.annotate.verify import Refusal, verify
    from pasta_jax.data.pairs import split_of

    def judge(pair, answer: dict, limits):
        if "text" not in answer:
            reason = answer.get("failure") or NO_ANSWER
            return Refusal(pair.id, pair.source, "annotator", reason, answer.get("detail", ""), "")
        split = split_of(pair, config.validation_percent)
        return verify(pair, answer["text"], tokenizer, limits, config.annotator, split)

    return judge


def program_judge(config: ConfigDict, tokenizer) -> Callable:
    """For answers that are programs, with what was measured."""
    from pasta_jax.annotate.verify import verify_program
    from pasta_jax.data.pairs import split_of
    from pasta_jax.lang.program import Program

    def judge(pair, answer: dict, limits):
        split, program = split_of(pair, config.validation_percent), Program.parse(answer["program"])
        return verify_program(pair, program, tokenizer, limits, config.annotator, split, answer["evidence"])

    return judge


class Progress:
    """A bar on a terminal, twenty lines elsewhere."""

    def __init__(self):
        self._bar, self._told = None, -1

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = self._bar or tqdm(total=total, initial=done, desc="annotated", file=sys.stderr)
            self._bar.update(done - self._bar.n)
        elif done * 20 // max(total, 1) > self._told:
            self._told = done * 20 // max(total, 1)
            print(f"annotated {done} of {total}", file=sys.stderr, flush=True)


def tell(summary: dict, folder: Path) -> None:
    """The summary in words."""
    unreadable, refused = (sum(summary[key].values()) for key in ("unreadable", "refused"))
    left_out = sum(summary["left_out"].values())
    print(f"read {summary['read']:,}, unreadable {unreadable:,}, left out {left_out:,}, refused {refused:,}")
    for kind in ("unreadable", "left_out", "refused"):
        for reason, count in summary[kind].items():
            print(f"  {kind.replace('_', ' ')}: {reason}: {count:,}")
    print(f"kept {summary['kept']:,} records in {folder / 'records.jsonl'}")
    if "statistics" in summary:
        found = summary["statistics"]
        print(
            f"with a fork {found['with_fork']:,} ({100 * found['with_fork'] / found['records']:.1f} %), "
            f"theoretical speedup {found['speedup']:.3f} (geometric mean; "
            f"{found['speedup_with_fork']:.3f} where there is a fork)"
        )


def inspect(folder: Path, count: int, seed: int) -> None:
    """Show records drawn by a seed: the question, the answer with its chunks coloured, what was promised."""
    from rich.console import Console

    from pasta_jax.data.records import read_records

    records = read_records(folder / "records.jsonl")
    drawn = random.Random(seed).sample(range(len(records)), min(max(count, 0), len(records)))
    console = Console(highlight=False)
    for number in drawn:
        console.rule(f"record {number + 1} of {len(records)}: {records[number].id}")
        for line in shown(records[number]):
            console.print(line, soft_wrap=True)


def shown(record) -> Iterator:
    """A record for a terminal."""
    from rich.text import Text

    from pasta_jax.lang.program import Chunk, Program, Sync
    from pasta_jax.view.terminal import style_of
    from pasta_jax.view.text import printable

    yield Text(printable(record.instruction), style="bold")
    yield Text()
    answer, chunks = Text(), 0
    for part in Program.parse(record.program).parts:
        match part:
            case Chunk(topic, tens, text):
                chunks += 1
                answer.append(f"[{chunks} {printable(topic)} ~{10 * tens}]", style=f"reverse {style_of(chunks)}")
                answer.append(printable(text), style=style_of(chunks))
            case Sync():
                answer.append("[sync]", style="reverse")
            case _:
                answer.append(printable(part.text))
    yield answer
    yield Text()
    figures = f"{record.plain_tokens} tokens, {record.forks} chunks, critical path {record.critical_path}"
    yield Text(f"{figures}, theoretical speedup {record.speedup:.2f}", style="dim")
    if record.evidence:
        yield Text(f"evidence: {record.evidence}", style="dim")


if __name__ == "__main__":
    cli.run(main, default_config="configs/annotate.py")
