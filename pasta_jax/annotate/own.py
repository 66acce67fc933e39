"""A model's own answers as annotations: each promise is made as long as the chunk that the model then wrote.

A model that promises badly learns from its own answers what its chunks take. Their texts stay as they are, but a chunk
which went on to its list's next item instead of ending loses that item's marker, if main writes it next, and its blank
lines, if main begins a line itself.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_jax.annotate.run import Annotation
from pasta_jax.annotate.verify import NOT_ENCODABLE
from pasta_jax.data.pairs import Pair, id_of, system_beside
from pasta_jax.data.sources import separated
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import read_records
from pasta_jax.files.remote import path_of
from pasta_jax.lang.program import Chunk, LangError, Program, Text, block_length
from pasta_jax.lang.tags import tens_for
from pasta_jax.tokenizers.tokenizer import Tokenizer

_MARKER = re.compile(r"\s*(?:(\d{1,3})[.)]|([-*+•]))(?!\S)")  # of an item in a list
_LINE_BREAK = re.compile(r"[^\S\n]*\n")
_FIX = "name a file that launch.decode wrote for --prompts_file"


def read_answers(source: str) -> dict[str, Mapping[str, object]]:
    """The answers in files that launch.decode wrote, which commas separate, by the id of their pair."""
    answers = {}
    rows = (row for name in separated(source) for row in read_records(path_of(name), Any, _FIX))
    for place, row in rows:
        texts = [row.get(name) for name in ("prompt", "text", "program")] if isinstance(row, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise PastaError(f"{place}: not an answer with prompt, text and program; {_FIX}")
        answers[id_of(system_beside(row), *texts[:2])] = row
    return answers


def corrected(pairs: Sequence[Pair], answers: Mapping[str, Mapping[str, object]]) -> list[Pair]:
    """The pairs with answers as their annotations will read."""
    result = []
    for pair in pairs:
        try:
            result.append(dataclasses.replace(pair, response=_program(answers[pair.id]).strip()))
        except LangError:
            result.append(pair)  # its annotation is a failure
    return result


def annotation(row: Mapping[str, object], tokenizer: Tokenizer) -> Annotation:
    """An answer's program with promises of the right lengths, and those that it promised as evidence."""
    if row.get("finish_reason") != "stop":
        return {"failure": "the model's answer must end by itself"}
    if row.get("cut"):
        return {"failure": "the chunks of the model's answer must end by themselves"}
    try:
        program = _program(row)
        parts = [kept(part, tokenizer) if isinstance(part, Chunk) else part for part in program.parts]
    except LangError as error:
        return {"failure": error.rule, "detail": error.fix}
    except PastaError as error:
        return {"failure": NOT_ENCODABLE, "detail": str(error)}
    promised = [10 * part.tens for part in program.parts if isinstance(part, Chunk)]
    return {"program": Program(tuple(parts)).render(), "evidence": {"promised": promised}}


def _program(row: Mapping[str, object]) -> Program:
    """An answer's program whose chunks end where their own text does."""
    parts = Program.parse(str(row["program"])).parts
    following, result = "\n", []  # main's text up to the next chunk; an answer's end also ends a line
    for part in reversed(parts):
        if isinstance(part, Text):
            following = part.text + following
        elif isinstance(part, Chunk):
            part, following = _ended(part, following), ""
        result.append(part)
    return Program(tuple(reversed(result)))


def _ended(chunk: Chunk, following: str) -> Chunk:
    """The chunk without the marker of an item that main writes after it, and without the line breaks before main's."""
    text = chunk.text
    before, line_break, last = text.rstrip().rpartition("\n")
    marker, same = _MARKER.fullmatch(last), _MARKER.match(following)
    if line_break and marker and same and marker.groups() == same.groups():
        text = before + line_break
    if _LINE_BREAK.match(following) and "\n" in text[len(text.rstrip()) :]:
        text = text.rstrip()
    return dataclasses.replace(chunk, text=text)


def kept(chunk: Chunk, tokenizer: Tokenizer) -> Chunk:
    """The chunk as if its promise had been kept."""
    return dataclasses.replace(chunk, tens=tens_for(block_length(chunk.text, tokenizer)))


def fingerprint_fields(answers: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What annotations depend on."""
    rows = ([id, row["program"], row.get("finish_reason"), row.get("cut")] for id, row in answers.items())
    return [json.dumps(row if row[-1] else row[:-1]) for row in rows]  # as before there was `cut`
