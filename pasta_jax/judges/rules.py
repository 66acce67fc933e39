"""Rules that a program can check an answer against: IFEval's 25 kinds (Zhou et al. 2023, arXiv 2311.07911).

    keyword_frequency(text, keyword="owl", frequency=2, relation="at least") -> bool

This is our own implementation of the strict check, on the answer as it is; test_rules_reference.py compares it
with IFEval's. A keyword also counts within longer words, a forbidden word only by itself; both ignore case. Sentences
end at a punctuation mark or with a paragraph. Scripts and common words identify the language of an answer
(languages.py): that of a few words may be unknown, which breaks the rule.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence

from pasta_jax.data.pairs import Pair, Unreadable, parse_pair
from pasta_jax.data.sources import rows_of
from pasta_jax.errors import PastaError
from pasta_jax.judges.languages import LANGUAGES, language_of, script_of

RELATIONS = {"at least": lambda count, limit: count >= limit, "less than": lambda count, limit: count < limit}
TYPES = {int: ("an integer", int), str: ("a string", str), list[str]: ("a list of strings", list)}  # of arguments
MY_ANSWER = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
SHORT = {"mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "a.m", "p.m", "u.s", "approx"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One requirement on an answer."""

    kind: str  # a key of KINDS
    arguments: tuple[tuple[str, object], ...]

    def is_followed_by(self, answer: str) -> bool:
        """Whether the answer follows the rule; an empty one never does."""
        return bool(answer.strip()) and KINDS[self.kind](answer, **dict(self.arguments))


def share(rules: Sequence[Rule], answer: str) -> float:
    """The share of the rules that the answer follows."""
    return sum(rule.is_followed_by(answer) for rule in rules) / len(rules)


def rules_of(source: str) -> dict[str, tuple[Rule, ...]]:
    """The rules of a source's questions; its records have `instruction_id_list` and `kwargs`, as IFEval has."""
    rules = {}
    for place, row in rows_of(source):
        pair = row if isinstance(row, Unreadable) else parse_pair(row, source, place)
        if isinstance(pair, Pair) and "instruction_id_list" in row:
            rules[pair.instruction] = rules_of_row(row, place)
    return rules


def rules_of_row(row: dict, place: str) -> tuple[Rule, ...]:
    """The rules of one record; malformed ones are refused by place."""
    kinds, arguments = row["instruction_id_list"], row.get("kwargs")
    if not isinstance(kinds, list) or not isinstance(arguments, list) or len(kinds) != len(arguments):
        raise PastaError(f"{place}: kwargs: must hold one object for each of instruction_id_list")
    return tuple(_rule(kind, values, place) for kind, values in zip(kinds, arguments, strict=True))


def _rule(kind: object, values: object, place: str) -> Rule:
    if not isinstance(kind, str) or kind not in KINDS:
        raise PastaError(f"{place}: instruction_id_list: unknown kind {kind!r}; choose one of {', '.join(KINDS)}")
    if not isinstance(values, dict | None):
        raise PastaError(f"{place}: kwargs of {kind}: must be an object")
    arguments = {name: value for name, value in (values or {}).items() if value is not None}
    parameters = dict(list(inspect.signature(KINDS[kind]).parameters.items())[1:])  # the first is the text
    if arguments.keys() != parameters.keys():
        expected, actual = (", ".join(names) or "none" for names in (parameters, arguments))
        raise PastaError(f"{place}: kwargs of {kind}: must be {expected}; the record has {actual}")
    for name, value in arguments.items():
        called, types = TYPES[parameters[name].annotation]
        if not isinstance(value, types) or (types is list and not all(isinstance(item, str) for item in value)):
            raise PastaError(f"{place}: {name} of {kind}: must be {called}, not {value!r}")
        known = RELATIONS if name.endswith("relation") else LANGUAGES if name == "language" else (value,)
        if value not in known:
            raise PastaError(f"{place}: {name} of {kind}: unknown {value!r}; choose one of {', '.join(sorted(known))}")
    return Rule(kind, tuple(arguments.items()))


def compare(count: int, relation: str, limit: int) -> bool:
    return RELATIONS[relation](count, limit)


def parts(pieces: Iterable[str]) -> list[str]:
    """Pieces between dividers, without an empty one at the start or the end."""
    pieces = [piece.strip() for piece in pieces]
    return pieces[not pieces[0] : len(pieces) - (len(pieces) > 1 and not pieces[-1])]


def words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['’-]\w+)*", text)


def sentences(text: str) -> int:
    """The number of sentences. A mark before a blank ends one, except in abbreviations, initials and list numbers."""
    count = 0
    for paragraph in re.split(r"\n\s*\n", text):
        started = False
        for word in paragraph.split():
            started = started or bool(re.search(r"\w", word))
            bare = word.rstrip("\"'”’)]*_")
            if not started or not bare.endswith((".", "!", "?", "…", "。", "।", "؟")):
                continue
            stem = bare[:-1].lstrip("\"'“‘([*_").casefold()
            if bare.endswith(".") and (stem in SHORT or re.fullmatch(r"\w|\d{1,2}", stem)):
                continue
            count, started = count + 1, False
        count += started
    return count


# Words and letters


def keywords(text: str, keywords: list[str]) -> bool:
    return all(word.casefold() in text.casefold() for word in keywords)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return compare(text.casefold().count(keyword.strip().casefold()), relation, frequency)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(text.casefold().count(letter.casefold()), let_relation, let_frequency)


def capital_words(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return compare(sum(word.isupper() for word in words(text)), capital_relation, capital_frequency)


def capitals(text: str) -> bool:
    return text.isupper() and in_english(text)


def lowercase(text: str) -> bool:
    return text.islower() and in_english(text)


def in_english(text: str) -> bool:
    """Whether the text is English, or in Latin letters without a word that identifies its language."""
    return script_of(text) == "LATIN" and language_of(text) in ("en", None)


def in_language(text: str, language: str) -> bool:
    return language_of(text) == language


def no_comma(text: str) -> bool:
    return not re.search("[,，،]", text)


# Length


def number_words(text: str, num_words: int, relation: str) -> bool:
    return compare(len(words(text)), relation, num_words)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compare(sentences(text), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Paragraphs are divided by three asterisks that stand alone."""
    paragraphs = parts(re.split(r"(?:(?<=\s)|^)\*{3}(?=\s|$)", text))
    return len(paragraphs) == num_paragraphs and all(paragraphs)


def paragraph_begins(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs are divided by empty lines."""
    paragraphs = parts(re.split(r"\n\s*\n", text.strip()))
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= len(paragraphs):
        return False
    return [word.casefold() for word in words(paragraphs[nth_paragraph - 1])[:1]] == [first_word.casefold()]


# Content and form


def placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]]+\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """Whether a line starts with the marker and text follows."""
    marker = r"\s?".join(map(re.escape, re.sub(r"\s", "", postscript_marker)))
    return bool(re.search(rf"^[^\w\n]*{marker}[^\w\n]*(?:\n\W*)?\w", text, re.IGNORECASE | re.MULTILINE))


def bullets(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"^[ \t]*[*+-][ \t]+(?=.*\w)", text, re.MULTILINE)) == num_bullets


def my_answer(text: str) -> bool:
    """Whether exactly one of three phrases occurs."""
    return sum(phrase in text for phrase in MY_ANSWER) == 1


def highlights(text: str, num_highlights: int) -> bool:
    return len(re.findall(r"(?<!\*)(\*{1,3})(?![*\s])[^*\n]*[^*\s]\1(?!\*)", text)) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: int) -> bool:  # the data spells the argument like this
    """Count lines that start with the word and a number, each number once."""
    numbered = rf"^\W*{re.escape(section_spliter.strip())}\s+(\d+|[ivx]+)\b"
    return len(set(re.findall(numbered, text.casefold(), re.IGNORECASE | re.MULTILINE))) >= num_sections


def json_format(text: str) -> bool:
    """Whether the text, with or without a code fence around it, is a JSON object or list."""
    fenced = re.fullmatch(r"```(?:json)?\s(.*?)```", text.strip(), re.DOTALL | re.IGNORECASE)
    try:
        return isinstance(json.loads(fenced[1] if fenced else text), dict | list)
    except (ValueError, RecursionError):
        return False


def title(text: str) -> bool:
    return bool(re.search(r"<<\s*[^<>\n]*[^<>\s]\s*>>", text))


def two_responses(text: str) -> bool:
    """Whether six asterisks divide two different answers."""
    answers = parts(re.split(r"(?<!\*)\*{6}(?!\*)", text))
    return len(answers) == 2 and all(answers) and answers[0] != answers[1]


def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


def ends_with(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').rstrip().casefold().endswith(end_phrase.strip().strip('"').casefold())


def quoted(text: str) -> bool:
    return bool(re.fullmatch(r'["“].*\w.*["”]', text.strip(), re.DOTALL))


KINDS: dict[str, Callable[..., bool]] = {
    "keywords:existence": keywords,
    "keywords:forbidden_words": forbidden_words,
    "keywords:frequency": keyword_frequency,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": in_language,
    "change_case:capital_word_frequency": capital_words,
    "change_case:english_capital": capitals,
    "change_case:english_lowercase": lowercase,
    "punctuation:no_comma": no_comma,
    "length_constraints:number_words": number_words,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:nth_paragraph_first_word": paragraph_begins,
    "detectable_content:number_placeholders": placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:constrained_response": my_answer,
    "detectable_format:number_highlighted_sections": highlights,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeats_prompt,
    "startend:end_checker": ends_with,
    "startend:quotation": quoted,
}
