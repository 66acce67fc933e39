"""The prompt for annotation by a language model: the task, seven worked examples, and the record."""

import re

from pasta_jax.lang.program import MAX_TOPIC_WORDS, MIN_CHUNK_WORDS
from pasta_jax.llm.client import Messages

TASK = f"""\
You are an expert editor. You mark which passages of an answer could have been written at the same time by several \
writers, so that a parallel writing system can learn from it.

How the system works. One main writer starts at the top. A passage in <async topic='...'>...</async> is handed to a \
helper as soon as the main writer reaches it, and the main writer continues at once with what follows, without \
waiting. The helper sees what the main writer has written up to that point and the topic, but no other open passage. \
The main writer and later helpers see the topic of an open passage, but not its text. <sync/> makes the main writer \
wait until all open passages are complete; everything after <sync/> may read them.

Your task. Copy the answer, and add only these two kinds of marks:
- <async topic='...'>...</async> around a passage whose text nothing after it needs to know, up to the next <sync/>. \
Good candidates are list items, sections, independent paragraphs, and separate calculations. Mark several that can run \
side by side; a single one gains nothing.
- <sync/> right before text that needs the passages before it: a conclusion, a sum, a comparison of the parts. Waiting \
costs time, so use it rarely, and leave it out where what follows doesn't need what came before.

Rules:
1. Keep every character of the answer, code and blank lines included. Correct nothing, even if it is wrong.
2. A passage has at least {MIN_CHUNK_WORDS} words. Marks are never nested, and each <async> has its </async>.
3. A topic has at most {MAX_TOPIC_WORDS} words and states what the passage is about: it is all that others know of it.
4. Text that needs an open passage comes after a <sync/>; if passages build on each other, leave them unmarked.
5. Numbers and bullets of a list stay outside the passages.
6. If nothing can be written in parallel, return the answer unmarked. Many answers are like that.
7. Text such as <\\async> or <\\sync/> with a backslash belongs to the answer; copy it as it is.

Reply with the marked answer alone."""

# (question, marked answer): what to mark, what to leave unmarked, when to wait.
DEMONSTRATIONS = (
    (  # a list of independent items, and a remark that needs none of them
        "How can I keep house plants alive while I travel?",
        "A week or two away is no problem if you prepare a little.\n\n"
        "1.<async topic='watering ahead'> Water everything thoroughly the evening before you leave, and let the pots"
        " drain so that no roots stand in water.</async>\n"
        "2.<async topic='shade'> Move the pots away from sunny windows, since plants in half shade drink far"
        " less.</async>\n"
        "3.<async topic='wick watering'> Lead a cotton string from a bucket of water into each large pot; it keeps the"
        " soil damp for days.</async>\n"
        "4.<async topic='humidity'> Group the smaller pots closely together on a tray of wet gravel, because they keep"
        " the air around each other moist.</async>\n\n"
        "Have a good trip!",
    ),
    (  # two sides of a comparison, and a verdict that needs both
        "Should I heat my workshop with gas or with electricity?",
        "**Gas**\n<async topic='gas heating'>A gas heater warms a cold room within minutes and its fuel is cheap, but"
        " it needs a vent, a yearly check, and care with sawdust.</async>\n\n"
        "**Electricity**\n<async topic='electric heating'>An electric panel costs little to buy, makes no fumes and can"
        " hang anywhere, yet each hour of warmth costs about three times as much.</async>\n\n"
        "<sync/>Since you would have to keep sawdust away from the flame, and use the room at weekends only, the dearer"
        " hours of electricity weigh less than the vent and the checks: take the panel.",
    ),
    (  # a recipe: the steps follow from each other, so nothing in them is marked
        "Give me a recipe for flat bread.",
        "Mix 300 g of flour with a teaspoon of salt and 180 ml of warm water. Knead the dough for five minutes, then"
        " let it rest under a cloth for half an hour. Cut it into six pieces, roll each one out as thin as you can, and"
        " bake them one after the other in a dry, very hot pan until brown spots appear.",
    ),
    (  # two quantities that can be computed in parallel, and a step that needs both
        "A garden is 12 m by 9 m with a round pond of radius 2 m. What share of it is water?",
        "We need two areas.\n\n"
        "<async topic='garden area'>The garden is a rectangle, so its area is 12 · 9 = 108 square metres.</async>\n"
        "<async topic='pond area'>The pond is a circle of radius 2 m, and so its area is π · 2² ≈ 12.57 square"
        " metres.</async>\n\n"
        "<sync/>The share is 12.57 / 108 ≈ 0.116, so about 11.6 % of the garden is water.",
    ),
    (  # sections of an essay: the opening and the end stay with the main writer
        "Write a short essay on what railways changed.",
        "Railways changed more than the speed of travel.\n\n"
        "<async topic='common time'>Before them, every town kept its own time by the sun. Timetables made no sense that"
        " way, so companies carried one time along their lines, and the towns gave in.</async>\n\n"
        "<async topic='fresh food'>Cities had lived on what their surroundings could grow. With fast night trains, milk"
        " and fish came from a hundred miles away, and cities could grow larger than their fields allowed.</async>\n\n"
        "<async topic='seaside holidays'>Workers saw the sea for the first time when cheap Sunday tickets were sold,"
        " and fishing villages turned into resorts within a few summers.</async>\n\n"
        "<sync/>Clocks, kitchens and holidays: in each case people changed their habits to suit the train, and kept the"
        " new habits long after they had forgotten the reason.",
    ),
    (  # an explanation of code: every part needs the code, so it comes first and is not marked
        "Explain this: `print(sorted(set(words), key=len)[-1])`",
        "```python\nprint(sorted(set(words), key=len)[-1])\n```\n"
        "From the inside to the outside:\n\n"
        "- `set(words)`<async topic='set'> throws out repeated words; their order is lost, which does no harm"
        " here.</async>\n"
        "- `sorted(..., key=len)`<async topic='sorted by length'> makes a list of them from the shortest to the"
        " longest; words of one length may come in any order.</async>\n"
        "- `[-1]`<async topic='last element'> takes the last element of a list, and raises an IndexError where the list"
        " is empty.</async>\n\n"
        "<sync/>Put together, the line prints a longest word, and fails if there are no words at all.",
    ),
    (  # nothing to write in parallel
        "Who wrote the opera about the barber?",
        "The Barber of Seville was composed by Gioachino Rossini; it was first performed in Rome in 1816.",
    ),
)


def question(instruction: str, response: str) -> Messages:
    """The conversation that asks for the annotation of one record; `response` is escaped."""
    messages = [("system", TASK)]
    for example, marked in DEMONSTRATIONS:
        messages += [("user", _record(example, strip_marks(marked))), ("assistant", marked)]
    return (*messages, ("user", _record(instruction, response)))


def retry_question(messages: Messages, answer: str, reason: str) -> Messages:
    """The conversation continued after an answer that was refused."""
    complaint = f"That can't be used: {reason}. Copy the answer again, every character of it, with better marks."
    return (*messages, ("assistant", answer), ("user", complaint))


def strip_marks(marked: str) -> str:
    """The source of a demonstration."""
    return re.sub(r"<async topic='[^']*'>|</async>|<sync/>", "", marked)


def _record(instruction: str, response: str) -> str:
    return f"Question:\n{instruction}\n\nAnswer:\n{response}"
