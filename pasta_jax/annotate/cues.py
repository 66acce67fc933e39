"""Words that signal how the parts of a text depend on each other, and a topic from its first words. Mostly English.

These are heuristics. They err towards "needs what came before", which costs speed but never correctness.
"""

import re
from collections.abc import Callable

from pasta_jax.lang.program import MAX_TOPIC_WORDS

Cue = Callable[[str], bool]  # whether a text has it


def _any(*words: str) -> Cue:
    """Whether a text contains one of these words."""
    pattern = re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)
    return lambda text: bool(pattern.search(text))


def _opens(*words: str) -> Cue:
    """Whether a text begins with one of these words."""
    pattern = re.compile(rf"\W*(?:{'|'.join(words)})\b", re.IGNORECASE)
    return lambda text: bool(pattern.match(text))


# An instruction that requests continuous prose, in which each sentence builds on the one before.
creative = _any(
    "story", "stories", "tale", "poem", "poetry", "haiku", "limerick", "sonnet", "song", "lyrics", "rap", "script",
    "screenplay", "scene", "dialogue", "dialog", "conversation between", "monologue", "novel", "fan ?fiction",
    "letter", "e-?mail", "speech", "joke", "role-?play", "act as", "translate", "rewrite", "proofread",
)  # fmt: skip
_closing = _opens(
    "in (?:conclusion|summary|short|general|brief|the end)", "overall", "ultimately",
    "to (?:conclude|summari[sz]e|sum up)", "(?:in|with|by|given|taking) (?:all|these|those|this|that|both)",
    "all (?:in all|of (?:these|this|them)|these)", "these", "those", "this", "that", "both", "remember",
    "keep in mind", "(?:please )?note", "finally", "lastly", "so",
    "it(?:['’]s| is) (?:also )?(?:important|worth|essential|crucial)", "therefore", "thus", "hence", "as a result",
    "by (?:following|using|doing|implementing|taking|combining|incorporating|[a-z]+ing (?:these|this|all))",
    "of course", "however", "once", "after", "depending", "additionally", "also",
)  # fmt: skip
_farewell = _opens(
    "i hope", "hope (?:this|that|it)", "let me know", "feel free", "good luck", "enjoy", "happy [a-z]+ing",
    "best of luck", "if you have any (?:other |further |more |specific )?questions",
)  # fmt: skip
_opens_backwards = _opens(
    "and", "but", "so", "then", "next", "now", "once", "after(?: that|wards)?", "again", "repeat", "therefore",
    "thus", "hence", "however", "instead", "otherwise", "nevertheless", "consequently", "meanwhile", "similarly",
    "likewise", "conversely", "as a result", "as such", "for this reason", "for (?:example|instance)",
    "to illustrate", "alternatively", "in (?:this|that|these|such) [a-z]+", "in other words", "specifically", "this",
    "these", "that", "those", "it", "its", "they", "their", "them", "such", "he", "she", "his", "her", "him", "both",
    "either", "neither",
)  # fmt: skip
_points_backwards = _any(
    "above", "aforementioned", "(?:as )?mentioned", "previous(?:ly)?", "preceding", "the former", "the latter",
     "(?:as|like) (?:before|described|noted|discussed|shown|stated|seen)",
    "earlier (?:step|point|section)", "resulting",
    r"(?:step|point|item|option|method|part|section|example|rule)s? (?:#|no\.? ?)?\d+",
    "the (?:first|second|third|last|other) (?:one|step|point|item|option|method|part|section|example)",
    "you(?: have|['’]ve)? (?:just )?(?:created|made|defined|installed|wrote|written|downloaded|chosen|chose|prepared)",
    "we(?: have|['’]ve)? (?:just )?(?:created|made|defined|found|calculated|computed|saw|seen|obtained)",
    "(?:all|each|any|some|one|both|either|neither) of (?:these|those|them)", "in addition to (?:this|that|these)",
)  # fmt: skip
# A list that is announced as steps of one task.
steps = _any(
    "steps?", "instructions?", "directions?", "procedure", "recipe", "process", "tutorial", "method", "preparation",
    "how to", "walk ?through", "as follows", "algorithm", "proof", "solution", "calculate", "solve", "setup",
)  # fmt: skip
# A list that is announced as instructions for one thing.
how_to = _any(
    "how (?:to|you|we|i)", "(?:follow|take) (?:these|the|this)", "as follows", "(?:these|the following) steps"
)
# An item that reads like a step with others before or after it.
in_sequence = _any(
    "then", "next", "once", "now", "again", "until", "afterwards?", "remaining", "resulting", "finally", "first",
    "step", "after (?:that|you|the)", "back to", "(?:begin|start) by", "following (?:command|code)", "create an?",
    "add the", "click(?: on)? the", "in the new",
)  # fmt: skip
# The heading of a section that depends on the sections before it.
dependent_heading = _opens(
    "(?:in )?(?:conclusion|summary|short)", "overall", "result(?:s|ing)?", "total", "final", "answer",
    "instructions?", "directions?", "methods?", "steps?", "procedure", "preparation", "verdict", "recommendation",
    "comparison", "solution", "takeaways?", "next", "output", "explanation", "example(?: usage)?", "usage", "note",
    "now", "then", "finally", "lastly", "verse", "chorus", "act", "scene", "chapter", "part",
)  # fmt: skip
_ORDINAL = re.compile(
    r"(?:^|(?<=[.!?] ))(?:(?:first|second|third|fourth|fifth)(?:ly| of all)?,|another \w+|additionally,|furthermore,"
    r"|moreover,|in addition,|on (?:the )?one hand,|on the other hand,|for one,|lastly,|finally,|also,)",
    re.IGNORECASE,
)
_ORDINAL_WORDS = re.compile(r"\W*(?:[A-Za-z ]{3,18},|another)\s*", re.IGNORECASE)
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can for from has have i if in into is it its may more most not of on one or our"
        " over so such than that the their them then there these they this to up use using was we when which while"
        " who will with you your he she his her him also any each other some all do does been being would could"
        " should might must many several various another example used known called based make made include"
        " includes including often usually typically what how why where refer refers provides provide designed"
        " allows allow help helps",
    )
)
_PAST = re.compile(r"\b(?:was|were|had|did|said|went|came|took|saw|felt|knew|began|became|[a-z]{3,}ed)\b")
_INTRODUCED = re.compile(r"\b(?:an?|new|another)\s+((?:[a-z-]+\s+){0,2}[a-z-]+)", re.IGNORECASE)
_DEFINITE = re.compile(r"\b(?:the|your|that|this)\s+((?:[a-z-]+\s+){0,1}[a-z-]+)", re.IGNORECASE)
_CODE_NAME = re.compile(r"`([^`\n]{2,40})`")
_WORD = re.compile(r"[^\W_](?:[\w'’+#./&-]*[\w+#])?")
_LEADS = (
    re.compile(r"\s*(?:\*\*|__)([^*_\n]{2,80})(?:\*\*|__)"),
    re.compile(r"\s*[*_]?([^:.!?\n]{2,60}?)[*_]{0,3}(?::|\s+[-–—])(?=\s)"),
)


def closing(text: str) -> bool:
    """Whether a paragraph begins like a summary of the preceding text."""
    return _closing(text) or _points_backwards(_first_sentence(text)) or farewell(text)


def farewell(text: str) -> bool:
    """Whether a paragraph is a courtesy that depends on nothing in the answer."""
    return _farewell(text) and len(text.split()) < 40


def refers_back(text: str, earlier: str, known: str) -> bool:
    """Whether a part needs its earlier siblings: it points back, or names a thing that they introduced.

    `known` is the text that every part sees: the question and the text before the group.
    """
    if _opens_backwards(text) or _points_backwards(text):
        return True
    introduced = {_last_word(m) for m in _INTRODUCED.findall(earlier.lower())} - _words(known)
    if introduced & {_last_word(m) for m in _DEFINITE.findall(text.lower())} - _COMMON:
        return True
    names = set(_CODE_NAME.findall(earlier)) & set(_CODE_NAME.findall(text))
    return any(name not in known for name in names)


def narrative(text: str) -> bool:
    """Whether a text recounts events in order."""
    return len(_PAST.findall(text.lower())) > 0.06 * len(text.split())


def english(text: str) -> bool:
    """Whether a text is in English, whose words these heuristics rely on."""
    words = text.lower().split()
    return sum(word in _COMMON for word in words) > 0.2 * len(words)


def enumerated(text: str) -> list[int]:
    """The starts of the sentences that enumerate the points of a paragraph."""
    return [match.start() for match in _ORDINAL.finditer(text)]


def without_ordinal(text: str) -> str:
    """A sentence without the words that number it."""
    match = _ORDINAL_WORDS.match(text)
    return text[match.end() :] if match else text


def without_number(heading: str) -> str:
    """A heading without its number: of `Day 1: Osaka` the part after the colon."""
    rest = re.sub(r"^[^:]*\d[^:]*:\s*(?=\S)", "", heading)
    return rest if _WORD.search(rest) else heading


def topic(text: str, known: str) -> str:
    """At most three words: a lead in bold or before a colon, else words of the first sentence not in `known`."""
    lead = next((m[1] for m in (lead.match(text) for lead in _LEADS) if m and len(m[1].split()) <= 8), "")
    words = _WORD.findall(lead)
    if len(words) > MAX_TOPIC_WORDS:
        words = [word for word in words if word.lower() not in _COMMON] or words
    words = words[words[:1] != [] and words[0].lower() in ("a", "an", "the") and len(words) > 1 :]
    words = (
        words or _content_words(_first_sentence(text), _words(known)) or _content_words(_first_sentence(text), set())
    )
    return " ".join((words or _WORD.findall(text[:400]))[:MAX_TOPIC_WORDS])


def common(text: str) -> bool:
    """Whether a text has no word with a content of its own."""
    return all(word.lower() in _COMMON for word in _WORD.findall(text))


def _content_words(sentence: str, known: set[str]) -> list[str]:
    """The first run of two or more consecutive content words that are not in `known`, else the longest run."""
    runs: list[list[str]] = [[]]
    for word in re.findall(r"[^\W_](?:[\w'’+#./&-]*[\w+#])?|[^\w\s]", sentence):
        if word[0].isalnum() and word.lower() not in _COMMON and word.lower() not in known:
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    return next((run for run in runs if len(run) > 1), max(runs, key=len))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def _last_word(phrase: str) -> str:
    return phrase.split()[-1]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z-]+", text.lower()))
