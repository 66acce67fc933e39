"""The one place that accepts or refuses an annotated answer: text unchanged, rules of the language, length."""

import dataclasses

import numpy as np

from pasta_jax.annotate.run import Annotation
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import Record, prompt_ids
from pasta_jax.data.sources import license_of
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock, parallelism, theoretical_speedup
from pasta_jax.lang.linear import Block, scan
from pasta_jax.lang.program import Chunk, LangError, Program, Sync, check
from pasta_jax.tokenizers.tokenizer import Tokenizer

TEXT_CHANGED = "the text without its tags must equal the source"
NOT_ENCODABLE = "the tokenizer must round-trip the text"
TOO_LONG = "prompt and answer must fit into the pool"
NO_ANSWER = "the annotator gave no answer"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why an answer was refused. `reason` is one of a few fixed sentences, for counting."""

    id: str
    source: str
    place: str
    reason: str
    detail: str
    annotation: str  # the refused text; empty if there was none


def verify(
    pair: Pair, answer: Annotation, tokenizer: Tokenizer, max_tokens: int, annotator: str, split: str
) -> Record | Refusal:
    """The record of an annotator's answer, or why there is none. `max_tokens`: of prompt and answer, a pool's slots."""
    shown = answer.get("text") or answer.get("program") or answer.get("refused", "")

    def refuse(place: str, reason: str, detail: str) -> Refusal:
        return Refusal(pair.id, pair.source, place, reason, detail, shown)

    if not answer.keys() & {"text", "program"}:
        return refuse("annotator", answer.get("failure") or NO_ANSWER, answer.get("detail", ""))
    try:
        if "program" in answer:
            program = Program.parse(answer["program"])
        else:
            program = Program.from_annotation(answer["text"], tokenizer)
    except LangError as error:
        return refuse(f"annotation, line {error.line}, column {error.column}", error.rule, error.fix)
    except PastaError as error:
        return refuse("annotation", NOT_ENCODABLE, str(error))
    stripped = program.strip()
    if stripped != pair.response:
        return refuse(*_first_difference(pair.response, stripped, TEXT_CHANGED))
    try:
        if errors := check(program.render(), tokenizer):
            error = errors[0]
            return refuse(f"program, line {error.line}, column {error.column}", error.rule, error.fix)
        prompt, ids, plain = prompt_ids(pair, tokenizer), program.ids(tokenizer), tokenizer.encode(pair.response)
        if (decoded := Program.from_ids(ids, tokenizer)) != program:
            place, *why = _first_difference(program.render(), decoded.render(), NOT_ENCODABLE)
            return refuse(place.replace("source", "program"), *why)
    except PastaError as error:
        return refuse("program", NOT_ENCODABLE, str(error))
    if len(prompt) + len(ids) > max_tokens:
        return refuse("whole record", TOO_LONG, f"{len(prompt)} + {len(ids)} tokens exceed {max_tokens}")
    path = clock(ids, tokenizer.tags, 0).critical_path
    marks = scan(np.asarray(ids, np.int32), tokenizer.tags)
    return Record(
        **vars(pair),
        license=license_of(pair.source),
        split=split,
        program=program.render(),
        annotator=annotator,
        evidence=answer.get("evidence"),
        prompt_tokens=len(prompt),
        tokens=len(ids),
        plain_tokens=len(plain),
        chunk_tokens=[mark.length for mark in marks if isinstance(mark, Block)],
        topics=[part.topic for part in program.parts if isinstance(part, Chunk)],
        syncs=sum(isinstance(part, Sync) for part in program.parts),
        critical_path=path,
        speedup=round(theoretical_speedup(len(plain), path), 4),
        parallelism=round(parallelism(ids, tokenizer.tags, 0), 4),
    )


def _first_difference(source: str, text: str, reason: str) -> tuple[str, str, str]:
    """(place, reason, detail) of the first character that differs."""
    at = next((n for n, (a, b) in enumerate(zip(source, text, strict=False)) if a != b), min(len(source), len(text)))
    line, column = source.count("\n", 0, at) + 1, at - (source.rfind("\n", 0, at) + 1) + 1
    expected, actual = (ascii(piece[at : at + 20]) if at < len(piece) else "the end" for piece in (source, text))
    return f"source, line {line}, column {column}", reason, f"expected {expected}, the annotation has {actual}"
