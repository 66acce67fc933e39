"""A model's own answers as annotations: promises of the right lengths, and only whole answers."""

import json

import pytest

from pasta_jax.annotate import annotators, own
from pasta_jax.annotate.run import collect_answers
from pasta_jax.annotate.verify import Refusal, verify
from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import Record
from pasta_jax.data.sources import read
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.progress import Progress
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.traces import Chatty

CHUNK = "Red: it is the colour of ripe tomatoes."
PROGRAM = f'Well:<promise topic="Red" tokens=9 /><async>{CHUNK}</async> Done.'
ANSWER = {"prompt": "Why?", "text": f"Well:{CHUNK} Done.", "program": PROGRAM, "finish_reason": "stop"}


def verdicts(folder, *rows: dict) -> list[Record | Refusal]:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = own.corrected([pair for pair in read(str(path)) if isinstance(pair, Pair)], own.read_answers(str(path)))
    assert len(pairs) == len(rows)
    annotator = annotators.by_own_answers(pairs, str(path), Chatty())
    answers = annotator.annotate(list(range(len(pairs))), Progress("", len(pairs)))
    return [verify(pairs[n], answer, Chatty(), 999, "own", "train") for n, answer in answers]


def test_a_promise_is_made_as_long_as_its_chunk(tmp_path):
    record, without = verdicts(tmp_path, ANSWER, ANSWER | {"text": "No.", "program": "No."})
    assert (without.program, without.evidence) == ("No.", {"promised": []})
    tens = -(-(len(Chatty().encode(CHUNK)) + 2) // 10)
    assert record.program == PROGRAM.replace("tokens=9", f"tokens={tens}")
    assert tens != 9
    assert record.evidence == {"promised": [90]}
    assert (record.instruction, record.response) == ("Why?", ANSWER["text"])


def test_an_answers_system_message_stays_with_it(tmp_path):
    [record] = verdicts(tmp_path, ANSWER | {"system": "Be brief."})
    assert (record.system, record.instruction) == ("Be brief.", "Why?")


def test_a_list_of_answers_is_read_as_lines_are(tmp_path):
    """launch.decode writes one where the name of its output ends in .json."""
    (tmp_path / "answers.jsonl").write_text(json.dumps(ANSWER) + "\n")
    (tmp_path / "answers.json").write_text(json.dumps([ANSWER], indent=1))
    lines, of_list = (own.read_answers(str(tmp_path / name)) for name in ("answers.jsonl", "answers.json"))
    assert of_list == lines
    assert {pair.id for pair in read(str(tmp_path / "answers.json"))} == set(of_list)


def answer(end: str, following: str) -> dict:
    """One whose chunk ends so, with what main writes next."""
    return ANSWER | {
        name: ANSWER[name].replace(CHUNK, CHUNK + end).replace(" Done.", following) for name in ("text", "program")
    }


@pytest.mark.parametrize(
    ("tail", "following"),
    [
        ("\n6.", "\n6. Done."),
        ("\n\n 12) ", "\n12. Done."),
        ("\n*", "\n* Done."),
        (" \n\t- ", "<sync/>\n- Done."),
        ("\n\n", "<sync/>\nDone."),
        ("\n\n", " \n\nDone."),
        ("\n\n", ""),
    ],
)
def test_a_chunk_loses_the_marker_of_the_next_item(tmp_path, tail, following):
    [kept], [record] = (verdicts(tmp_path, answer(end, following)) for end in ("", tail))
    assert (record.program, record.response) == (kept.program, kept.response)


BLUE = '<promise topic="Blue" tokens=9 /><async>%sIt is the colour of the sky, and of the sea.</async>'


@pytest.mark.parametrize(
    ("tail", "kept", "following"),
    [
        ("\n", "\n", "2. Done."),
        ("\n", "\n", "<sync/>Done."),
        ("\n\n", "\n\n", " Done."),
        ("\n\n", "\n\n", BLUE % ""),
        ("\n2.", "\n", "2. Done."),
    ],
)
def test_a_line_break_that_main_does_not_repeat_stays(tmp_path, tail, kept, following):
    """Without it, two lines would become one."""
    [record] = verdicts(tmp_path, answer(tail, following))
    assert f"{CHUNK}{kept}{Program.parse(following).strip()}" in record.response


@pytest.mark.parametrize(
    ("tail", "following"),
    [
        ("\n42.", " Done."),
        ("\n42.", "\n43. Done."),
        ("\n6.", "\n- Done."),
        ("\n*", "\n**Done.**"),
        ("\n42.", BLUE % "42. " + "\n42. Done."),
    ],
)
def test_a_last_line_that_main_does_not_write_next_stays(tmp_path, tail, following):
    """It may be what the chunk came to: the result of a sum."""
    texts = answer(tail, following)
    [record] = verdicts(tmp_path, texts)
    assert CHUNK + tail in record.response


@pytest.mark.parametrize("tail", [" 6.", "\n6. ripe", "\n6.5", "\n1999.", "\nRed."])
def test_other_ends_of_a_chunk_stay(tmp_path, tail):
    texts = {name: ANSWER[name].replace(CHUNK, CHUNK + tail) for name in ("text", "program")}
    [record] = verdicts(tmp_path, ANSWER | texts)
    assert record.response == texts["text"]


def test_answers_counted_by_another_tokenizer_are_another_run(tmp_path):
    path, pair = tmp_path / "answers.jsonl", Pair.of("", "Why?", ANSWER["text"], "mine")
    path.write_text(json.dumps(ANSWER) + "\n")

    def collect(tokenizer: ByteTokenizer) -> None:
        annotator = annotators.by_own_answers([pair], str(path), tokenizer)
        collect_answers(tmp_path, annotator.about, [pair], annotator.annotate)

    other = ByteTokenizer()
    other.name = "other"
    collect(ByteTokenizer())
    with pytest.raises(PastaError, match="begun with tokenizer="):
        collect(other)


def test_what_teaches_nothing_is_refused(tmp_path):
    long = "word " * 900
    marker = {name: ANSWER[name].replace(CHUNK, "\n6.") for name in ("text", "program")}
    cut, cut_chunk, empty, endless = verdicts(
        tmp_path,
        ANSWER | {"finish_reason": "length"},
        ANSWER | {"cut": 1, "prompt": "And then?"},
        ANSWER | marker,
        ANSWER | {"text": long, "program": f'<promise topic="a" tokens=9 /><async>{long}</async>'},
    )
    assert {cut.reason, cut_chunk.reason} == {
        "the model's answer must end by itself",
        "the chunks of the model's answer must end by themselves",
    }
    assert empty.reason == "a chunk has at least 5 words"
    assert endless.reason == "tokens must be an integer from 1 to 64"
    assert endless.detail == "the chunk 'a' has 451"


def test_other_files_are_refused_by_line(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps(ANSWER) + "\n" + json.dumps({"prompt": "Why?", "text": "So."}) + "\n")
    with pytest.raises(PastaError, match=r"other\.jsonl: line 2: not an answer with .*; name a file"):
        own.read_answers(str(path))
