"""Programs: round trips through text and ids, located errors of the grammar, and annotations."""

import pickle
import random

import pytest
from hypothesis import given

from pasta_jax.errors import PastaError
from pasta_jax.lang import program as rules
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, LangError, Program, Sync, Text, check
from pasta_jax.lang.tags import escape
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.examples import examples
from tests.helpers.programs import programs, random_text

TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags

EXAMPLE = Program(
    (
        Text("The ends: "),
        Chunk("coordinates", 4, "from (2, -2) up to the point (10, 4)."),
        Text(" The rule: "),
        Chunk("length formula", 5, "the root of both squared differences' sum."),
        Sync(),
        Text(" So it is 10."),
    )
)
EXAMPLE_TEXT = (
    'The ends: <promise topic="coordinates" tokens=4 /><async>from (2, -2) up to the point (10, 4).</async> The rule: '
    '<promise topic="length formula" tokens=5 /><async>the root of both squared differences\' sum.</async><sync/>'
    " So it is 10."
)


@examples(500)
@given(programs)
def test_any_program_round_trips(program):
    text = program.render()
    assert Program.parse(text) == program
    ids = program.ids(TOKENIZER)
    restored = Program.from_ids(ids, TOKENIZER)
    assert restored == program
    assert restored.render() == text
    assert restored.ids(TOKENIZER) == ids


def test_the_example_literally():
    assert Program.parse(EXAMPLE_TEXT) == EXAMPLE
    assert EXAMPLE.render() == EXAMPLE_TEXT
    assert check(EXAMPLE_TEXT, TOKENIZER) == []
    assert EXAMPLE.strip() == (
        "The ends: from (2, -2) up to the point (10, 4). The rule: "
        "the root of both squared differences' sum. So it is 10."
    )


def test_ids_literally():
    program = Program((Text("a"), Chunk("b", 2, "cd"), Sync(), Text("e")))
    ids = [97, TAGS.promise, 98, TAGS.close(2), TAGS.async_, 99, 100, TAGS.end_async, TAGS.sync, 101]
    assert program.ids(TOKENIZER) == ids
    assert Program.from_ids(ids, TOKENIZER) == program


def test_normal_form():
    assert Program((Text(""), Text("a"), Text(""), Text("b"), Sync(), Text(""))).parts == (Text("ab"), Sync())
    assert Program.parse("").parts == Program.from_ids([], TOKENIZER).parts == ()


def test_a_chunk_needs_a_length_from_1_to_64():
    for tens in (0, 65, -1):
        with pytest.raises(LangError, match="from 1 to 64"):
            Chunk("a", tens, "b")


P = '<promise topic="a b" tokens=2 />'
GOOD = "<async>one two three four five</async>"


@pytest.mark.parametrize(
    ("text", "rule", "line", "column"),
    [
        (f"x\n{P} {GOOD}", rules.PROMISE_ALONE, 2, 1),
        (f"ab{P}", rules.PROMISE_ALONE, 1, 3),
        (f"{P}{P}{GOOD}", rules.PROMISE_ALONE, 1, 1),
        (f"{P}<sync/>", rules.PROMISE_ALONE, 1, 1),
        (f"{P}</async>", rules.PROMISE_ALONE, 1, 1),
        (f"\n\n  {GOOD}", rules.ASYNC_ALONE, 3, 3),
        (f"{P}{GOOD}{GOOD}", rules.ASYNC_ALONE, 1, len(P + GOOD) + 1),
        (f"{P}<async>one two", rules.ASYNC_OPEN, 1, len(P) + 1),
        ("a</async>", rules.END_ALONE, 1, 2),
        (f"{P}{GOOD}</async>", rules.END_ALONE, 1, len(P + GOOD) + 1),
        (f"{P}<async>\n<sync/>{'a ' * 5}</async>", rules.TAG_IN_CHUNK, 2, 1),
        (f"{P}<async>\n{P}{'a ' * 5}</async>", rules.TAG_IN_CHUNK, 2, 1),
        (f"{P}<async>\n<async>a b c d e</async></async>", rules.TAG_IN_CHUNK, 2, 1),
        (f"{P.replace('2', '0')}{GOOD}", rules.TENS_RANGE, 1, 1),
        (f"{P.replace('2', '65')}{GOOD}", rules.TENS_RANGE, 1, 1),
        (f"{P.replace('2', '02')}{GOOD}", rules.TENS_RANGE, 1, 1),
        (f"{P.replace('2', '9' * 5000)}{GOOD}", rules.TENS_RANGE, 1, 1),
    ],
)
def test_errors_of_the_grammar(text, rule, line, column):
    with pytest.raises(LangError) as caught:
        Program.parse(text)
    error = caught.value
    assert (error.rule, error.line, error.column) == (rule, line, column)
    assert str(error) == f"line {line}, column {column}: {rule}; {error.fix}"
    assert "\n" not in str(error)
    assert str(check(text)[0]) == str(error)


@pytest.mark.parametrize(
    ("text", "rule", "column"),
    [
        (f"{P.replace('a b', '')}{GOOD}", rules.TOPIC_EMPTY, 1),
        (f"{P.replace('a b', ' ')}{GOOD}", rules.TOPIC_EMPTY, 1),
        (f"{P.replace('a b', 'a b c d')}{GOOD}", rules.TOPIC_LONG, 1),
        (f"{P}<async>one two three four</async>", rules.CHUNK_SHORT, len(P) + 1),
    ],
)
def test_rules_of_style_are_checked_but_parse(text, rule, column):
    Program.parse(text)
    assert [(error.rule, error.line, error.column) for error in check(text)] == [(rule, 1, column)]
    assert check(f"{P.replace('a b', 'a b c')}{GOOD}") == []  # three words of topic and five of chunk


@pytest.mark.parametrize(
    ("length", "promised", "corrected"),
    [(20, 2, None), (21, 2, 3), (21, 3, None), (11, 1, 2), (640, 64, None), (20, 3, 2)],
)
def test_lengths_are_checked_with_a_tokenizer(length, promised, corrected):
    """A block includes [ASYNC] and [/ASYNC]: its text has two bytes less."""
    content = "a b c d e".ljust(length - 2, "e")
    text = Program((Text("x"), Chunk("topic", promised, content))).render()
    assert check(text) == []
    errors = [(error.rule, error.column) for error in check(text, TOKENIZER)]
    assert errors == ([(rules.TENS_WRONG, 2)] if corrected else [])
    if corrected:
        assert check(text.replace(f"tokens={promised}", f"tokens={corrected}"), TOKENIZER) == []


def test_a_block_longer_than_any_promise():
    text = Program((Chunk("topic", 64, "a b c d e".ljust(639, "e")),)).render()
    (error,) = check(text, TOKENIZER)
    assert error.rule == rules.CHUNK_LONG
    assert "641" in error.fix


def test_all_errors_in_order():
    text = f'</async>{GOOD}\n<promise topic="" tokens=0 /><async>few<sync/></async>\n{P}<async>{P}<async>x</async> open'
    assert [(error.line, error.rule) for error in check(text)] == [
        (1, rules.END_ALONE),
        (1, rules.ASYNC_ALONE),
        (2, rules.TENS_RANGE),
        (2, rules.TOPIC_EMPTY),
        (2, rules.CHUNK_SHORT),
        (2, rules.TAG_IN_CHUNK),
        (3, rules.ASYNC_OPEN),
        (3, rules.TAG_IN_CHUNK),
        (3, rules.TAG_IN_CHUNK),
    ]


def test_parse_raises_the_first_error_of_the_text_and_a_promise_has_one():
    with pytest.raises(LangError) as caught:
        Program.parse(f"{P}<async>never closed {P}{GOOD}")
    assert (caught.value.rule, caught.value.column) == (rules.ASYNC_OPEN, len(P) + 1)
    assert [error.rule for error in check(f"{P} <sync/> x")] == [rules.PROMISE_ALONE]


def test_an_error_is_a_pasta_error_and_can_be_pickled():
    error = LangError("a rule", "a fix", 3, 4)
    assert isinstance(error, PastaError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "line 3, column 4: a rule; a fix"
    by_index = pickle.loads(pickle.dumps(LangError("a rule", "a fix", index=17)))
    assert str(by_index) == "id 17: a rule; a fix"
    assert (by_index.line, by_index.column) == (1, 18)


PRO, CLOSE, ASYNC, END, SYNC = TAGS.promise, TAGS.close(1), TAGS.async_, TAGS.end_async, TAGS.sync


@pytest.mark.parametrize(
    ("ids", "index"),
    [
        ([7, ASYNC, 7, END], 1),
        ([7, 7, END], 2),
        ([CLOSE], 0),
        ([7, PRO, 7, 7], 1),
        ([PRO, PRO, CLOSE, ASYNC, END], 1),
        ([PRO, 7, SYNC], 2),
        ([PRO, 7, ASYNC], 2),
        ([PRO, 7, CLOSE], 2),
        ([PRO, 7, CLOSE, 7, ASYNC, END], 3),
        ([PRO, 7, CLOSE, 7, 7], 3),
        ([PRO, 7, CLOSE, CLOSE, ASYNC, END], 3),
        ([PRO, 7, CLOSE, SYNC], 3),
        ([7, PRO, 7, CLOSE, ASYNC, 7], 4),
        ([PRO, 7, CLOSE, ASYNC, 7, SYNC, END], 5),
        ([PRO, 7, CLOSE, ASYNC, ASYNC, END], 4),
        ([PRO, 7, CLOSE, ASYNC, PRO, CLOSE, ASYNC, END, END], 4),
        ([PRO, 7, CLOSE, ASYNC, END, ASYNC], 5),
    ],
)
def test_malformed_ids_are_named_by_their_index(ids, index):
    with pytest.raises(LangError, match=f"^id {index}: [^\n]+; [^\n]+$") as caught:
        Program.from_ids(ids, TOKENIZER)
    assert (caught.value.index, caught.value.line, caught.value.column) == (index, 1, index + 1)


def test_ids_must_be_integers():
    for ids in ([1.5], [[1, 2]], ["a"]):
        with pytest.raises(LangError, match="must be a sequence of integers"):
            Program.from_ids(ids, TOKENIZER)


def test_random_ids_are_parsed_or_refused():
    rng = random.Random(2)
    parsed, refused = 0, []
    for _ in range(20_000):
        ids = [rng.choice([97, 98, 99, PRO, CLOSE, ASYNC, END, SYNC, TAGS.close(64)]) for _ in range(rng.randrange(9))]
        if rng.random() < 0.5:
            ids += [PRO, 97, TAGS.close(3), ASYNC, 98, END]
        try:
            program = Program.from_ids(ids, TOKENIZER)
        except LangError as error:
            refused.append(error.index / len(ids))
        else:
            parsed += 1
            assert program.ids(TOKENIZER) == ids
    assert min(refused) >= 0
    assert max(refused) < 1
    assert min(parsed, len(refused)) > 1_000


# Annotation


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_annotation_gets_promises_and_lengths(quote):
    text = EXAMPLE_TEXT
    for tens, topic in ((4, "coordinates"), (5, "length formula")):
        text = text.replace(f'<promise topic="{topic}" tokens={tens} /><async>', f"<async topic={quote}{topic}{quote}>")
    assert "promise" not in text
    assert Program.from_annotation(text, TOKENIZER) == EXAMPLE


def test_annotated_sources_are_restored_byte_for_byte():
    """Any source, with tag look-alikes, is escaped, annotated, parsed, and stripped again."""
    rng = random.Random(3)
    for _ in range(3_000):
        pieces, parts = [], []
        for number in range(rng.randrange(1, 5)):
            text, quote = random_text(rng), rng.choice("'\"")
            if rng.random() < 0.5:
                text = f"at least five words here {text}"
                pieces.append(f"<async topic={quote}nr {number}{quote}>{escape(text, ANNOTATION)}</async>")
                parts.append((f"nr {number}", text))
            else:
                pieces.append(escape(text, ANNOTATION))
                parts.append(text)
            if rng.random() < 0.3:
                pieces.append("<sync/>")
                parts.append(None)
        program = Program.from_annotation("".join(pieces), TOKENIZER)
        assert program.strip() == "".join(part if isinstance(part, str) else part[1] for part in parts if part)
        assert check(program.render(), TOKENIZER) == []
        expected = []
        for part in parts:
            if isinstance(part, tuple):
                length = len(part[1].encode()) + 2
                expected.append(Chunk(part[0], next(tens for tens in range(1, 65) if 10 * tens >= length), part[1]))
            else:
                expected.append(Sync() if part is None else Text(part))
        assert program == Program(tuple(expected))
