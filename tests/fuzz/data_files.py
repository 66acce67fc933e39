"""Doors of data: sources, records of annotation runs, datasets, traces, prompts, programs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pasta_jax.annotate.run import PROGRESS, collect_answers
from pasta_jax.annotate.verify import verify
from pasta_jax.answer import prompts
from pasta_jax.benchmark.programs import read_programs
from pasta_jax.data import builder, records, sources
from pasta_jax.data.pairs import Pair, Unreadable
from pasta_jax.decode import trace_file
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions
from pasta_jax.llm.cache import Cache, CachedAnswer, Prices, total_cost
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.view.page import page
from tests.fuzz.mutations import Mutator, Unchanged
from tests.fuzz.run import Read
from tests.helpers.traces import random_traces

TOKENIZER = toy_tokenizer()
PAIRS = [Pair(f"id{n}", "", p.instruction, p.answer, "toy") for n, p in enumerate(problems(1, 0, 12, "small"))]
RECORDS = [
    verify(pair, {"text": problem.annotation}, TOKENIZER, 2048, "toy", "validation" if n % 3 else "train")
    for n, (pair, problem) in enumerate(zip(PAIRS, problems(1, 0, 12, "small"), strict=True))
]
ROWS = [
    {"instruction": "Why is the sky blue?", "input": "", "output": "Because of Rayleigh scattering."},
    {"question": "Why?", "system_prompt": "Be brief.", "response": "Because."},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Yes"}},
]


def sources_of_pairs(folder: Path):
    """JSON lines, a JSON list, a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:2]), folder / "valid.parquet")
    table = (folder / "valid.parquet").read_bytes()

    def attempt(by: Unchanged) -> Read:
        path = folder / by.pick(("a.jsonl", "a.json", "a.json", "a.parquet"))
        content = {
            ".jsonl": lambda: by.lines(ROWS),
            ".json": lambda: by.json(ROWS),
            ".parquet": lambda: by.raw(table),
        }
        path.write_bytes(content[path.suffix]())

        def read() -> None:
            rows = list(sources.read(str(path)))
            limits = sources.Filter((1, 100), (1, 100), drop_duplicates=True, drop_evaluation=False)
            sources.select([row for row in rows if not isinstance(row, Unreadable)], limits)

        return read

    return attempt


def records_of_annotation(folder: Path):
    """records.jsonl, progress.jsonl, and the answers of an endpoint."""
    stored = [json.loads(record.json()) for record in RECORDS]
    about = {"annotator": "toy", "code": "1"}
    answers = [
        {"text": PAIRS[0].response},
        {"program": RECORDS[1].program, "evidence": {"costs": [0.5, None]}},
        {"failure": "no answer", "detail": ""},
        *({"text": problem.annotation} for problem in problems(1, 3, 9, "small")),
    ]
    collect_answers(folder, about, PAIRS, lambda numbers, _: ((n, answers[n]) for n in numbers))
    header, *progress = [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]
    cached = [dataclasses.asdict(CachedAnswer(f"key{n}", "text", n, 2 * n)) for n in range(4)]

    def read_stored() -> None:
        for record in records.read_records(folder / "records.jsonl"):
            Program.parse(record.program).ids(TOKENIZER)
            records.prompt_ids(record, TOKENIZER)
            record.json().encode()

    def read_progress() -> None:
        read = collect_answers(folder, about, PAIRS, lambda numbers, _: ((n, answers[n]) for n in numbers))
        for pair, answer in zip(PAIRS, read, strict=True):
            verify(pair, answer, TOKENIZER, 2048, "toy", "train").json().encode()

    def read_cache() -> None:
        total_cost(folder / "answers.jsonl", Prices(0.5, 0.5)).text()
        Cache(folder / "answers.jsonl").close()

    files = {
        "records.jsonl": (stored, read_stored),
        PROGRESS: ([header, *progress], read_progress),
        "answers.jsonl": (cached, read_cache),
    }

    def attempt(by: Unchanged) -> Read:
        name = by.pick(list(files))
        rows, read = files[name]
        content = by.lines(rows)
        if name == PROGRESS and isinstance(by, Mutator) and by.rng.random() < 0.7:
            content = json.dumps(header, sort_keys=True).encode() + b"\n" + by.lines(progress)
        (folder / name).write_bytes(content)
        return read

    return attempt


def datasets(folder: Path):
    """about.json of a record set, and the files of TFDS below it."""
    builder.write(folder / "set", RECORDS, TOKENIZER)
    about = json.loads((folder / "set/about.json").read_text())
    whole = {path: path.read_bytes() for path in (folder / "set").rglob("*") if path.is_file()}
    others = [path for path in whole if path.name != "about.json"]

    def attempt(by: Unchanged) -> Read:
        for path, content in whole.items():
            path.write_bytes(content)
        if isinstance(by, Mutator):
            if by.rng.random() < 0.8:
                (folder / "set/about.json").write_bytes(by.json(about))
            else:
                path = by.pick(others)
                is_json = path.suffix == ".json"
                path.write_bytes(by.json(json.loads(whole[path])) if is_json else by.raw(whole[path]))

        def read() -> None:
            positions = Positions(by.pick(("predicted", "constant")))
            examples = builder.Examples(folder / "set", "train", TOKENIZER, by.pick((True, False)), positions)
            assert all(len(example) for example in examples)

        return read

    return attempt


def traces(folder: Path):
    """Trace files."""
    valid = [json.loads(trace_file.to_json(trace)) for trace, *_ in random_traces(6)]
    path = folder / "trace.json"

    def attempt(by: Unchanged) -> Read:
        path.write_bytes(by.json(by.pick(valid)))
        return lambda: page(trace_file.load(path), None)

    return attempt


def prompts_files(folder: Path):
    """Files of prompts, of a baseline's answers, of programs."""
    rows = [{"prompt": f"Question {n}?", "dataset": "set"} if n % 2 else {"instruction": f"Say {n}."} for n in range(4)]
    baseline = [{"prompt": f"Question {n}?", "sequential": True, "tokens": n} for n in range(3)]
    asked = [prompts.Prompt("", row["prompt"]) for row in baseline]
    program = next(record.program for record in RECORDS if record.forks)
    path, programs = folder / "a.jsonl", [{"program": record.program} for record in RECORDS[:3]]

    def attempt(by: Unchanged) -> Read:
        kind, read = by.pick(
            (
                (rows, lambda: prompts.read_prompts_file(path)),
                (baseline, lambda: prompts.read_baseline(path, asked)),
                (programs, lambda: read_programs(path)),
                (None, lambda: prompts.read_program(folder / "program.txt")),
            )
        )
        if kind is None:
            text = program.encode()
            (folder / "program.txt").write_bytes(_mixed(by, text) if isinstance(by, Mutator) else text)
        elif isinstance(by, Mutator) and kind is rows and by.rng.random() < 0.3:
            path.write_bytes(by.json(rows))
        else:
            path.write_bytes(by.lines(kind))
        return read

    return attempt


def _mixed(by: Mutator, text: bytes) -> bytes:
    """A program with tags in other places, many times, or damaged."""
    tags = (b"<promise topic='a' tokens=1 />", b"<async>", b"</async>", b"<sync/>", b"<", b"<\\async>", b"tokens=99")
    for _ in range(by.pick((1, 2, 5))):
        at = by.rng.randrange(len(text) + 1)
        text = text[:at] + by.pick(tags) * by.pick((1, 1, 1, 2, 3000)) + text[at:]
    return text if by.rng.random() < 0.5 else by.raw(text)


DOORS: tuple[Any, ...] = (sources_of_pairs, records_of_annotation, datasets, traces, prompts_files)
