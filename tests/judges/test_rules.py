"""Rules that a program checks: texts that follow and break each kind; languages; malformed records."""

import json

import pytest

from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read, refuse_for_training
from pasta_jax.errors import PastaError
from pasta_jax.judges.judge import TIE, agreement
from pasta_jax.judges.languages import LANGUAGES, language_of
from pasta_jax.judges.offline import comparing, rules_followed
from pasta_jax.judges.rules import KINDS, rules_of, rules_of_row, sentences, share
from tests.helpers.requires import requires_data

# kind, arguments, texts that follow it, texts that break it
CASES = [
    ("keywords:existence", {"keywords": ["owl", "Sea"]}, ["Owls over the sea"], ["an owl"]),
    ("keywords:forbidden_words", {"forbidden_words": ["owl"]}, ["owls, a bowl"], ["The Owl!"]),
    ("keywords:frequency", {"keyword": "owl", "frequency": 2, "relation": "at least"}, ["Owl, owl"], ["an owl"]),
    ("keywords:frequency", {"keyword": "owl", "frequency": 2, "relation": "less than"}, ["an owl"], ["Owl, owl"]),
    ("keywords:letter_frequency", {"letter": "Q", "let_frequency": 2, "let_relation": "at least"}, ["Quq"], ["quit"]),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 1, "let_relation": "less than"}, ["1"], ["#1"]),
    ("language:response_language", {"language": "de"}, ["Das ist ein Haus."], ["It is a house.", "Haus", "Det är ett"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["SO IT is", "WELL-KNOWN in the US"],
        ["SO It is", "12 34"],
    ),
    ("change_case:english_capital", {}, ["THIS IS IT, OK?", "OWL 7"], ["THIS is it", "DAS IST ES", "ДА", "12"]),
    ("change_case:english_lowercase", {}, ["this is it, ok?"], ["This is it", "das ist es nicht"]),
    ("punctuation:no_comma", {}, ["one; two"], ["one, two", "一，二"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, ["I don't know"], ["I don't -"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, ["Go on!"], ["Do go on"]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, ["Oh! No."], ["Oh no."]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, ["Mr. Owl."], ["A is. So."]),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["one\n***\ntwo", "***\n\none *** two\n***"],
        ["one\n\ntwo", "one\n***\ntwo\n***\nthree", "one\n***\n***\ntwo", "***one***\ntwo"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "owl"},
        ["one\n\nOwl, two", "one\nand\n \n\n**Owl** two"],
        ["owl\n\ntwo", "one\n\nowls two", "one\n\nowl\n\nthree", "one\nowl"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[name], [street 1]"], ["[name], []", "none"]),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["So.\n\nP.S. Write!", "So.\n**p. s.** Write!", "So.\nP.S.\nWrite!"],
        ["So.", "So.\nP.S.", "So P.S. Write!", "So.\nPS Write!"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["So.\nP.P.S. Write!"], ["So.\nP.S. Write!"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["Such:\n* one\n* two", "- one\n  - two"],
        ["* one", "* one\n* two\n* three", "*one*\n*two*", "1. one\n2. two", "* * *\n* one"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["Well. My answer is no."],
        ["No.", "my answer is no.", "My answer is yes. My answer is no."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and **two three**", "* a *one*\n* a *two*"],
        ["*one*", "* one\n* two\n* three", "2 * 3 * 4", "****", "*one\ntwo*"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\none\n\n## SECTION 2: two", "section i\n.\nsection ii\n."],
        ["Section 1\none", "Section 1\none\nSection 1\ntwo", "See Section 1 and Section 2", "Section one\nSection two"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1]}', '```json\n{"a": 1}\n```', "```\n[]\n```"],
        ['Here: {"a": 1}', "{'a': 1}", "7", '```json\n{"a": 1}\n```\nDone.', "[" * 100_000],
    ),
    ("detectable_format:title", {}, ["<<On owls>>\nOwls"], ["<On owls>", "<<>>", "<< >>"]),
    (
        "combination:two_responses",
        {},
        ["one\n******\ntwo", "******\none ****** two"],
        ["one", "one\n******\none", "one\n******\n", "one\n***\ntwo", "one\n******\ntwo\n******\nthree"],
    ),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Why is it?"}, ["\nWhy is it? So."], ["So. Why is it?"]),
    ("startend:end_checker", {"end_phrase": "Any more?"}, ["So. any more?\n", '"So. Any more?"'], ["Any more? No."]),
    ("startend:quotation", {}, ['"So."', ' "So," he said, "or so." '], ['"So', 'He said "so"', '"', '""']),
]
SENTENCES = {
    "en": "All people are born free, and they are equal in dignity.",
    "de": "Alle Menschen sind frei und gleich an Würde geboren, das ist nicht neu.",
    "nl": "Alle mensen worden vrij geboren en het is niet nieuw dat ze gelijk zijn.",
    "fr": "Tous les hommes naissent libres et égaux, et ce n'est pas une idée qui date.",
    "es": "Todos los hombres nacen libres y no es una idea nueva, pero es justa.",
    "pt": "Todos os homens nascem livres e não é uma ideia nova, mas é justa.",
    "it": "Tutti gli uomini nascono liberi, e non è una cosa nuova ma è giusta.",
    "fi": "Kaikki ihmiset ovat vapaita, mutta se ei ole uusi ajatus ja niin on hyvä.",
    "sw": "Watu wote wamezaliwa huru na hii ni kwa ajili ya haki za kila mtu.",
    "vi": "Mọi người đều được tự do và không có gì là mới trong những điều này.",
    "ru": "Все люди свободны, и это не новая мысль, но она верна.",
    "bg": "Всички хора са свободни и това не е нова мисъл, но тя е вярна за нас.",
    "uk": "Усі люди вільні, і це не нова думка, але вона є вірна для нас та для них.",
    "hi": "सभी लोग स्वतंत्र हैं और यह कोई नई बात नहीं है।",
    "mr": "सर्व लोक स्वतंत्र आहेत आणि ही नवी गोष्ट नाही.",
    "ne": "सबै मानिस स्वतन्त्र छन् र यो नयाँ कुरा हो।",
    "ar": "كل الناس أحرار و هذا ليس جديدا، لا بل هو حق من الحقوق التي لنا.",
    "fa": "همه مردم آزادند و این که تازه نیست، اما برای ما از آن است.",
    "ur": "تمام لوگ آزاد ہیں اور یہ کوئی نئی بات نہیں ہے۔",
    "kn": "ಎಲ್ಲಾ ಮಾನವರು ಸ್ವತಂತ್ರರು.",
    "pa": "ਸਾਰੇ ਲੋਕ ਆਜ਼ਾਦ ਹਨ।",
    "gu": "બધા લોકો સ્વતંત્ર છે.",
    "te": "మానవులందరూ స్వతంత్రులు.",
    "ta": "மனிதர்கள் அனைவரும் சுதந்திரமானவர்கள்.",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระ",
    "bn": "সব মানুষ স্বাধীন।",
    "ko": "모든 사람은 자유롭다.",
}


def row(kind: str, arguments: dict | None) -> dict:
    return {"prompt": "?", "instruction_id_list": [kind], "kwargs": [arguments]}


@pytest.mark.parametrize(("kind", "arguments", "kept", "broken"), CASES)
def test_a_rule_is_followed_or_broken(kind, arguments, kept, broken):
    [rule] = rules_of_row(row(kind, arguments), "here")
    assert [text for text in kept if not rule.is_followed_by(text)] == []
    assert [text for text in (*broken, "", " \n") if rule.is_followed_by(text)] == []


def test_every_kind_has_its_case_and_every_language_its_sentence():
    assert {kind for kind, *_ in CASES} == set(KINDS)
    assert len(KINDS) == 25
    assert set(SENTENCES) == LANGUAGES


def test_languages_are_identified():
    assert {name: language_of(text) for name, text in SENTENCES.items()} == {name: name for name in SENTENCES}
    for unknown in ("", "1, 2, 3", "Xylophon", "今天天气很好", "que"):  # the last is a word of three languages
        assert language_of(unknown) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("- * -", 0),
        ("One. Two! Three? Four… Five", 5),
        ("Dr. A. Owl, e.g. of 3.5 kg, is here.", 1),
        ("1. One thing.\n2. Another.", 2),
        ('He said: "So." Then he went (home.)', 2),
        ("A heading\n\nOne line\nand the next.", 2),
        ("Really?! Yes...", 2),
        ("यह एक है। यह दो है।", 2),
    ],
)
def test_sentences_are_counted(text, count):
    assert sentences(text) == count


def test_the_judge_compares_shares_and_ties_without_rules():
    lists = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, None]}
    rules = {"?": rules_of_row(lists, "here")}
    assert [share(rules["?"], text) for text in ('"So."', "So.", '"So, so."', "So, so.")] == [1.0, 0.5, 0.5, 0.0]
    judge = comparing(rules_followed(rules), 1.0)
    assert judge("?", '"So."', "So.").first > 0.6
    assert judge("?", "So.", '"So, so."') == judge("another", "a", "b, c") == TIE
    result = agreement(judge, [("?", "So.", "So, so."), ("another", "a", "b, c")])
    assert (result.pairs, result.agreed, result.tied) == (2, 0.75, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction_id_list": "punctuation:no_comma"}, "kwargs: must hold one object for each"),
        ({"kwargs": []}, "kwargs: must hold one object for each"),
        ({"instruction_id_list": ["no:such"]}, "unknown kind 'no:such'; choose one of keywords:existence, "),
        ({"instruction_id_list": [7]}, "unknown kind 7"),
        ({"kwargs": [[1]]}, "kwargs of length_constraints:number_words: must be an object"),
        ({"kwargs": [{"num_words": 3}]}, "must be num_words, relation; the record has num_words"),
        ({"kwargs": [{"num_words": "3", "relation": "at least"}]}, "num_words of .*: must be an integer, not '3'"),
        ({"kwargs": [{"num_words": 3, "relation": "about"}]}, "unknown 'about'; choose one of at least, less than"),
    ],
)
def test_a_record_whose_rules_cannot_be_checked_is_named(tmp_path, fields, message):
    (tmp_path / "rules.jsonl").write_text(json.dumps(row("length_constraints:number_words", {}) | fields))
    with pytest.raises(PastaError, match=f"rules.jsonl: line 1: .*{message}"):
        rules_of(str(tmp_path / "rules.jsonl"))


def test_arguments_of_the_wrong_type_are_named():
    for kind, arguments in (
        ("language:response_language", {"language": "tlh"}),
        ("keywords:existence", {"keywords": "owl"}),
        ("keywords:existence", {"keywords": [1]}),
        ("startend:end_checker", {"end_phrase": 1}),
    ):
        with pytest.raises(PastaError, match=f"here: .* of {kind}"):
            rules_of_row(row(kind, arguments), "here")


@requires_data
def test_every_rule_of_ifeval_is_known_and_its_questions_are_not_trained_on():
    rules = rules_of("ifeval")
    assert (len(rules), sum(map(len, rules.values()))) == (541, 834)
    assert {rule.kind for of in rules.values() for rule in of} == set(KINDS)
    pairs = list(read("ifeval"))
    assert all(isinstance(pair, Pair) and not pair.response for pair in pairs)
    assert {pair.instruction for pair in pairs} == set(rules)
    assert rules_of("mt_bench") == {}
    with pytest.raises(PastaError, match="ifeval: reserved for evaluation"):
        refuse_for_training(["ifeval"])
