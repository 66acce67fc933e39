"""JSON values as automata, compared with what Python's own readers accept."""

import datetime
import json
import random
import re
import resource

import pytest

from pasta_jax.automata import values
from pasta_jax.automata.automaton import Ambiguous, either, listed, sequence, texts
from pasta_jax.errors import PastaError


def accepts(automaton, text: str | bytes) -> bool:
    state = automaton.walk(text if isinstance(text, bytes) else text.encode())
    return state >= 0 and bool(automaton.accepts[state])


def test_integers_between_bounds():
    rng = random.Random(0)
    for _ in range(200):
        low = rng.randint(-(10 ** rng.randint(0, 6)), 10 ** rng.randint(0, 6))
        high = low + rng.randint(0, 10 ** rng.randint(0, 6))
        automaton = values.integer(low, high)
        for number in (low - 1, low, high, high + 1, 0, -1, 10, *(rng.randint(low - 50, high + 50) for _ in range(20))):
            assert accepts(automaton, str(number)) == (low <= number <= high), (low, high, number)
        assert not any(accepts(automaton, text) for text in ("-0", "00", "+1", "", "1.0"))
    assert accepts(values.integer(), "-" + "9" * 18)
    with pytest.raises(PastaError, match="no integer"):
        values.integer(5, 4)


def test_numbers_are_those_of_json():
    for text in ("0", "-0", "12.5", "1e9", "1.25e-10", "999999999999999"):
        assert accepts(values.number(), text)
        json.loads(text)
    assert not any(accepts(values.number(), text) for text in ("01", "1.", ".5", "+1", "1e", "NaN", "-"))


def test_dates_are_those_of_the_calendar():
    rng, automaton = random.Random(1), values.formatted("date")
    for _ in range(3000):
        year = rng.choice([rng.randrange(10_000), 0, 4, 100, 400, 1900, 2000, 2024])
        month, day = rng.randrange(14), rng.randrange(33)
        try:
            exists = bool(datetime.date(year, month, day))
        except ValueError:
            exists = False
        assert accepts(automaton, f'"{year:04}-{month:02}-{day:02}"') == exists


def test_strings_have_one_text_each():
    automaton = values.string()
    for text in ("", "a", 'é\n"\\/\x7f', "\u2028😀"):
        assert accepts(automaton, json.dumps(text, ensure_ascii=False))
    for text in ('"a', '"\n"', '"\\u0041"', '"\\/"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc3"'):
        assert not accepts(automaton, text)


@pytest.mark.parametrize(
    "pattern",
    ["^(a|ab)(c|bcd)$", "b+", "^[^x]*$", r"^\d{2,3}-[A-Z]$", '^["\\\\\n]*$', "^a|b", "(?:)", r"^a\\$", "^[)|]$"],
)
def test_patterns_mean_what_they_mean_to_python(pattern):
    if pattern == "^a|b":
        with pytest.raises(PastaError, match="ambiguous"):
            values.matching(pattern)
        return
    automaton, rng = values.matching(pattern)[0], random.Random(2)
    for _ in range(2000):
        text = "".join(rng.choice('abcdx12-AZ"\\\né۶') for _ in range(rng.randrange(7)))
        matches = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
        assert accepts(automaton, json.dumps(text, ensure_ascii=False)) == matches, text


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[^\s@]+@[^\s@]+\.[^\s@]+$",
        r"^[^\w]+$",
        r"^[^\d]+$",
        r"^\S+$",
        r"^\W$",
        r"^\D+$",
        r"^..$",
        r"^[^\W\d_]+$",
        r"^[\S]$",
    ],
)
def test_what_a_pattern_accepts_matches_for_every_reader(pattern):
    automaton, rng, accepted = values.matching(pattern)[0], random.Random(3), 0
    strange = "\xa0\u3000\u2028\u2029\u1680\ufeff\u0085\f\v\r\x1c\x1f۶é²½ªß漢٠𝟘"
    for number in range(3000):
        text = "".join(rng.choice(rng.choice(("ab1@.-_", strange))) for _ in range(rng.randrange(9)))
        text += chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) * (number % 2)
        if accepts(automaton, json.dumps(text, ensure_ascii=False)):
            accepted += 1
            ends = pattern.replace("$", r"\Z").replace("..", "[^\n\r\u2028\u2029]" * 2)
            assert re.search(ends, text), ascii(text)
            assert re.search(ends, text, re.ASCII), ascii(text)
            assert not ("\ufeff" in text and "s" in pattern.lower())  # a blank to JavaScript
    assert accepted


@pytest.mark.parametrize("pattern", ["[[a]]", "[^a&&b]", "^[^+--]$", "[a~~b]", "[[:alpha:]]", r"[\]a--b]"])
def test_operators_on_classes_are_refused_by_name(pattern):
    with pytest.raises(PastaError, match=r"pattern: .*(\[|&&|--|~~) within"):
        values.matching(pattern)


def test_classes_may_hold_what_separates_alternatives():
    for pattern, text in ((r"^[\d|]$", "|"), (r"^[\[\]\\-]+$", "[]-"), (r"^[]|&~-]$", "]"), (r"^\[[a&]$", "[&")):
        assert accepts(values.matching(pattern)[0], json.dumps(text))
    with pytest.raises(PastaError, match="pattern: has more than 1,000"):
        values.matching("." * 1001)


@pytest.mark.parametrize("pattern", ["a$|b", "^(a$|b)$", "(^$|^x)", "a^b", r"^a$\n", "^^a$"])
def test_anchors_within_a_pattern_are_refused_by_name(pattern):
    """The first accepted "b" alone."""
    with pytest.raises(PastaError, match=r"pattern: [$^] within it"):
        values.matching(pattern)


@pytest.mark.parametrize("pattern", ["a*+a", "(ab)?+", "[a]{2}+", "a++"])
def test_a_repeated_repetition_is_refused(pattern):
    """To Python, it gives nothing back; to others, it repeats."""
    with pytest.raises(PastaError, match=r"pattern: .\+ has several meanings"):
        values.matching(pattern)


def test_a_repetition_may_follow_another():
    cases = {"^[A-Z]+[0-9]+$": "AB12", "^-?[0-9]+$": "-7", r"^[a]{2}\d+$": "aa1", "^a?b+?$": "abb"}
    for pattern, text in cases.items():
        assert accepts(values.matching(pattern)[0], json.dumps(text))


def test_a_hyphen_before_a_set_of_characters_stands_for_itself():
    """As JavaScript reads it; Python refuses it. It is no range up to the [ that begins our form of the set."""
    for pattern, plain in (
        (r"^[+-\d]$", r"^[-+\d]$"),
        (r"^[ -\w]$", r"^[- \w]$"),
        (r"^[\\-\s]$", r"^[-\\\s]$"),
        (r"^[^+-\D]$", r"^[^-+\D]$"),
    ):
        automaton = values.matching(pattern)[0]
        for text in [*map(chr, range(0x20, 0x7F)), "5]", "A]"]:
            assert accepts(automaton, json.dumps(text)) == (re.search(plain, text, re.ASCII) is not None), text


def time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    "pattern",
    ["(a|b)*a(a|b){20}", "[a-z]{100}{100}", r"\p{L}{0,1000}", "(", "(?=a)b", r"(a)\1", r"\bword\b", "x" * 2000],
)
def test_hostile_patterns_are_refused_within_a_second(pattern):
    values.matching("a")  # the compiler is on disk
    began = time_of_children()
    with pytest.raises(PastaError, match="pattern: "):
        values.matching(pattern)
    assert time_of_children() - began < 1.5  # of the CPU


def test_lists_hold_as_many_items_as_they_may():
    item = values.integer(0, 50)
    for least, most in [(0, None), (1, None), (3, None), (0, 0), (0, 2), (2, 3), (3, 3)]:
        automaton = listed(item, least, most)
        for count in range(6):
            for text in (json.dumps(list(range(count))), json.dumps(list(range(count)), separators=(",", ":"))):
                assert accepts(automaton, text) == (least <= count <= (count if most is None else most)), (least, most)
        assert not any(accepts(automaton, text) for text in ("[1,]", "[1", "[,1]", "[1 ]"))


def test_alternatives_that_begin_alike_are_refused():
    assert accepts(either(values.string(), values.integer(), values.choice([None])), "null")
    with pytest.raises(Ambiguous, match="begin with '1'"):
        either(values.integer(1, 1), values.choice([10]))
    assert accepts(sequence(texts([b"", b" "]), texts([b"x"])), " x")
