"""Recorded answers on paper: without drafts they take the recorded steps, with drafts those that a rule gives."""

import json
import math
import random

import pytest

from pasta_jax.benchmark.drafts import Recorded, gains, paying, read_answers, rows_of_steps, sequential
from pasta_jax.errors import PastaError
from pasta_jax.view import trace_file
from tests.decode.test_sampled_programs import EIGHT_LANES, TAGS, answered


def steps_of(answer: Recorded, most: int, share: float, rows: int = 8) -> list[int]:
    counts = [min(most, rows - own) for own in range(rows + 1)]
    return list(rows_of_steps(answer, rows, counts, share, random.Random(0)))


def test_without_drafts_an_answer_takes_the_recorded_steps(tmp_path):
    ended = [result.trace for result in answered(100) if result.finish_reason == "stop"]
    for number, trace in enumerate(ended):
        trace_file.save(trace, tmp_path / f"{number:04}.json")
    answers = read_answers(tmp_path)
    assert len(answers) == len(ended) > 20
    for answer, trace in zip(answers, ended, strict=True):
        rows = steps_of(answer, 0, 1.0, EIGHT_LANES.rows)
        assert len(rows) == trace.steps
        assert sum(rows) == len(trace.token)
        assert len(steps_of(answer, 3, 0.0, EIGHT_LANES.rows)) == trace.steps  # wrong drafts only cost rows
        assert len(steps_of(answer, 3, 1.0, EIGHT_LANES.rows)) <= trace.steps
        assert len(steps_of(sequential(answer), 0, 1.0)) == trace.text_tokens
    lines = [{"tags": TAGS.base}, *({"finished": True, "chunks": [0] * (len(trace.closed) - 1)} for trace in ended)]
    for line, trace in zip(lines[1:], ended, strict=True):
        line["fed"] = {"ids": trace.token.tolist(), "threads": trace.thread.tolist()}
    file = tmp_path / "answers-model.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, lines[1] | {"finished": False}]))
    assert read_answers(file) == answers


def test_right_drafts_save_steps_and_rows_cost_time():
    answer = Recorded(TAGS, [[97] * 12])
    for most in (1, 2, 5):
        assert steps_of(answer, most, 1.0) == [1 + most] * math.ceil(12 / (1 + most))
    ms = {1: 10.0, 2: 11.0, 4: 20.0}
    assert paying(ms, 4, 1.0) == [0, 3, 2, 1, 0]
    assert paying(ms, 4, 0.5) == [0, 1, 0, 1, 0]  # three rows are padded to four
    assert paying(ms, 4, 0.05) == [0, 0, 0, 1, 0]
    figures = gains([answer], ms, 4, (0.05, 1.0))
    assert figures["forks"] == {"steps": 1.0, "ms": 1.0}
    right = {"steps": 4.0, "ms": 2.0}
    assert figures["right"][1.0] == {"most": 3, "drafts": right, "both": right, "both_over_forks": right}
    assert figures["right"][0.05]["most"] == 0


def test_what_opens_a_chunk_or_joins_has_a_step_of_its_own():
    close, body = TAGS.close(1), [TAGS.async_, 97, 97, 97, 97]
    answer = Recorded(TAGS, [[TAGS.promise, close, 98, TAGS.sync, 98], body])
    # [PROMISE]; its end, with [ASYNC] and main's next id; then the chunk's four ids and [SYNC] with its [/ASYNC].
    assert len(steps_of(answer, 7, 1.0)) == 4
    assert len(steps_of(answer, 0, 1.0)) == 8


def test_a_folder_without_traces_is_named(tmp_path):
    with pytest.raises(PastaError, match="no answer that ended"):
        read_answers(tmp_path)
