"""The structural annotator: the text survives, every rule holds, and it forks where a reader would."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.annotate import cues
from pasta_jax.annotate.outline import outline
from pasta_jax.annotate.structural import annotate
from pasta_jax.lang.clock import clock
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.tags import escape
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.examples import examples


class Words(ByteTokenizer):
    """Six letters per id, so that lengths are close to those of a real tokenizer."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text)[::6]


TOKENIZER = Words()

LIST = """Here are three ways to sleep better:

1. **Fixed hours**: Go to bed and get up when you always do, on weekends too.
2. **A dark room**: Heavy curtains keep street lamps out, and a cool room helps as well.
3. **No late coffee**: Caffeine stays in the blood for six hours and longer.

Overall, small habits matter more than pills."""

SECTIONS = """A short comparison.

## Trains
Trains are quiet, run on rails, and carry many hundred people at once over long distances without a stop.

## Ferries
Ferries cross water, take lorries on board, and depend on wind and waves more than anything that runs on land.

In summary, take the train where there is one."""

STEPS = """Follow these steps:

1. Create a new folder for your project and open a terminal there.
2. Then run the installer in the folder and wait until it has finished its work.
3. Next, open the settings file and change the port to eight thousand and eighty."""

_lines = st.sampled_from(
    [
        "1. First thing: it is about apples and how they grow on trees in the north.",
        "2. Second thing: pears and plums, which ripen in the warm weeks of late summer.",
        "10) Tenth",
        "- a bullet with some words that say a little more than nothing at all",
        "* **Bold lead**: and then a body that goes on for a dozen words or perhaps even more",
        "   - nested under it with <async> and <sync/> in its text as an ordinary person may write",
        "## A heading",
        "**Another heading**",
        "Ingredients:",
        "```python",
        "x = 1  # <async topic='a'>",
        "```",
        "| a | b |",
        "A paragraph about rivers that has enough words to be a paragraph of its own, and the sea takes them all in.",
        "First, there is salt in it. Second, there are waves on it, some of them high. Third, there are ships.",
        "In conclusion, all of this was said.",
        "This refers back to the above.",
        "",
        "",
        "\t",
        "\r",
        '<promise topic="x" tokens=1 />',
        "<syn",
        "c/>",
    ]
)
documents = st.lists(_lines | st.text(max_size=30), max_size=30).map("\n".join)


def program(instruction: str, response: str) -> Program:
    return Program.from_annotation(annotate(instruction, response), TOKENIZER)


@examples(400)
@given(documents)
def test_any_text_survives_and_its_annotation_is_valid(text):
    result = program("Tell me about it.", text)
    assert result.strip() == text
    chunks = [part for part in result.parts if isinstance(part, Chunk)]
    assert len(chunks) != 1, "a fork with nothing beside it"
    assert chunks or result.parts == Program((Text(text),)).parts, "a sync with nothing to wait for"


@examples(200)
@given(documents)
def test_blocks_contain_every_character_once(text):
    done = 0
    for block in outline(text):
        assert not text[done : block.start].strip()
        assert done <= block.start <= block.body <= block.stop
        done = block.stop
    assert not text[done:].strip()


def test_speedup_grows_with_the_items_of_a_list():
    items = [line.replace("**", f"**{n} ", 1) for n in range(3) for line in LIST.splitlines()[2:5]]
    speedups = []
    for count in range(2, 10):
        text = "Some ways:\n\n" + "\n".join(f"{n + 1}{items[n][1:]}" for n in range(count))
        ids = program("", text).ids(TOKENIZER)
        speedups.append(len(TOKENIZER.encode(text)) / clock(ids, TOKENIZER.tags, 0).critical_path)
    assert speedups == sorted(speedups)
    assert speedups[0] > 1


def test_a_list_literally():
    assert annotate("How can I sleep better?", LIST) == (
        "Here are three ways to sleep better:\n\n"
        '1.<async topic="Fixed hours"> **Fixed hours**: Go to bed and get up when you always do, on weekends too.'
        "</async>\n"
        '2.<async topic="dark room"> **A dark room**: Heavy curtains keep street lamps out, and a cool room helps'
        " as well.</async>\n"
        '3.<async topic="No late coffee"> **No late coffee**: Caffeine stays in the blood for six hours and longer.'
        "</async>\n\n"
        "<sync/>Overall, small habits matter more than pills."
    )


def test_long_answers_take_linear_time():
    city = "The city is known for a park, and many people of the region come to it in the summer to see the flowers."
    cat = "The cat jumped over the fence and looked at the birds that sang in the trees when the sun appeared."
    began = time.process_time()
    for part in (f"{city}\n\n", f"{cat}\n\n", "- a word with a new thing and the thing of some more words\n"):
        annotate("", "It is long.\n\n" + part * 2000)  # read again at each part, the shortest would take 20 s
    assert time.process_time() - began < 5


def test_paragraphs_fork_from_where_they_recount_no_events():
    past = "The king came, saw the town, took it, and went home, where he began a work that nobody knew and all felt."
    cities = [f"{name} is a city by the sea that is known for its park and its old port." for name in ("Genoa", "Nice")]
    text = "\n\n".join(["Some cities.", past, past, *(city + " It is the best of them all." for city in cities)])
    assert [part.text[:5] for part in program("", text).parts if isinstance(part, Chunk)] == ["Genoa", "Nice "]


def test_sections_with_a_closing_remark():
    parts = program("Trains or ferries?", SECTIONS).parts
    assert [part.topic for part in parts if isinstance(part, Chunk)] == ["Trains", "Ferries"]
    assert parts[-2:] == (Sync(), Text("In summary, take the train where there is one."))


@pytest.mark.parametrize(
    ("instruction", "response"),
    [
        ("How do I set it up?", STEPS),
        ("Write a story about sleep.", LIST),
        ("What is it?", "One short answer."),
        ("List them.", "- tea\n- milk\n- bread\n- a bag of flour"),
    ],
    ids=["steps", "story", "one sentence", "items too short"],
)
def test_no_tags_where_parts_depend_on_each_other_or_do_not_pay_off(instruction, response):
    assert annotate(instruction, response) == escape(response, ANNOTATION)


def test_an_item_that_needs_its_siblings_waits_for_them():
    item = (
        "4. **The same again**: Everything above holds for naps as well, which should be short and early.\n5."
        + LIST[40:120]
    )
    text = LIST.replace("\n\nOverall", f"\n{item}\n\nOverall")
    parts = program("How can I sleep better?", text).parts
    third = [n for n, part in enumerate(parts) if isinstance(part, Chunk)][2]
    assert parts[third + 1 : third + 4] == (Text("\n"), Sync(), Text("4."))


STEP = "Take the bowl and put the {} into it, then stir until the mass is smooth, and wait while it rises in the warmth"
STEP += "; keep the window of the kitchen closed all the time, and the surface clean and dry" * 2


@pytest.mark.parametrize(("heading", "forks"), [("Instructions", 0), ("How to bake it", 0), ("Variants", 8)])
def test_the_heading_of_a_long_section_leads_in_its_list(heading, forks):
    """As the same words before a list do: steps of one task follow each other."""
    things = ["flour", "sugar", "butter", "eggs", "milk", "salt", "yeast", "water"]
    steps = [f"{n}. {STEP.format(thing)}" for n, thing in enumerate(things, 1)]
    section = "## {}\n\n{}"
    parts = [("Storage", "Keep it dry."), (heading, "\n".join(steps)), ("Origin", "Bread is old.")]
    text = "\n\n".join(section.format(*part) for part in parts)
    assert annotate("Tell me about bread.", text).count("<async") == forks


@examples(200)
@given(st.lists(_lines, max_size=30))
def test_line_breaks_of_windows_change_no_tag(lines):
    assert annotate("", "\r\n".join(lines)) == annotate("", "\n".join(lines)).replace("\n", "\r\n")


@pytest.mark.parametrize(
    "heading",
    ["## 1. {}", "**1. {}**", "### 1.2. **{}**", "## (1) {}", "## II. {}", "### 1\ufe0f\u20e3 {}", "**Day 1: {}**"],
)
def test_the_number_of_a_heading_is_no_topic_and_hides_no_conclusion(heading):
    text = SECTIONS.replace("In summary", "## Conclusion\nIn summary")
    for name in ("Trains", "Ferries", "Conclusion"):
        text = text.replace(f"## {name}", heading.format(name))
    parts = program("How do they compare?", text).parts
    assert [part.topic for part in parts if isinstance(part, Chunk)] == ["Trains", "Ferries"]
    assert Sync() in parts


@pytest.mark.parametrize(
    "heading", ["## 1. {}", "## {}", "**1. {}**", "## 一、{}", "## ①{}", "## （1）{}", "## 第1点：{}"]
)
def test_the_number_of_a_chinese_heading_is_no_topic(heading):
    names = ["苹果", "香蕉", "葡萄"]
    text = "\n\n".join(f"{heading.format(name)}\n\n{name}含有丰富的维生素和膳食纤维，对身体很好。" for name in names)
    chunks = [part for part in program("水果有哪些？", text).parts if isinstance(part, Chunk)]
    assert [chunk.topic for chunk in chunks] == names


def test_code_stays_whole():
    text = (
        "Two ways:\n\n1. With a loop, which everybody can read at once:\n```python\n1. not an item\n- nor this\n```\n"
    )
    text += "2. With a comprehension, which is shorter and a little faster too:\n```python\ny = [a for a in x]\n```"
    parts = program("Show both.", text).parts
    assert [part.text.count("```") for part in parts if isinstance(part, Chunk)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "known", "topic"),
    [
        ("**A dark room**: Heavy curtains keep street lamps out.", "", "dark room"),
        ("**2. A dark room:** Heavy curtains keep street lamps out.", "", "dark room"),
        ("Plan your training schedule carefully and stick to it.", "a first marathon", "Plan training schedule"),
        ("Listen to your body and take breaks when needed.", "", "Listen body"),
        ("Use a strong password that includes capital letters.", "protecting a password", "strong password"),
        ("Keep your diary in a safe place.", "keep a diary", "Keep diary safe"),
        ("Practise every day in the park.", "practise every day", "park"),  # what `known` lacks
        ("Überprüfen Sie Öl oder Reifen in der Werkstatt.", "Überprüfen Sie Öl und Reifen.", "Werkstatt"),
        ("Print the numbers from 1 to 10.", "Print the even numbers from 1 to 20.", "Print"),  # and not a number
        ("Dr. Jane Goodall is a primatologist who studied chimps.", "", "Dr. Jane Goodall"),
        ("J. R. R. Tolkien was a professor at Oxford.", "", "Tolkien professor Oxford"),
        ("Take vitamin C. It helps immunity.", "", "Take vitamin C"),
        ("Hepatitis B virus spreads.", "", "Hepatitis B virus"),
        ("U.S. law is common law.", "", "U.S. law common"),
        ("No. 5 by Chanel is a perfume.", "", "No. 5"),
        ("Some fruit, e.g. apples, keeps well.", "", "fruit apples"),
        ("7:30 AM: Eat breakfast.", "", "7:30 AM"),
        ("*Warm colours:* They seem to come near.", "", "Warm colours"),
        ("Let \\(\\alpha = \\sin x\\) be the angle.", "", "Let alpha sin"),
        ("$\\beta$ decay: a neutron becomes a proton.", "", "beta decay"),
        ("**नींद**: हर रात सात से आठ घंटे की नींद लें।", "", "नींद"),
        ("रोज़ नींद लें और पानी पिएँ।", "रोज़", "रोज़ नींद लें"),
        ("2. 香蕉是热带水果，含有丰富的钾元素。", "1. 2. 3.", "2 香蕉是热"),  # not more words than a topic may have
    ],
)
def test_a_topic_is_the_first_words_with_content(text, known, topic):
    """Main writes it before it knows the chunk: it can predict how the item would begin, not what follows."""
    assert cues.topic(text, cues.distinct(known)) == topic


@pytest.mark.parametrize("head", ["- **Lunch**: ", "- Lunch: ", "- *Lunch* – "])
def test_siblings_with_the_same_name_have_topics_of_their_own(head):
    """Two promises of the same would not say which is meant."""
    tuna, lentils = "Grilled tuna keeps it light in summer.", "Baked lentils fill a cold evening, and cost little."
    text = "\n".join(head + body for body in (tuna, lentils, tuna, tuna))
    parts = program("", text).parts
    assert [part.topic for part in parts if isinstance(part, Chunk)] == [
        "Lunch",
        "Baked lentils fill",
        "Grilled tuna keeps",
    ]
    assert parts[-1].text.endswith(f"{head}{tuna}"), "what is left has no topic of its own"
