"""Rules that a program checks: each kind; verdicts equal another package's; malformed records."""

import json

import pytest

from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read, refuse_for_training, rows_of
from pasta_jax.errors import PastaError
from pasta_jax.judges.judge import TIE, Entry
from pasta_jax.judges.offline import comparing, rules_followed
from pasta_jax.judges.rules import checkers, rules_of, rules_of_row, share
from tests.helpers.requires import requires_data, requires_dev

pytestmark = requires_data

# kind, arguments, a text that follows it, a text that breaks it
CASES = [
    ("keywords:existence", {"keywords": ["owl", "Sea"]}, "Owls over the sea", "an owl"),
    ("keywords:forbidden_words", {"forbidden_words": ["owl"]}, "owls, a bowl", "The Owl!"),
    ("keywords:frequency", {"keyword": "owl", "frequency": 2, "relation": "at least"}, "Owl, owl", "an owl"),
    ("keywords:letter_frequency", {"letter": "Q", "let_frequency": 2, "let_relation": "at least"}, "Quq", "quit"),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 1, "let_relation": "less than"}, "abcxyz", "#1"),
    ("language:response_language", {"language": "de"}, "Das ist ein großes Haus.", "It is a big house."),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "Mr. SO said IT is.",
        "SO It is",
    ),
    ("change_case:english_capital", {}, "THIS IS WHAT IT IS ABOUT, IN SHORT.", "THIS is it"),
    ("change_case:english_lowercase", {}, "this is what it is about, in short.", "das ist es nicht, was ich meine"),
    ("punctuation:no_comma", {}, "one; two", "one, two"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "I do know", "Go on!"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "Mr. Owl.", "Oh! No."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n\ntwo"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "owl"},
        "one\n\nOwl, two",
        "owl\n\ntwo",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [street 1]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "So.\n\nP.S. Write!", "So."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "Such:\n* one\n- two", "* one"),
    ("detectable_format:constrained_response", {}, "Well. My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two three**", "*one*"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\none\n\nSection 2\ntwo",
        "Section 1\none",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "[" * 100_000),
    ("detectable_format:title", {}, "<<On owls>>\nOwls", "<On owls>"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Why is it?"}, "\nWhy is it? So.", "So. Why is it?"),
    ("startend:end_checker", {"end_phrase": "Any more?"}, "So. any more?\n", "Any more? No."),
    ("startend:quotation", {}, '"So."', 'He said "so"'),
]


def row(kind: str, arguments: dict | None) -> dict:
    return {"prompt": "?", "instruction_id_list": [kind], "kwargs": [arguments]}


@pytest.mark.parametrize(("kind", "arguments", "kept", "broken"), CASES)
def test_a_rule_is_followed_or_broken(kind, arguments, kept, broken):
    [rule] = rules_of_row(row(kind, arguments), "here")
    assert [rule.is_followed_by(text) for text in (kept, broken, "", " \n")] == [True, False, False, False]


def test_every_rule_of_ifeval_is_known_and_its_questions_are_not_trained_on():
    assert {kind for kind, *_ in CASES} == checkers().keys()
    rules = rules_of("ifeval")
    assert (len(rules), sum(map(len, rules.values()))) == (541, 834)
    assert {rule.kind for of in rules.values() for rule in of} == checkers().keys()
    pairs = list(read("ifeval"))
    assert all(isinstance(pair, Pair) and not pair.response for pair in pairs)
    assert {pair.instruction for pair in pairs} == set(rules)
    assert rules_of("mt_bench") == {}
    with pytest.raises(PastaError, match="ifeval: reserved for evaluation"):
        refuse_for_training(["ifeval"])


@pytest.mark.slow
@requires_dev("lm_eval")
@pytest.mark.parametrize("part", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.extended)], ids=["fourth", "rest"])
def test_verdicts_equal_those_of_lm_eval(part):
    """The checkers of another package, in its own loop over the rules of a question."""
    checkers()  # knows where NLTK's data is, which lm_eval would download
    from lm_eval.tasks.ifeval import utils

    texts = [pair.response for pair in read("alpaca_eval") if isinstance(pair, Pair)]
    verdicts = []
    for number, (place, question) in enumerate(rows_of("ifeval")):
        if number % 4 not in part or any((values or {}).get("letter") in ("#", "!") for values in question["kwargs"]):
            continue  # a letter drawn by chance, there
        rules = rules_of_row(question, place)
        for text in (texts[number], texts[number].lower().replace(",", "")):
            result = utils.process_results(question, [text])
            assert [rule.is_followed_by(text) for rule in rules] == result["inst_level_strict_acc"], (place, rules)
            verdicts += result["inst_level_strict_acc"]
    assert len(verdicts) > 400 * len(part)
    assert 0.2 < sum(verdicts) / len(verdicts) < 0.8


def test_the_judge_compares_shares_and_ties_without_rules():
    lists = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, None]}
    rules = {"?": rules_of_row(lists, "here")}
    assert [share(rules["?"], text) for text in ('"So."', "So.", '"So, so."', "So, so.")] == [1.0, 0.5, 0.5, 0.0]
    judge = comparing(rules_followed(rules), 1.0)
    assert judge("?", Entry('"So."'), Entry("So.")).first > 0.6
    assert judge("?", Entry("So."), Entry('"So, so."')) == judge("another", Entry("a"), Entry("b, c")) == TIE


WORDS = "length_constraints:number_words"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction_id_list": "punctuation:no_comma"}, "kwargs: must hold one object for each"),
        ({"kwargs": []}, "kwargs: must hold one object for each"),
        ({"instruction_id_list": ["no:such"]}, "unknown kind 'no:such'; choose one of keywords:existence, "),
        ({"instruction_id_list": [7]}, "unknown kind 7"),
        ({"kwargs": [[1]]}, f"kwargs of {WORDS}: must be an object"),
        ({"kwargs": [{"num_words": 3}]}, "must be num_words, relation; the record has num_words"),
        ({"kwargs": [{"num_words": "3", "relation": "at least"}]}, f"kwargs of {WORDS}: .*'3'.* can't be checked"),
        ({"kwargs": [{"num_words": 3, "relation": "about"}]}, f"kwargs of {WORDS}: .*about.* can't be checked"),
        (row("language:response_language", {"language": "tlh"}), "kwargs of language:response_language: .*tlh"),
        (row("keywords:existence", {"keywords": "owl"}), "keywords must be a list"),
        (row("keywords:existence", {"keywords": [1]}), "kwargs of keywords:existence: "),
        (row("startend:end_checker", {"end_phrase": 1}), "kwargs of startend:end_checker: "),
    ],
)
def test_a_record_whose_rules_cannot_be_checked_is_named(tmp_path, fields, message):
    (tmp_path / "rules.jsonl").write_text(json.dumps(row(WORDS, {}) | fields))
    with pytest.raises(PastaError, match=f"rules.jsonl: line 1: .*{message}"):
        rules_of(str(tmp_path / "rules.jsonl"))
