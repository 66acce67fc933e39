"""The one place that accepts an annotated answer or refuses it: text unchanged, the language's rules, its length."""

import dataclasses
import json

import numpy as np

from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import Record, prompt_ids
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock, parallelism, theoretical_speedup
from pasta_jax.lang.linear import Block, scan
from pasta_jax.lang.program import Chunk, LangError, Program, Sync, check

TEXT_CHANGED = "the text without its tags must be the source"
NO_IDS = "the tokenizer must have ids for all of the text, and give it back"
TOO_LONG = "prompt and answer must fit into the pool"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why an answer was not taken. `reason` is one fixed sentence a kind, so that they can be counted."""

    id: str
    source: str
    place: str
    reason: str
    detail: str
    annotation: str  # what was refused; empty where there was nothing

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a record must fit into."""

    max_tokens: int  # prompt and linear answer together: the slots of a pool


def verify(pair: Pair, annotated: str, tokenizer, limits: Limits, annotator: str, split: str) -> Record | Refusal:
    """Judge an annotator's text: the source, escaped for annotations, with `<async topic='…'>` and `<sync/>` put in."""
    try:
        program = Program.from_annotation(annotated, tokenizer)
    except LangError as error:
        place = f"annotation, line {error.line}, column {error.column}"
        return Refusal(pair.id, pair.source, place, error.rule, error.fix, annotated)
    except PastaError as error:
        return Refusal(pair.id, pair.source, "annotation", NO_IDS, str(error), annotated)
    return verify_program(pair, program, tokenizer, limits, annotator, split, None, annotated)


def verify_program(
    pair: Pair,
    program: Program,
    tokenizer,
    limits: Limits,
    annotator: str,
    split: str,
    evidence: dict | None,
    annotated: str = "",
) -> Record | Refusal:
    """Judge a program that is to stand for the pair's answer."""

    def refused(place: str, reason: str, detail: str) -> Refusal:
        return Refusal(pair.id, pair.source, place, reason, detail, annotated or program.render())

    stripped = program.strip()
    if stripped != pair.response:
        place, detail = _first_difference(pair.response, stripped)
        return refused(place, TEXT_CHANGED, detail)
    try:
        if errors := check(program.render(), tokenizer):
            error = errors[0]
            return refused(f"program, line {error.line}, column {error.column}", error.rule, error.fix)
        prompt, ids, plain = prompt_ids(pair, tokenizer), program.ids(tokenizer), tokenizer.encode(pair.response)
        if (again := Program.from_ids(ids, tokenizer)) != program:
            return refused(*_first_lost(program, again))
    except PastaError as error:
        return refused("program", NO_IDS, str(error))
    if len(prompt) + len(ids) > limits.max_tokens:
        detail = f"{len(prompt)} and {len(ids)} tokens are more than {limits.max_tokens}"
        return refused("whole record", TOO_LONG, detail)
    path = clock(ids, tokenizer.tags, 0).critical_path
    return Record(
        id=pair.id,
        source=pair.source,
        split=split,
        system=pair.system,
        instruction=pair.instruction,
        response=pair.response,
        program=program.render(),
        annotator=annotator,
        evidence=evidence,
        prompt_tokens=len(prompt),
        tokens=len(ids),
        plain_tokens=len(plain),
        chunk_tokens=[
            mark.length for mark in scan(np.asarray(ids, np.int32), tokenizer.tags) if isinstance(mark, Block)
        ],
        topics=[part.topic for part in program.parts if isinstance(part, Chunk)],
        syncs=sum(isinstance(part, Sync) for part in program.parts),
        critical_path=path,
        speedup=round(theoretical_speedup(len(plain), path), 4),
        parallelism=round(parallelism(ids, tokenizer.tags, 0), 4),
    )


def _first_difference(source: str, text: str) -> tuple[str, str]:
    at = next((n for n, (a, b) in enumerate(zip(source, text, strict=False)) if a != b), min(len(source), len(text)))
    line, column = source.count("\n", 0, at) + 1, at - (source.rfind("\n", 0, at) + 1) + 1
    there, here = (ascii(piece[at : at + 20]) if at < len(piece) else "the end" for piece in (source, text))
    return f"source, line {line}, column {column}", f"there is {there}, the annotation has {here}"


def _first_lost(program: Program, again: Program) -> tuple[str, str, str]:
    place, detail = _first_difference(program.render(), again.render())
    return place.replace("source", "program"), NO_IDS, detail
