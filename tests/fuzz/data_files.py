"""Doors of data: sources, records of annotation runs, datasets, traces, prompts, programs."""

import dataclasses
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
from pyarrow import parquet

from pasta_jax.annotate.run import PROGRESS, collect_answers
from pasta_jax.annotate.verify import verify
from pasta_jax.answer import prompts
from pasta_jax.benchmark.programs import read_programs
from pasta_jax.data import builder, records, sources
from pasta_jax.data.pairs import Pair, Unreadable
from pasta_jax.files.jsonl import as_line
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions
from pasta_jax.llm.cache import Cache, CachedAnswer, Prices, total_cost
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.view import trace_file
from pasta_jax.view.page import page
from tests.fuzz.mutations import Mutator
from tests.fuzz.run import Input
from tests.helpers.traces import random_traces

TOKENIZER = toy_tokenizer()
PROBLEMS = problems(1, 0, 12, "small")
PAIRS = [Pair(f"id{n}", "", p.instruction, p.answer, "toy") for n, p in enumerate(PROBLEMS)]
RECORDS = [
    verify(pair, {"text": problem.annotation}, TOKENIZER, 2048, "toy", "validation" if n % 3 else "train")
    for n, (pair, problem) in enumerate(zip(PAIRS, PROBLEMS, strict=True))
]
ROWS = [
    {"instruction": "Why is the sky blue?", "input": "", "output": "Because of Rayleigh scattering."},
    {"question": "Why?", "system_prompt": "Be brief.", "response": "Because."},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Yes"}},
]


def sources_of_pairs(folder: Path) -> list[Input]:
    """JSON lines, a JSON list, a Parquet file."""
    table = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:2]), table)

    def read_as(path: Path) -> Callable[[], object]:
        limits = sources.Filter((1, 100), (1, 100), drop_duplicates=True, drop_evaluation=False)
        return lambda: sources.select(
            [row for row in sources.read(str(path)) if not isinstance(row, Unreadable)], limits
        )

    files = {"a.jsonl": ROWS, "a.json": ROWS, "a.parquet": table.getvalue()}
    return [Input(folder / name, valid, read_as(folder / name)) for name, valid in files.items()]


def records_of_annotation(folder: Path) -> list[Input]:
    """records.jsonl, progress.jsonl, and the answers of an endpoint."""
    about = {"annotator": "toy", "code": "1"}
    answers = [
        {"text": PAIRS[0].response},
        {"program": RECORDS[1].program, "evidence": {"costs": [0.5, None]}},
        {"failure": "no answer", "detail": ""},
        *({"text": problem.annotation} for problem in PROBLEMS[3:9]),
    ]
    pairs = PAIRS[: len(answers)]

    def collect():
        return collect_answers(folder, about, pairs, lambda numbers, _: ((n, answers[n]) for n in numbers))

    collect()
    progress = [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]
    cached = [dataclasses.asdict(CachedAnswer(f"key{n}", "text", n, 2 * n)) for n in range(4)]

    def read_stored() -> None:
        for record in records.read_records(folder / "records.jsonl"):
            Program.parse(record.program).ids(TOKENIZER)
            records.prompt_ids(record, TOKENIZER)
            as_line(record).encode()

    def read_progress() -> None:
        for pair, answer in zip(pairs, collect(), strict=True):
            as_line(verify(pair, answer, TOKENIZER, 2048, "toy", "train")).encode()

    def read_cache() -> None:
        total_cost(folder / "answers.jsonl", Prices(0.5, 0.5)).text()
        Cache(folder / "answers.jsonl").close()

    return [
        Input(folder / "records.jsonl", [json.loads(as_line(record)) for record in RECORDS], read_stored),
        Input(folder / PROGRESS, progress, read_progress, head=1),
        Input(folder / "answers.jsonl", cached, read_cache),
    ]


def datasets(folder: Path) -> list[Input]:
    """about.json of a record set, and the files of TFDS below it."""
    builder.write(folder / "set", RECORDS, TOKENIZER)
    about = folder / "set/about.json"
    inputs = []
    for policy, packed in itertools.product(("predicted", "constant"), (True, False)):

        def read(policy: str = policy, packed: bool = packed) -> None:
            examples = builder.Examples(folder / "set", "train", TOKENIZER, packed, Positions(policy))
            assert all(len(example) for example in examples)

        inputs.append(Input(about, json.loads(about.read_text()), read))
    others = [path for path in (folder / "set").rglob("*") if path.is_file() and path != about]
    return inputs + [
        Input(path, json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes(), inputs[0].read)
        for path in others
    ]


def traces(folder: Path) -> list[Input]:
    """Trace files."""
    path = folder / "trace.json"
    valid = [json.loads(trace_file.to_json(trace)) for trace, *_ in random_traces(6)]
    return [Input(path, one, lambda: page(trace_file.load(path), None)) for one in valid]


def prompts_files(folder: Path) -> list[Input]:
    """Files of prompts, of a baseline's answers, of programs."""
    rows = [{"prompt": f"Question {n}?", "dataset": "set"} if n % 2 else {"instruction": f"Say {n}."} for n in range(4)]
    baseline = [{"prompt": f"Question {n}?", "sequential": True, "tokens": n} for n in range(3)]
    asked = [prompts.Prompt("", row["prompt"]) for row in baseline]
    program = next(record.program for record in RECORDS if record.forks).encode()
    path, whole, text = folder / "a.jsonl", folder / "a.json", folder / "program.txt"
    return [
        Input(path, rows, lambda: prompts.read_prompts_file(path)),
        Input(whole, rows, lambda: prompts.read_prompts_file(whole)),
        Input(path, baseline, lambda: prompts.read_baseline(path, asked)),
        Input(path, [{"program": record.program} for record in RECORDS[:3]], lambda: read_programs(path)),
        Input(text, program, lambda: prompts.read_program(text), change_program),
    ]


def change_program(by: Mutator, text: bytes) -> bytes:
    """Tags in other places, many times, or damaged."""
    tags = (b"<promise topic='a' tokens=1 />", b"<async>", b"</async>", b"<sync/>", b"<", b"<\\async>", b"tokens=99")
    for _ in range(by.choice((1, 2, 5))):
        at = by.randrange(len(text) + 1)
        text = text[:at] + by.choice(tags) * by.choice((1, 1, 1, 2, 3000)) + text[at:]
    return text
