"""The form filter against records made by hand."""

import dataclasses
from collections import Counter

import pytest

from pasta_jax.annotate.form import keep, kind_of, refusal
from pasta_jax.annotate.settings import FormFilter
from pasta_jax.annotate.verify import Refusal
from pasta_jax.data.records import Record
from tests.annotate.languages import ANSWERS, annotated
from tests.helpers.records import record_of

LIMITS = FormFilter(ascii=True, max_chunks=3, max_chunk_tokens=60, min_speedup=1.25, max_repetition=0.2, unforked=0.5)
ITEMS = {"Water": "drink some of it every day.", "Sleep": "eight hours of it are best.", "Sport": "run, swim or row."}


def record(items: dict[str, str], id: str = "1", opening: str = "Here is a list.", question: str = "tips?") -> Record:
    """An answer whose items are chunks `Name: text`."""
    plain = opening + "".join(f"\n{name}: {text}" for name, text in items.items())
    annotated = opening + "".join(
        f"\n<async topic='{name.strip('0123456789')}'>{name}: {text}</async>" for name, text in items.items()
    )
    return record_of(annotated, plain, question, id)


def plain(text: str, question: str = "What is it?", id: str = "1") -> Record:
    return record_of(text, text, question, id)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (ITEMS, None),
        (ITEMS | {"Food": "eat a lot of fruit."}, "too many chunks"),
        (ITEMS | {"Sport": "run. " * 20}, "repeats itself"),
        (ITEMS | {"Sport": "one two three four five six seven eight nine ten eleven."}, "a long chunk"),
        ({"Sleep": "a b c d. " + "and on it goes so on?", "Water": "a b c d."}, "little speedup"),
        (ITEMS | {"water2": "wash with it, too."}, "equal topics"),
        (ITEMS | {"The": "and this is not a topic."}, "a topic without content"),
        (ITEMS | {"Sport": "go to a café."}, "not ASCII"),
        (ITEMS | {"Sport": "as an AI I don't do any."}, "speaks of itself"),
        (ITEMS | {"Sport": "it stops in the midd"}, "answer breaks off"),
        (ITEMS | {"Sport": "```run now or never```"}, "code"),
    ],
)
def test_each_refusal(items, reason):
    limits = dataclasses.replace(LIMITS, max_chunks=3 if reason == "too many chunks" else 9)
    assert refusal(limits, record(items)) == reason


def test_other_languages_are_kept_if_the_filter_says_so():
    limits = dataclasses.replace(LIMITS, ascii=False, max_chunk_tokens=600)
    for name in ("chinese", "japanese", "thai", "german"):
        question, answer, _ = ANSWERS[name]
        assert refusal(LIMITS, annotated(question, answer)) == "not ASCII"
        assert refusal(limits, annotated(question, answer)) is None, name
        cut = answer.rstrip("。.")[:-1] + "咖啡" * (name != "thai")
        assert refusal(limits, annotated(question, cut)) == (None if name == "thai" else "answer breaks off")
        again = answer + answer.splitlines()[2] * 9 + "。"
        assert refusal(limits, annotated(question, again)) == "repeats itself"


def test_a_chunk_without_a_name_is_refused():
    lines = ("drink some water every single day.", "sleep for eight hours or more.")
    marked = [f"<async topic='x y'>{line}</async>" for line in lines]
    answer = record_of("\n".join(["Tips.", *marked]), "\n".join(["Tips.", *lines]))
    answer = dataclasses.replace(answer, topics=["water", "sleep"])
    assert refusal(LIMITS, answer) == "a chunk without a name"


def test_a_list_without_a_fork_is_refused_and_code_is_not():
    assert refusal(LIMITS, plain("Two:\n- one\n- two.")) == "a list without a fork"
    assert refusal(LIMITS, plain("Run:\n```\n- one\n- two\n```")) is None


def test_a_list_of_short_items_may_be_an_answer_without_a_fork():
    limits = dataclasses.replace(LIMITS, short_items=3)
    short, long = "Two:\n- one\n- two and three.", "Two:\n- one\n- two, three, four, five, six and seven."
    assert refusal(limits, plain(short)) is None
    assert kind_of(plain(short)) == "short list"
    assert refusal(limits, plain(long)) == "a list without a fork"
    assert refusal(LIMITS, plain(short)) == "a list without a fork"


def test_an_answer_that_is_known_to_be_complete_may_end_like_anything():
    assert refusal(LIMITS, plain("Negative")) == "answer breaks off"
    assert refusal(dataclasses.replace(LIMITS, finished=False), plain("Negative")) is None


@pytest.mark.parametrize("end", ["।", "؟", "۔", "»", "$x + 1$", "🎉", "❤\ufe0f", "👍🏽", "🙂\n"])
def test_an_answer_may_end_in_any_script_and_with_a_formula_or_an_emoji(end):
    limits = dataclasses.replace(LIMITS, ascii=False)
    assert refusal(limits, plain(f"It is so {end}")) is None
    assert refusal(limits, plain(f"It is so {end} and")) == "answer breaks off"


def test_kinds_of_answers_without_a_fork():
    kinds = [
        kind_of(plain("It is so.")),
        kind_of(plain("It is so. " * 30)),
        kind_of(plain("```x```")),
        kind_of(plain("Dear Sir.", "Write a letter")),
        kind_of(plain("Dark.", "What if the sun went out?")),
    ]
    assert kinds == ["short fact", "prose", "code", "letter, poem or story", "what if"]


def test_answers_without_a_fork_have_their_share_in_equal_parts_of_each_kind():
    verdicts = [record(ITEMS, f"f{n}") for n in range(6)]
    verdicts += [plain(f"It is so number {n}.", id=f"s{n}") for n in range(20)]
    verdicts += [plain(f"```{n}```", id=f"c{n}") for n in range(20)]
    verdicts += [plain("Dark.", "What if?", id="w0"), Refusal("r", "", "", "why", "", "")]
    kept, left_out = keep(verdicts, LIMITS)
    ids = [verdict.id for verdict in kept]
    assert Counter(id[0] for id in ids) == {"f": 6, "w": 1, "c": 3, "s": 2, "r": 1}
    assert ids == [verdict.id for verdict in verdicts if verdict.id in set(ids)]
    assert [row.reason for row in left_out] == ["form: enough without a fork"] * 35
    assert [v.id for v in keep(verdicts[::-1], LIMITS)[0]] == ids[::-1]  # whatever the order
