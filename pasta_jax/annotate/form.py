"""Keep the records that a small model learns to fork from, and a share of answers that have nothing to fork.

A forked answer is kept if all its chunks have the form `Name: text`, with distinct topics and a moderate length: a
model of a hundred million parameters learns this form from some thousand records, and little from all others.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from itertools import chain, zip_longest

from pasta_jax.annotate import cues
from pasta_jax.annotate.settings import FormFilter
from pasta_jax.annotate.verify import Refusal
from pasta_jax.data.records import Record
from pasta_jax.data.repetition import repeated
from pasta_jax.lang.program import Chunk, Program
from pasta_jax.lang.words import UNSPACED, words

_NAMED = re.compile(rf"\W{{0,4}}\w[^:：.!?。！？\n]{{1,60}}(?::[*_]{{0,3}}(?:\s|(?=[{UNSPACED}]))|[*_]{{0,3}}：)")
# Thai, Lao, Khmer and Burmese sentences end without a mark; a formula ends with $.
_FINISHED = re.compile(r"[.!?:;)\]}\"'`*|$”’»。！？：；）】」』…।॥؟۔\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]\s*$")
_OF_EMOJI = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"  # what chooses its look: colour, tone of skin
_LISTED = re.compile(
    r"^\s*(?:(?:[-*•]|\d+[.)])\s|[•・●①-⑳]|\d+[、．]|[一二三四五六七八九十]+、|（[\d一二三四五六七八九十]+）)",
    re.MULTILINE,
)
_ASSISTANT = re.compile(r"\b(?:as an ai|language model|openai|chatgpt|i'm sorry, but|i cannot|i can't)\b", re.I)
_WHAT_IF = re.compile(r"\b(?:what (?:if|would)|imagine|suppose|hypothetical(?:ly)?)\b", re.I)
_CODE = "```"


def refusal(limits: FormFilter, record: Record) -> str | None:
    """Why a record is not kept, as one of a few fixed phrases; None if it may be."""
    if limits.ascii and not (record.response.isascii() and record.instruction.isascii()):
        return "not ASCII"
    if limits.finished and not _finished(record.response):
        return "answer breaks off"
    if _ASSISTANT.search(record.response):
        return "speaks of itself"
    if repeated(words(record.response)) > limits.max_repetition:
        return "repeats itself"
    return _forked_refusal(limits, record) if record.forks else _unforked_refusal(limits, record)


def _finished(text: str) -> bool:
    """Whether a text ends like a sentence, a formula or a block, or with an emoji."""
    last = text.rstrip().rstrip(_OF_EMOJI)[-1:]
    return bool(_FINISHED.search(text)) or (last != "" and unicodedata.category(last) == "So")


def _forked_refusal(limits: FormFilter, record: Record) -> str | None:
    if _CODE in record.response:
        return "code"
    if record.forks > limits.max_chunks:
        return "too many chunks"
    if max(record.chunk_tokens) > limits.max_chunk_tokens:
        return "a long chunk"
    if record.speedup < limits.min_speedup:
        return "little speedup"
    topics = [" ".join(topic.casefold().split()) for topic in record.topics]
    if len(set(topics)) < len(topics):
        return "equal topics"
    if any(cues.common(topic) for topic in topics):
        return "a topic without content"
    if not limits.named:
        return None
    chunks = [part for part in Program.parse(record.program).parts if isinstance(part, Chunk)]
    return None if all(_NAMED.match(chunk.text) for chunk in chunks) else "a chunk without a name"


def _unforked_refusal(limits: FormFilter, record: Record) -> str | None:
    """A list that the annotator did not fork teaches nothing about when to fork, unless its items are short."""
    if _CODE in record.response or _words_of_items(record.response) <= limits.short_items:
        return None
    return "a list without a fork"


def _words_of_items(text: str) -> float:
    """The mean number of words of a list's items; 0 if there is no list."""
    markers = list(_LISTED.finditer(text))
    if len(markers) < 2:
        return 0
    items = [text[a.end() :].partition("\n")[0] for a in markers]
    return sum(len(words(item)) for item in items) / len(items)


def kind_of(record: Record) -> str:
    """The kind of an answer without a fork."""
    if _CODE in record.response:
        return "code"
    if _words_of_items(record.response):
        return "short list"
    if cues.creative(record.instruction):
        return "letter, poem or story"
    if _WHAT_IF.search(record.instruction):
        return "what if"
    return "short fact" if len(words(record.response)) < 60 else "prose"


def keep(verdicts: Iterable[Record | Refusal], limits: FormFilter) -> tuple[list[Record | Refusal], list[Refusal]]:
    """The verdicts without the records that are not kept, in order, and those, each with its reason.

    Every kind of answer without a fork has an equal part in their share, as far as there are enough.
    """
    verdicts = list(verdicts)
    reasons: dict[str, str] = {}
    forked: set[str] = set()
    plain: dict[str, list[str]] = {}
    for record in verdicts:
        if isinstance(record, Refusal):
            continue
        if reason := refusal(limits, record):
            reasons[record.id] = reason
        elif record.forks:
            forked.add(record.id)
        else:
            plain.setdefault(kind_of(record), []).append(record.id)
    count = round(limits.unforked / (1 - limits.unforked) * len(forked))
    kinds = [sorted(ids, key=lambda id: hashlib.sha256(id.encode()).hexdigest()) for _, ids in sorted(plain.items())]
    in_turn = [id for id in chain(*zip_longest(*kinds)) if id is not None]
    reasons |= dict.fromkeys(in_turn[count:], "enough without a fork" if forked else "none forks")
    kept = forked.union(in_turn[:count])
    left_out = [
        Refusal(v.id, v.source, v.origin, f"form: {reasons[v.id]}", "", v.program)
        for v in verdicts
        if isinstance(v, Record) and v.id not in kept
    ]
    return [v for v in verdicts if isinstance(v, Refusal) or v.id in kept], left_out
