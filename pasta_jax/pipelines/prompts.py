"""What a run reads: prompts, one or a file of them; a program to replay; the lengths of a baseline's answers."""

import json
import sys
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program

FIELDS = ("prompt", "instruction")


def read_prompt(prompt: str | None) -> str:
    """The --prompt flag or stdin; blank prompts are refused."""
    if prompt is None:
        raise PastaError("--prompt is missing: give the question, or - to read it from stdin")
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PastaError(f"stdin: byte {error.start} is not UTF-8; convert the text to UTF-8") from None
    if not prompt.strip():
        raise PastaError("--prompt is empty: write a question")
    return prompt


def read_prompts_file(path: Path) -> list[tuple[str, str]]:
    """(place, prompt) of every record: JSON lines, or one JSON list as AlpacaEval's files are."""
    return [(place, _prompt(place, record)) for place, record in read_records(path)]


def read_records(path: Path) -> list[tuple[str, object]]:
    """(place, record) of a file of JSON lines or of one JSON list. An empty one is refused."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        records = [(f"{path}: record {n}", record) for n, record in enumerate(_json(str(path), text, 1), start=1)]
    else:
        lines = enumerate(text.split("\n"), start=1)
        records = [(f"{path}: line {n}", _json(str(path), line, n)) for n, line in lines if line.strip()]
    if not records:
        raise PastaError(f"{path}: it holds no record; write one JSON object a line")
    return records


def read_program(path: Path) -> Program:
    """A program's surface text; the line break that ends a file is not part of it."""
    try:
        return Program.parse(read_text(path).removesuffix("\n"))
    except PastaError as error:
        raise PastaError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


def read_baseline(path: Path, prompts: list[str]) -> list[int]:
    """How many tokens each prompt's sequential answer has, from the --output of a --sequential run."""
    records = read_records(path)
    if len(records) != len(prompts):
        raise PastaError(
            f"{path}: it has {len(records)} answers for {len(prompts)} prompts; run both on the same prompts"
        )
    lengths = []
    for (place, record), prompt in zip(records, prompts, strict=True):
        fields = record if isinstance(record, dict) else {}
        if fields.get("prompt") != prompt:
            raise PastaError(f"{place}: prompt: it is another one than here; run both on the same prompts")
        if fields.get("sequential") is not True or type(fields.get("tokens")) is not int:
            raise PastaError(f"{place}: no sequential answer; give the --output of a run with --sequential")
        lengths.append(fields["tokens"])
    return lengths


def read_text(path: Path) -> str:
    """A file's text; a byte order mark is none of it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PastaError(f"{path}: byte {error.start} is not UTF-8; convert it to UTF-8") from None
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; give a file that can be read") from None


def _json(name: str, text: str, first_line: int):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise PastaError(f"{name}: line {line}, column {error.colno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise PastaError(f"{name}: line {first_line}: nested too deeply; write one plain JSON object") from None


def _prompt(place: str, record) -> str:
    if not isinstance(record, dict):
        raise PastaError(f'{place}: no JSON object; write {{"prompt": "..."}}')
    given = [field for field in FIELDS if field in record]
    if len(given) != 1:
        found = "both prompt and instruction" if given else "neither prompt nor instruction"
        raise PastaError(f"{place}: it has {found}; give it one of the two")
    if record.get("input"):
        raise PastaError(f"{place}: input: it would be left out; join it with the instruction into one prompt")
    prompt = record[given[0]]
    if not isinstance(prompt, str) or not prompt.strip():
        raise PastaError(f"{place}: {given[0]}: it must be a text that is not blank")
    return prompt
