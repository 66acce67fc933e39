"""Our rules against IFEval's own checkers, which a pinned package ships: several answers to each of 541 questions.

Answers are AlpacaEval's, as they are and edited to follow the question's rules: each alone, all, and all but one. The
checkers import nltk, whose data needs a download: a stub splits words, and the count of sentences is not compared.
"""

import importlib
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read, rows_of
from pasta_jax.judges.rules import KINDS, Rule, rules_of_row
from tests.helpers.requires import requires_data, requires_dev
from tests.judges.test_rules import SENTENCES

pytestmark = [requires_data, requires_dev("langdetect")]

WORDS = r"\w+(?:['’-]\w+)*|[^\w\s]"
IN_ENGLISH = ("change_case:english_capital", "change_case:english_lowercase")


class RegexpTokenizer:
    """The only class of nltk that the compared checkers use."""

    def __init__(self, pattern: str):
        self.pattern = pattern

    def tokenize(self, text: str) -> list[str]:
        return re.findall(self.pattern, text)


@pytest.fixture(scope="module")
def checkers() -> Iterator[dict[str, type]]:
    """IFEval's checkers by kind, imported without the rest of their package, which needs more than is installed."""
    import langdetect

    langdetect.DetectorFactory.seed = 0  # it samples
    nltk = ModuleType("nltk")
    nltk.tokenize = SimpleNamespace(RegexpTokenizer=RegexpTokenizer)
    nltk.word_tokenize = RegexpTokenizer(WORDS).tokenize
    [folder] = importlib.util.find_spec("eval_framework").submodule_search_locations
    package = ModuleType("ifeval_reference")
    package.__path__ = [str(Path(folder) / "tasks/ifeval")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nltk", nltk)
        patch.setitem(sys.modules, "ifeval_reference", package)
        yield importlib.import_module("ifeval_reference.instructions_registry").INSTRUCTION_DICT
        for name in [name for name in sys.modules if name.startswith("ifeval_reference.")]:
            del sys.modules[name]


def followed(checkers: dict[str, type], rule: Rule, question: str, answer: str) -> bool:
    """The reference's verdict."""
    checker = checkers[rule.kind](rule.kind)
    checker.build_description(**dict(rule.arguments))
    if "prompt" in (checker.get_instruction_args() or {}):
        checker.build_description(prompt=question)
    return bool(answer.strip()) and bool(checker.check_following(answer))


def edited(text: str, rule: Rule) -> str:
    """The text, changed to follow a rule."""
    a = dict(rule.arguments)
    at_least = "at least" in a.values()
    match rule.kind:
        case "keywords:existence":
            return f"{text} {' '.join(a['keywords'])}."
        case "keywords:forbidden_words":
            return re.sub("|".join(map(re.escape, a["forbidden_words"])), "x", text, flags=re.IGNORECASE)
        case "keywords:frequency" if at_least:
            return text + f" {a['keyword']}" * a["frequency"]
        case "keywords:frequency":
            return re.sub(re.escape(a["keyword"]), "x", text, flags=re.IGNORECASE)
        case "keywords:letter_frequency" if at_least:
            return text + f" {a['letter']}" * a["let_frequency"]
        case "keywords:letter_frequency":
            return re.sub(re.escape(a["letter"]), "", text, flags=re.IGNORECASE)
        case "language:response_language":
            return SENTENCES[a["language"]]
        case "change_case:capital_word_frequency":
            return text + " OWL" * a["capital_frequency"] if at_least else text.lower()
        case "change_case:english_capital":
            return text.upper()
        case "change_case:english_lowercase":
            return text.lower()
        case "punctuation:no_comma":
            return text.replace(",", "")
        case "length_constraints:number_words":
            return text + " owl" * a["num_words"] if at_least else " ".join(text.split()[: a["num_words"] // 2])
        case "length_constraints:number_sentences":
            return text + " It is so." * a["num_sentences"] if at_least else "It is so."
        case "length_constraints:number_paragraphs":
            return "\n***\n".join([text.replace("*", "")] * a["num_paragraphs"])
        case "length_constraints:nth_paragraph_first_word":
            before = ["Here is one."] * (a["nth_paragraph"] - 1)
            after = ["Here is another."] * (a["num_paragraphs"] - a["nth_paragraph"])
            return "\n\n".join([*before, f"{a['first_word']} comes first.", *after])
        case "detectable_content:number_placeholders":
            return text + " [name]" * a["num_placeholders"]
        case "detectable_content:postscript":
            return f"{text}\n\n{a['postscript_marker']} Write soon."
        case "detectable_format:number_bullet_lists":
            return "These are the points:\n" + "* a point\n" * a["num_bullets"]
        case "detectable_format:constrained_response":
            return "My answer is yes."
        case "detectable_format:number_highlighted_sections":
            return text + " *owl*" * a["num_highlights"]
        case "detectable_format:multiple_sections":
            return "\n".join(f"{a['section_spliter']} {n}\nText." for n in range(1, a["num_sections"] + 1))
        case "detectable_format:json_format":
            return json.dumps({"answer": text})
        case "detectable_format:title":
            return f"<<Owls>>\n{text}"
        case "combination:two_responses":
            return f"{text}\n******\nAnother one."
        case "combination:repeat_prompt":
            return f"{a['prompt_to_repeat']}\n{text}"
        case "startend:end_checker":
            return f"{text}\n{a['end_phrase']}"
        case "startend:quotation":
            return f'"{text.replace(chr(34), "")}"'
    raise KeyError(rule.kind)


def answers_to(rules: tuple[Rule, ...], text: str) -> list[str]:
    """The text as it is, edited by each rule alone, by all rules, and by all but one."""
    answers = [text, *(edited(text, rule) for rule in rules)]
    for left_out in (None, *rules):
        answer = text
        for rule in rules:
            answer = answer if rule is left_out else edited(answer, rule)
        answers.append(answer)
    return list(dict.fromkeys(answers))


@pytest.mark.slow
def test_verdicts_equal_those_of_ifevals_own_checkers(checkers):
    import langdetect

    texts = [pair.response for pair in read("alpaca_eval") if isinstance(pair, Pair)]
    verdicts: Counter[tuple[str, bool]] = Counter()
    differences = []
    for number, (place, row) in enumerate(rows_of("ifeval")):
        rules = rules_of_row(row, place)
        for rule in rules:
            letter = dict(rule.arguments).get("letter", "a")
            # The reference needs nltk's data for sentences, and puts a random letter in place of one such as #.
            if rule.kind == "length_constraints:number_sentences" or not letter.isalpha():
                continue
            for answer in answers_to(rules, texts[number]):
                expected = followed(checkers, rule, row["prompt"], answer)
                verdicts[rule.kind, expected] += 1
                # langdetect takes some short or upper-case English for another language.
                misread = rule.kind in IN_ENGLISH and not expected and langdetect.detect(answer) != "en"
                if rule.is_followed_by(answer) != expected and not misread:
                    differences.append((place, rule, expected, answer))
    assert differences == []
    assert {kind for kind, _ in verdicts} == KINDS.keys() - {"length_constraints:number_sentences"}
    assert min(verdicts[kind, value] for kind, _ in list(verdicts) for value in (True, False)) >= 9, verdicts
    assert verdicts.total() > 2500
