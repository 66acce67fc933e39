"""Readers of input files: prompts, a program to replay, and the lengths of a baseline's answers."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import MOST_BYTES, read_records
from pasta_jax.files.validated import LARGEST_INT, read_bytes
from pasta_jax.lang.program import Program
from pasta_jax.progress import quiet

FIELDS = ("prompt", "instruction")
MOST_BYTES_OF_PROGRAM = 2**18  # a second's work for the parser
_READABLE, _ONE_PER_LINE = "pass a readable file", "write one JSON object per line"


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt to answer."""

    place: str  # where it comes from, for errors
    text: str
    dataset: str | None = None  # what AlpacaEval calls the origin of an instruction


def read_prompt(prompt: str | None) -> Prompt:
    """The prompt of the --prompt flag or of stdin, whose last line break is not part of it; a blank one is refused."""
    if prompt is None:
        raise PastaError("--prompt is missing: pass the question, or - to read it from stdin")
    if prompt == "-":
        try:
            with quiet():  # what is being typed must not be disturbed
                content = sys.stdin.buffer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise PastaError(f"stdin: has more than {MOST_BYTES:,} bytes; write a shorter question")
            prompt = content.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise PastaError(f"stdin: byte {error.start} is not UTF-8; convert the text to UTF-8") from None
    if not prompt.strip():
        raise PastaError("--prompt is empty: write a question")
    return Prompt("--prompt", prompt)


def read_prompts_file(path: Path) -> list[Prompt]:
    """The prompt of every record in a file of JSON lines or of one JSON list, as AlpacaEval has."""
    return [_prompt(place, record) for place, record in read_records(path, Any, _ONE_PER_LINE)]


def read_program(path: Path) -> Program:
    """The program in a file; the line break at the end of the file is not part of it."""
    text = read_text(path)
    if _is_json(path, text):
        raise PastaError(f"{path}: is JSON, not an answer in PASTA-LANG; pass its text alone, as docs/example.txt is")
    try:
        return Program.parse(text.removesuffix("\n"))
    except PastaError as error:
        raise PastaError(f"{path}: {error}") from None


def read_baseline(path: Path, prompts: Sequence[Prompt]) -> list[int]:
    """The number of tokens of each prompt's sequential answer, from the --output of a --sequential run."""
    records = read_records(path, Any, _ONE_PER_LINE)
    if len(records) != len(prompts):
        raise PastaError(f"{path}: has {len(records)} answers for {len(prompts)} prompts; run both on the same prompts")
    lengths = []
    for (place, record), prompt in zip(records, prompts, strict=True):
        fields = record if isinstance(record, dict) else {}
        if fields.get("prompt") != prompt.text:
            raise PastaError(f"{place}: prompt: differs from this run's prompt; run both on the same prompts")
        tokens = fields.get("tokens")
        if fields.get("sequential") is not True or type(tokens) is not int or not 0 <= tokens <= LARGEST_INT:
            raise PastaError(f"{place}: not a sequential answer; pass the --output of a run with --sequential")
        lengths.append(tokens)
    return lengths


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    try:
        return read_bytes(path, MOST_BYTES_OF_PROGRAM, _READABLE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start} is not UTF-8; convert it to UTF-8") from None


def _is_json(path: Path, text: str) -> bool:
    """Whether a file holds JSON objects: records, a trace. A list of numbers may be an answer."""
    if path.suffix in (".json", ".jsonl"):
        return True
    for part in (text, text.strip().partition("\n")[0]):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        return any(isinstance(one, dict) for one in (value if isinstance(value, list) else [value]))
    return False


def _prompt(place: str, record: object) -> Prompt:
    if not isinstance(record, dict):
        raise PastaError(f'{place}: not a JSON object; write {{"prompt": "..."}}')
    fields = [field for field in FIELDS if field in record]
    if len(fields) != 1:
        state = "both prompt and instruction" if fields else "neither prompt nor instruction"
        raise PastaError(f"{place}: has {state}; write one of the two")
    if beside := [name for name in ("input", "system") if record.get(name)]:
        raise PastaError(f"{place}: {beside[0]}: would be ignored; join it with the {fields[0]} into one prompt")
    prompt = record[fields[0]]
    if not isinstance(prompt, str) or not prompt.strip():
        raise PastaError(f"{place}: {fields[0]}: must be text that is not blank")
    dataset = record.get("dataset")
    if not isinstance(dataset, str | None):
        raise PastaError(f"{place}: dataset: must be text")
    return Prompt(place, prompt, dataset)
