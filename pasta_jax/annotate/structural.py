"""Annotate a response by its form alone: list items, headed sections, parallel paragraphs, sentence groups.

The result proposes what could have been written in parallel. Certain words signal that a part needs another one, but
only as a heuristic; `likelihood` checks the proposals with a model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pasta_jax.annotate import cues
from pasta_jax.annotate.outline import TextBlock, outline
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import MIN_CHUNK_WORDS
from pasta_jax.lang.tags import escape, escape_topic
from pasta_jax.lang.words import UNSPACED, words

# A block of more than 640 ids is refused. Words and punctuation estimate them: 1.3 ids each, rarely more than 2.
MAX_CHUNK_IDS = 420
PROMISE_IDS = 4  # [PROMISE], [/PROMISE:n], [ASYNC] and [/ASYNC]; the topic is extra
MIN_GAIN = 1.1  # estimated ids of the text over the critical path; below it the tags don't pay off
MAX_REFERRING = 1 / 3  # if a larger share of a group refers back, the group is a sequence
MIN_PARAGRAPH_WORDS = 20
_ID = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w){{1,6}}|[^\w\s]|\n")


@dataclass(frozen=True)
class Candidate:
    """A possible chunk, text[start:stop]; `line` is where its item or section begins in main."""

    line: int
    start: int
    stop: int
    topic: str
    refers: bool  # it needs earlier members of its group: a sync must precede it


def annotate(instruction: str, response: str) -> str:
    """The response, escaped, with `<async topic="…">…</async>` and `<sync/>` where that pays off."""
    if cues.creative(instruction) or cues.song(response):
        return escape(response, ANNOTATION)
    blocks = outline(response)
    candidates = _candidates(instruction, response, blocks, 0, len(blocks))
    chunks = [candidate for candidate in candidates if _pays_off(response, candidate)]
    marks = _without_lone_chunks(_with_syncs(blocks, chunks))
    if _gain(response, marks) < MIN_GAIN:
        marks = []
    return _render(response, marks)


def _candidates(instruction: str, text: str, blocks: list[TextBlock], lo: int, hi: int) -> Iterator[Candidate]:
    """Candidates among blocks[lo:hi], in order and not nested: the outermost structure whose parts fit into chunks."""
    if sections := _sections(blocks, lo, hi):
        first = sections[0][0]
        yield from _candidates(instruction, text, blocks, lo, first)
        yield from _group(instruction, text, blocks, sections, headed=True)
        return
    at = lo
    while at < hi:
        items = _items(text, blocks, at, hi)
        if len(items) > 1:
            yield from _group(instruction, text, blocks, items, headed=False)
            at = items[-1][1]
            continue
        first, last = _paragraphs(blocks, at, hi)
        for block in blocks[at:first]:
            if block.kind == "paragraph":
                yield from _sentences(instruction, text, block)
        if first < last and not cues.letter(text):
            yield from _group(instruction, text, blocks, [(n, n + 1) for n in range(first, last)], headed=False)
        at = last


Range = tuple[int, int]  # blocks[first:last] that form one member of a group


def _sections(blocks: list[TextBlock], lo: int, hi: int) -> list[Range]:
    """Headings of the outermost style that occurs twice, each with the blocks that follow it."""
    headings = [n for n in range(lo, hi) if blocks[n].kind == "heading"]
    styles = {blocks[n].style for n in headings}
    counts = {style: sum(blocks[n].style == style for n in headings) for style in styles}
    for style in sorted(styles, key=lambda style: (style[0] != "#", len(style) if style[0] == "#" else 0, style)):
        if counts[style] < 2:
            continue
        starts = [n for n in headings if blocks[n].style == style]
        ranges = [_trimmed(blocks, a, b) for a, b in zip(starts, [*starts[1:], hi], strict=True)]
        first, last = ranges[-1]
        # A closing remark follows the last section without a heading of its own.
        while last - first > 2 and blocks[last - 1].kind == "paragraph" and cues.closing(blocks[last - 1].content):
            last = _trimmed(blocks, first, last - 1)[1]
        ranges[-1] = (first, last)
        names = [blocks[a].content.lower() for a, _ in ranges]
        if all(b - a > 1 for a, b in ranges[:-1]) and len(set(names)) == len(names):
            return [(a, b) for a, b in ranges if b - a > 1]
    return []


def _trimmed(blocks: list[TextBlock], first: int, last: int) -> Range:
    """A range without the rules at its end: they stand between members, in main."""
    while last > first + 1 and blocks[last - 1].kind == "rule":
        last -= 1
    return first, last


def _items(text: str, blocks: list[TextBlock], at: int, hi: int) -> list[Range]:
    """The list that begins at block `at`: each item with the blocks nested in it or between it and the next item."""
    first = blocks[at]
    if first.kind != "item":
        return []
    items = [n for n in range(at, hi) if blocks[n].kind == "item" and blocks[n].indent == first.indent]
    ranges: list[Range] = [(at, at + 1)]
    loose = 0  # most unindented blocks after an item so far
    nested = False  # whether bullets belong to a number without being indented
    for n in items[1:]:
        between = blocks[ranges[-1][0] + 1 : n]
        outside = [b for b in between if b.indent <= first.indent and not _under(first, b) and b.kind != "rule"]
        if blocks[n].style != first.style or any(b.kind in ("heading", "item") for b in outside):
            break
        if (
            outside
            and outside[-1].content.endswith((":", "："))
            and not _follows(text, blocks[ranges[-1][0]], blocks[n])
        ):
            break  # lead-in of another list
        if outside and not (first.style[0] == "1" and len(outside) <= 4):
            break  # only numbers continue a list across paragraphs
        loose = max(loose, len(outside))
        nested = nested or any(_under(first, b) for b in between)
        ranges[-1] = _trimmed(blocks, ranges[-1][0], n)
        ranges.append((n, n + 1))
    begin, end = ranges[-1]
    while end < hi:
        block = blocks[end]
        if block.indent > first.indent or (_under(first, block) and nested):
            end += 1
            continue
        belongs = block.kind == "code" or (block.kind == "paragraph" and not cues.closing(block.content))
        if not loose or not belongs:
            break
        loose -= 1
        end += 1
    ranges[-1] = (begin, end)
    return ranges


def _under(first: TextBlock, block: TextBlock) -> bool:
    """Whether a bullet belongs to a numbered item, as in texts that lost their indentation."""
    return first.style[0] == "1" and block.kind == "item" and block.style[0] not in "1a"


def _follows(text: str, before: TextBlock, item: TextBlock) -> bool:
    """Whether an item has the number after that of `before`."""
    numbers = [text[block.start : block.body].strip(".)、．（）( ") for block in (before, item)]
    return all(number.isdecimal() for number in numbers) and int(numbers[1]) == int(numbers[0]) + 1


def _paragraphs(blocks: list[TextBlock], at: int, hi: int) -> Range:
    """Those at the end of a run of paragraphs that could come in any order; if there are none, where the run ends.

    The first one of an answer is its opening and stays in main.
    """
    last = first = max(at, 1)
    while last < hi:
        paragraph = blocks[last].content
        fits = blocks[last].kind == "paragraph" and len(words(paragraph)) >= MIN_PARAGRAPH_WORDS
        if not fits or paragraph.endswith((":", "：")) or cues.closing(paragraph):
            break
        last += 1
    count = cues.unordered([block.content for block in blocks[first:last]])
    last = max(last, at + 1)
    return (last - count if count > 1 else last), last


def _group(
    instruction: str, text: str, blocks: list[TextBlock], ranges: list[Range], headed: bool
) -> Iterator[Candidate]:
    """The members of a group as candidates, unless they build on each other; one that is too long is subdivided."""
    first = ranges[0][0]
    # Perhaps the heading of the section that is subdivided.
    lead_in = next((block.content for block in reversed(blocks[:first]) if block.kind != "rule"), "")
    known = f"{instruction}\n{text[: blocks[first].start]}"
    numbered = blocks[first].kind == "item" and blocks[first].style[0] == "1"
    bodies = []
    for a, b in ranges:
        start = blocks[a + 1].start if headed else blocks[a].body
        bodies.append(text[start : blocks[b - 1].stop])
    refers = [
        back or (headed and cues.dependent_heading(blocks[a].content))
        for (a, _), back in zip(ranges, cues.refer_back(bodies, known), strict=True)
    ]
    announced = cues.how_to(lead_in) or (not lead_in and cues.asks_how(instruction))
    perhaps = cues.steps(lead_in) or (not lead_in and cues.may_ask_how(instruction))
    in_sequence = announced or (perhaps and any(cues.in_sequence(body) for body in bodies))
    steps = (numbered and in_sequence) or (not headed and cues.only_steps(lead_in))
    if steps or sum(refers) > MAX_REFERRING * len(ranges):
        return
    counts = Counter(word for part in (known, *bodies) for word in cues.distinct(part))
    taken: set[str] = set()
    for (a, b), body, needs in zip(ranges, bodies, refers, strict=True):
        if _ids(body) > MAX_CHUNK_IDS:
            yield from _candidates(instruction, text, blocks, a + 1, b)
        elif topic := _topic(cues.without_number(blocks[a].content) if headed else body, body, counts, taken):
            taken.add(topic.casefold())
            stop = blocks[b - 1].stop
            yield Candidate(blocks[a].start, stop - len(body), stop, topic, needs)


def _topic(name: str, body: str, counts: Counter[str], taken: set[str]) -> str:
    """A topic that no earlier sibling has, from a member's name or what follows its lead, or an empty text.

    `counts` tells how many members have a word, and the text before them.
    """
    own = cues.distinct(body)
    others = {word for word in own | cues.distinct(name) if counts[word] > (word in own)}
    for text, known in ((name, others), (cues.without_lead(body), others.union(*map(cues.distinct, taken)))):
        topic = cues.topic(text, known)
        if topic.casefold() not in taken:
            return topic
    return ""


def _sentences(instruction: str, text: str, block: TextBlock) -> list[Candidate]:
    """Groups of sentences that a paragraph enumerates: First …, Second …, On the other hand …"""
    starts = [block.start + place for place in cues.enumerated(block.content)]
    before = text[: starts[0]].rstrip() if starts else ""
    led_in = (instruction, cues.last_sentence(before))
    if len(starts) < 2 or cues.asks_how(instruction) or any(cues.how_to(t) or cues.steps(t) for t in led_in):
        return []
    bodies = [text[a:b].rstrip() for a, b in zip(starts, [*starts[1:], block.stop], strict=True)]
    refers = [*cues.refer_back(map(cues.without_ordinal, bodies), f"{instruction}\n{before}")]
    if sum(refers) > MAX_REFERRING * len(refers):
        return []
    candidates, known = [], cues.distinct(text[: block.start])
    for a, body, needs in zip(starts, bodies, refers, strict=True):
        # Most tokens include the space before their word.
        start = a - 1 if a > block.start and text[a - 1] == " " else a
        topic = cues.topic(cues.without_ordinal(body), known)
        candidates.append(Candidate(start, start, a + len(body), topic, needs))
    return [candidate for candidate in candidates if candidate.topic]


def _pays_off(text: str, candidate: Candidate) -> bool:
    """Whether a fork saves main more ids than its promise costs."""
    body = text[candidate.start : candidate.stop]
    return len(words(body)) >= MIN_CHUNK_WORDS and _promise_ids(candidate.topic) < _ids(body) <= MAX_CHUNK_IDS


Mark = Candidate | int  # a chunk, or the place of a sync


def _with_syncs(blocks: list[TextBlock], chunks: list[Candidate]) -> list[Mark]:
    """The chunks and syncs in order; later text of main is assumed to need the chunks before it."""
    marks: list[Mark] = []
    remaining = iter([*chunks, None])
    chunk = next(remaining)
    for block in blocks:
        starts_chunk = False
        while chunk is not None and chunk.start < block.stop:
            if chunk.refers:
                marks.append(chunk.line)
            marks.append(chunk)
            chunk, starts_chunk = next(remaining), True
        covered = starts_chunk or (marks and isinstance(marks[-1], Candidate) and block.start < marks[-1].stop)
        if not covered and not _stands_alone(block):
            marks.append(block.start)
    return marks


def _stands_alone(block: TextBlock) -> bool:
    """Whether main can write a block without knowing the chunks before it: a heading, a lead-in, a farewell, a rule."""
    if block.kind == "heading":
        return not cues.dependent_heading(block.content)
    content = block.content
    lead_in = content.endswith((":", "：")) and not cues.closing(content) and not cues.points_back(content)
    return block.kind == "rule" or (block.kind == "paragraph" and (lead_in or cues.farewell(content)))


def _without_lone_chunks(marks: Iterable[Mark]) -> list[Mark]:
    """Without chunks that run alone, and without syncs that wait for nothing."""
    result: list[Mark] = []
    parallel: list[Candidate] = []
    for mark in [*marks, -1]:
        if isinstance(mark, Candidate):
            parallel.append(mark)
            continue
        if len(parallel) > 1:
            result += [*parallel, mark]
        parallel = []
    return result[:-1] if result and result[-1] == -1 else result


def _gain(text: str, marks: Sequence[Mark]) -> float:
    """The estimated speedup of the annotated text: the language's own clock over estimated ids."""
    now = forks_end = done = 0
    for mark in marks:
        if isinstance(mark, Candidate):
            now += _ids(text[done : mark.start]) + _promise_ids(mark.topic)
            forks_end = max(forks_end, now + _ids(text[mark.start : mark.stop]))
            done = mark.stop
        else:
            now = max(now + _ids(text[done:mark]), forks_end)
            done = mark
    now = max(now + _ids(text[done:]), forks_end)
    return _ids(text) / max(now, 1)


def _ids(text: str) -> int:
    """The estimated number of ids of a text: one for up to six letters of a word, one for a punctuation mark.

    A letter of a script without blanks between words is one, too.
    """
    return len(_ID.findall(text))


def _promise_ids(topic: str) -> int:
    return PROMISE_IDS + _ids(topic)


def _render(text: str, marks: Sequence[Mark]) -> str:
    """The text with its tags, escaped."""
    pieces, done = [], 0
    for mark in marks:
        start = mark.start if isinstance(mark, Candidate) else mark
        pieces.append(escape(text[done:start], ANNOTATION))
        done = start
        if isinstance(mark, Candidate):
            body = escape(text[mark.start : mark.stop], ANNOTATION)
            pieces.append(f'<async topic="{escape_topic(mark.topic)}">{body}</async>')
            done = mark.stop
        else:
            pieces.append("<sync/>")
    return "".join([*pieces, escape(text[done:], ANNOTATION)])
