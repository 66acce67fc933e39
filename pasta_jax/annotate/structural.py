"""Annotates a response by its form alone: list items, headed sections, parallel paragraphs, sentence groups.

It proposes what a writer could have written side by side. It reads words for signs that a part needs another one, but
it can't know; `likelihood` weighs its proposals with a model.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pasta_jax.annotate import cues
from pasta_jax.annotate.outline import Block, outline
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import MIN_CHUNK_WORDS
from pasta_jax.lang.tags import escape, escape_topic

# A block of more than 640 ids is refused. Words and signs say roughly how many: 1.3 ids each, rarely more than 2.
MAX_CHUNK_IDS = 420
PROMISE_IDS = 4  # [PROMISE], [/PROMISE:n], [ASYNC] and [/ASYNC]; the topic comes on top
MIN_GAIN = 1.1  # estimated ids of the text over the critical path; below it the tags cost more than they are worth
MAX_REFERRING = 1 / 3  # where more parts of a group than this refer back, the group is a sequence and not parallel
MIN_PARAGRAPH_WORDS = 20


@dataclass(frozen=True)
class Part:
    """A candidate: the chunk text[start:stop]; `line` is where its item or section begins in main."""

    line: int
    start: int
    stop: int
    topic: str
    refers: bool  # it needs what stands before it in its group: a sync has to come first


def annotate(instruction: str, response: str) -> str:
    """The response with `<async topic="…">…</async>` and `<sync/>` where that pays, else as it is; always escaped."""
    if cues.creative(instruction):
        return escape(response, ANNOTATION)
    blocks = outline(response)
    parts = [part for part in _parts(instruction, response, blocks, 0, len(blocks)) if _worth(response, part)]
    marks = _joined(_with_syncs(response, blocks, parts))
    if _gain(response, marks) < MIN_GAIN:
        marks = []
    return _written(response, marks)


def _parts(instruction: str, text: str, blocks: list[Block], lo: int, hi: int) -> Iterator[Part]:
    """Candidates among blocks[lo:hi], in order, flat: the outermost structure that fits into chunks."""
    if sections := _sections(text, blocks, lo, hi):
        first = sections[0][0]
        yield from _parts(instruction, text, blocks, lo, first)
        yield from _group(instruction, text, blocks, lo, sections, headed=True)
        return
    at = lo
    while at < hi:
        items = _items(text, blocks, at, hi)
        if len(items) > 1:
            yield from _group(instruction, text, blocks, lo, items, headed=False)
            at = items[-1][1]
            continue
        paragraphs = _paragraphs(text, blocks, at, hi)
        if len(paragraphs) > 1:
            yield from _group(instruction, text, blocks, lo, paragraphs, headed=False)
            at = paragraphs[-1][1]
            continue
        if blocks[at].kind == "paragraph":
            yield from _sentences(text, blocks[at])
        at += 1


Range = tuple[int, int]  # blocks[first:last] that make one member of a group


def _sections(text: str, blocks: list[Block], lo: int, hi: int) -> list[Range]:
    """Headings of the most outward style that occurs twice, each with what follows it."""
    headings = [n for n in range(lo, hi) if blocks[n].kind == "heading"]
    styles = {blocks[n].style for n in headings}
    counts = {style: sum(blocks[n].style == style for n in headings) for style in styles}
    for style in sorted(styles, key=lambda style: (style[0] != "#", len(style) if style[0] == "#" else 0, style)):
        if counts[style] < 2:
            continue
        starts = [n for n in headings if blocks[n].style == style]
        ranges = [(a, b) for a, b in zip(starts, [*starts[1:], hi], strict=True)]
        first, last = ranges[-1]
        # A closing remark stands behind the last section without a heading of its own.
        while last - first > 2 and blocks[last - 1].kind == "paragraph" and cues.closing(_text(text, blocks[last - 1])):
            last -= 1
        ranges[-1] = (first, last)
        names = [_text(text, blocks[a]).lower() for a, _ in ranges]
        if all(b - a > 1 for a, b in ranges[:-1]) and len(set(names)) == len(names):
            return [(a, b) for a, b in ranges if b - a > 1]
    return []


def _items(text: str, blocks: list[Block], at: int, hi: int) -> list[Range]:
    """The list that begins at block `at`: each item with what is nested in it or stands between it and the next."""
    first = blocks[at]
    if first.kind != "item":
        return []
    alike = [n for n in range(at, hi) if blocks[n].kind == "item" and blocks[n].indent == first.indent]
    ranges: list[Range] = [(at, at + 1)]
    loose = 0  # unindented blocks behind an item, at most so far
    nested = False  # whether bullets stand under a number without being indented
    for n in alike[1:]:
        between = blocks[ranges[-1][0] + 1 : n]
        outside = [b for b in between if b.indent <= first.indent and not _under(first, b)]
        if blocks[n].style != first.style or any(b.kind in ("heading", "item") for b in outside):
            break
        if (
            outside
            and _text(text, outside[-1]).endswith(":")
            and not _counts_on(text, blocks[ranges[-1][0]], blocks[n])
        ):
            break  # the lead-in of another list
        if outside and not (first.style[0] == "1" and len(outside) <= 4):
            break  # only numbers hold a list together across paragraphs
        loose = max(loose, len(outside))
        nested = nested or any(_under(first, b) for b in between)
        ranges[-1] = (ranges[-1][0], n)
        ranges.append((n, n + 1))
    begin, end = ranges[-1]
    while end < hi:
        block = blocks[end]
        if block.indent > first.indent or (_under(first, block) and nested):
            end += 1
            continue
        said = block.kind == "code" or (block.kind == "paragraph" and not cues.closing(_text(text, block)))
        if not loose or not said:
            break
        loose -= 1
        end += 1
    ranges[-1] = (begin, end)
    return ranges


def _under(first: Block, block: Block) -> bool:
    """Whether a bullet stands under a number, as in texts that lost their indentation."""
    return first.style[0] == "1" and block.kind == "item" and block.style[0] not in "1a"


def _counts_on(text: str, before: Block, item: Block) -> bool:
    """Whether the number of an item is the next one."""
    numbers = [text[block.start : block.body].rstrip(".)") for block in (before, item)]
    return all(number.isdecimal() for number in numbers) and int(numbers[1]) == int(numbers[0]) + 1


def _paragraphs(text: str, blocks: list[Block], at: int, hi: int) -> list[Range]:
    """A run of paragraphs that could stand in any order. The first of an answer opens it and stays in main."""
    ranges: list[Range] = []
    for n in range(max(at, 1), hi):
        said = _text(text, blocks[n])
        fits = blocks[n].kind == "paragraph" and len(said.split()) >= MIN_PARAGRAPH_WORDS
        if not fits or said.endswith(":") or cues.closing(said):
            break
        ranges.append((n, n + 1))
    run = " ".join(_text(text, blocks[n]) for n, _ in ranges)
    return [] if cues.narrative(run) or not cues.english(run) else ranges


def _group(
    instruction: str, text: str, blocks: list[Block], lo: int, ranges: list[Range], headed: bool
) -> Iterator[Part]:
    """The members of a group as candidates, unless they build on each other; one that is too long is looked into."""
    first = ranges[0][0]
    lead_in = _text(text, blocks[first - 1]) if first > lo else ""
    known = f"{instruction}\n{text[: blocks[first].start]}"
    numbered = blocks[first].kind == "item" and blocks[first].style[0] == "1"
    bodies = []
    for a, b in ranges:
        start = blocks[a + 1].start if headed else blocks[a].body
        bodies.append(text[start : blocks[b - 1].stop])
    refers = [
        cues.refers_back(body, earlier, known) or (headed and cues.dependent_heading(_text(text, blocks[a])))
        for (a, _), body, earlier in zip(ranges, bodies, _before(bodies), strict=True)
    ]
    in_sequence = cues.how_to(lead_in) or (cues.steps(lead_in) and any(cues.in_sequence(body) for body in bodies))
    if (numbered and in_sequence) or sum(refers) > MAX_REFERRING * len(ranges):
        return
    for (a, b), body, needs in zip(ranges, bodies, refers, strict=True):
        stop = blocks[b - 1].stop
        others = known + "".join(other for other in bodies if other is not body)
        topic = cues.topic(cues.named(_text(text, blocks[a])) if headed else body, others)
        if _ids(body) > MAX_CHUNK_IDS:
            yield from _parts(instruction, text, blocks, a + 1, b)
        elif topic:
            yield Part(blocks[a].start, stop - len(body), stop, topic, needs)


def _before(bodies: list[str]) -> list[str]:
    return ["\n".join(bodies[:n]) for n in range(len(bodies))]


def _sentences(text: str, block: Block) -> list[Part]:
    """Groups of sentences that a paragraph itself tells apart: First …, Second …, On the other hand …"""
    said = _text(text, block)
    starts = [block.start + place for place in cues.enumerated(said)]
    if len(starts) < 2:
        return []
    parts = []
    for a, b in zip(starts, [*starts[1:], block.stop], strict=True):
        body = text[a:b].rstrip()
        opened = a - 1 if a > block.start and text[a - 1] == " " else a  # most pieces hold the blank before their word
        parts.append(
            Part(opened, opened, a + len(body), cues.topic(cues.without_ordinal(body), text[: block.start]), False)
        )
    return [part for part in parts if part.topic]


def _text(text: str, block: Block) -> str:
    return text[block.body : block.stop].strip()


def _worth(text: str, part: Part) -> bool:
    """Whether one fork takes more off main than its promise costs."""
    body = text[part.start : part.stop]
    return len(body.split()) >= MIN_CHUNK_WORDS and _promise_ids(part.topic) < _ids(body) <= MAX_CHUNK_IDS


def _with_syncs(text: str, blocks: list[Block], parts: list[Part]) -> list[Part | int]:
    """The candidates and the places of syncs in order; main's later text is taken to need the chunks before it."""
    marks: list[Part | int] = []
    within = iter([*parts, None])
    part = next(within)
    for block in blocks:
        begun = False
        while part is not None and part.start < block.stop:
            if part.refers:
                marks.append(part.line)
            marks.append(part)
            part, begun = next(within), True
        covered = begun or (marks and isinstance(marks[-1], Part) and block.start < marks[-1].stop)
        if not covered and not _stands_alone(text, block):
            marks.append(block.start)
    return marks


def _stands_alone(text: str, block: Block) -> bool:
    """Whether main may write a block without knowing the chunks before it: a heading, a lead-in, a farewell."""
    said = _text(text, block)
    if block.kind == "heading":
        return not cues.dependent_heading(said)
    return block.kind == "paragraph" and (
        (said.endswith(":") and not cues.closing(said) and not cues.refers_back(said, "", said)) or cues.farewell(said)
    )


def _joined(marks: Iterable[Part | int]) -> list[Part | int]:
    """Without forks that have nothing beside them, and without syncs that wait for nothing."""
    kept: list[Part | int] = []
    round_: list[Part] = []
    for mark in [*marks, -1]:
        if isinstance(mark, Part):
            round_.append(mark)
            continue
        if len(round_) > 1:
            kept += [*round_, mark]
        round_ = []
    return kept[:-1] if kept and kept[-1] == -1 else kept


def _gain(text: str, marks: list[Part | int]) -> float:
    """About how much sooner the annotated text is done; the language's own clock over estimated ids."""
    now = forks_end = done = 0
    for mark in marks:
        if isinstance(mark, Part):
            now += _ids(text[done : mark.start]) + _promise_ids(mark.topic)
            forks_end = max(forks_end, now + _ids(text[mark.start : mark.stop]))
            done = mark.stop
        else:
            now = max(now + _ids(text[done:mark]), forks_end)
            done = mark
    now = max(now + _ids(text[done:]), forks_end)
    return _ids(text) / max(now, 1)


def _ids(text: str) -> int:
    """About how many ids a text takes: a word up to six letters is one, a sign is one."""
    return len(re.findall(r"\w{1,6}|[^\w\s]|\n", text))


def _promise_ids(topic: str) -> int:
    return PROMISE_IDS + _ids(topic)


def _written(text: str, marks: list[Part | int]) -> str:
    pieces, done = [], 0
    for mark in marks:
        start = mark.start if isinstance(mark, Part) else mark
        pieces.append(escape(text[done:start], ANNOTATION))
        done = start
        if isinstance(mark, Part):
            body = escape(text[mark.start : mark.stop], ANNOTATION)
            pieces.append(f'<async topic="{escape_topic(mark.topic)}">{body}</async>')
            done = mark.stop
        else:
            pieces.append("<sync/>")
    return "".join([*pieces, escape(text[done:], ANNOTATION)])
