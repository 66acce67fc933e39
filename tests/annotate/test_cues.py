"""Cues of dependence: which parts of an answer need others by their words."""

import pytest

from pasta_jax.annotate import cues
from pasta_jax.annotate.structural import annotate
from pasta_jax.lang.program import Chunk, Program
from tests.annotate.test_structural import TOKENIZER

MORE = "and it goes on with some more words so that the part is long enough for a fork"


def chunks(question: str, answer: str) -> list[str]:
    """The texts of the chunks of an answer."""
    parts = Program.from_annotation(annotate(question, answer), TOKENIZER).parts
    return [part.text for part in parts if isinstance(part, Chunk)]


@pytest.mark.parametrize("rule", ["---", "* * *", "___"])
@pytest.mark.parametrize(
    "closing",
    [
        "Would you like me to turn this into a table?",
        "Do you want prices?",
        "Want me to add hotels?",
        "Please let me know what to add.",
        "Thank you for your question.",
        "I hope this plan is a help. " + f"Ask about any of it {MORE}. " * 3,
    ],
)
def test_rules_and_a_closing_remark_stay_in_main(rule, closing):
    cities = [f"## {city}\n\n{city} is a city {MORE}." for city in ("Tokyo", "Kyoto", "Osaka")]
    items = [f"{n}. {city}: this city is big {MORE}." for n, city in enumerate(("Tokyo", "Kyoto", "Osaka"), 1)]
    for parts in (cities, items):
        text = f"\n\n{rule}\n\n".join(["Here is a plan.", *parts, closing])
        assert [len(chunk.split("\n")) for chunk in chunks("Plan a journey.", text)] == [1, 1, 1]


SAUCE = "First, melt the butter {0}. Second, stir the flour {0}. Third, pour the milk {0}."


@pytest.mark.parametrize(
    ("question", "before", "forks"),
    [
        ("What is on the menu?", "Three things.", 3),
        ("How do I make a sauce?", "Three things.", 0),
        ("Explain how to make a sauce.", "Three things.", 0),
        ("Sauce?", "It takes three steps.", 0),
    ],
)
def test_enumerated_sentences_are_no_steps(question, before, forks):
    assert len(chunks(question, f"{before} {SAUCE.format(MORE)}")) == forks


def test_enumerated_sentences_may_need_each_other():
    lines = "First, take a pan, {0}. Second, heat the pan, {0}. Third, wash the pan, {0}."
    assert chunks("What is done?", f"Three things. {lines.format(MORE)}") == []
    first, second, third = f"First, take a pan {MORE}.", f"Second, this is hot {MORE}.", f"Third, milk is white {MORE}."
    text = annotate("What is there?", f"Three things. {first} {third} {second} {third}")
    assert ["Second" in part for part in text.split("<sync/>")] == [False, True]


STEPS = [f"Loosen the nuts {MORE}.", f"Lift the car {MORE}.", f"Mount the wheel {MORE}."]


@pytest.mark.parametrize(
    ("question", "lead_in", "marker", "forks"),
    [
        ("How do I change a tyre?", "", "{}. ", 0),
        ("How to change a tyre", "", "{}. ", 0),
        ("How do tyres differ?", "", "{}. ", 3),
        ("How can I care for a car?", "", "{}. ", 3),  # advice, unless its parts say otherwise
        ("What is done?", "", "{}. ", 3),
        ("What is done?", "Steps:\n\n", "- ", 0),
        ("What is done?", "**Directions:**\n\n", "- ", 0),
        ("What is done?", "Ideas:\n\n", "- ", 3),
        ("What is done?", "In a workshop, do the following:\n\n", "{}. ", 0),
    ],
)
def test_steps_are_no_list_of_things(question, lead_in, marker, forks):
    text = lead_in + "\n".join(marker.format(n) + step for n, step in enumerate(STEPS, 1))
    assert len(chunks(question, text)) == forks


@pytest.mark.parametrize(
    ("opening", "forks"),
    [
        ("Dear Ms. Smith,", 0),
        ("Subject: A job\n\nHello Ann,", 0),
        ("Hi there! Skills, and a plan.", 2),
        ("Two skills.", 2),
    ],
)
def test_the_paragraphs_of_a_letter_are_in_order(opening, forks):
    paragraphs = [f"Ten years of {work} are in the skills that I have for you, {MORE}." for work in ("welding", "law")]
    assert len(chunks("Apply for the job for me.", "\n\n".join([opening, *paragraphs, "Sincerely,\nJohn"]))) == forks


@pytest.mark.parametrize("names", [("[Verse 1]", "[Chorus]", "[Verse 2]"), ("Wind", "Waves", "Salt")])
def test_a_song_is_sung_in_order(names):
    text = "\n\n".join(f"{name}\nThe sea is wide {MORE}, and more of it." for name in names)
    assert len(chunks("The sea?", text)) == (0 if "[Chorus]" in names else 2)


@pytest.mark.parametrize("form", ["sea shanty", "ballad", "rhyme", "verse", "ode", "lullaby"])
def test_a_poem_of_any_form_is_written_in_order(form):
    assert chunks(f"Write a {form} about tyres.", "\n".join(f"- {step}" for step in STEPS)) == []


@pytest.mark.parametrize(
    "items",
    [
        (f"Hotel: $480 {MORE}", f"Flights: $700 {MORE}", f"**Total**: the sum of both {MORE}"),
        (f"Rent: 12 × 1,200 = $14,400 {MORE}", f"Heat: 100 {MORE}", f"Year: 14,400 + 100 {MORE}"),
        (f"Apples: 4 × 20 equals 80 {MORE}", f"Pears: 5 {MORE}", f"Fruit: 80 + 5 {MORE}"),
        (f"Energy is K + U {MORE} (1)", f"K is a square {MORE} (2)", f"Speed follows from (2) {MORE}"),
        (f"Energy is K + U {MORE} (1)", f"K is a square {MORE} (2)", f"Substitute the second {MORE}"),
        (f"x is a number {MORE}", f"y is one, too {MORE}", f"= x + y {MORE}"),
    ],
)
def test_what_is_computed_from_earlier_items_waits_for_them(items):
    text = annotate("How much?", "\n".join(["Here it is:", "", *(f"- {item}" for item in items)]))
    assert "<sync/>" in text.partition(items[2])[0]
    assert len(chunks("How much?", "\n".join(["Here it is:", "", *(f"- {item}" for item in items[:2])]))) == 2


def test_names_that_begin_as_results_do_are_names():
    items = [f"**{name}**: a thing of its own {MORE}" for name in ("Total Quality Management", "Sum insured", "Verse")]
    assert len(chunks("Which terms?", "\n".join(["Three:", "", *(f"- {item}" for item in items)]))) == 3
    for question in ("Explain methods for an ODE.", "What does this verse mean?"):
        assert len(chunks(question, "\n".join(["Two:", "", *(f"- {item}" for item in items[:2])]))) == 2


def test_what_follows_a_rule_is_not_part_of_it():
    items = "\n".join(f"- **{name}**: a habit {MORE}" for name in "ABC")
    text = annotate("Which habits?", f"Three:\n\n{items}\n\n---\nThese three habits depend on each other, as shown.")
    assert "---\n<sync/>These" in text


def test_blank_lines_are_read_once():
    assert cues.song("\n" * 200_000) is cues.letter("Subject: x" + "\n" * 200_000) is None


def test_signs_of_a_programming_language_compute_nothing():
    signs = [f"- `{sign}` ({name}): it compares {MORE}" for sign, name in (("==", "equals"), ("!=", "not equal"))]
    assert len(chunks("Which operators?", "\n".join(["Two:", "", *signs]))) == 2


def test_a_number_that_the_question_names_is_no_result():
    text = "\n".join(["Here:", "", f"- A: x = 480 {MORE}", f"- B: 480 is even {MORE}", f"- C: good {MORE}"])
    assert "<sync/>" not in annotate("What of 480?", text)
