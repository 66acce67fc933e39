"""Trace files round-trip or are refused."""

import json

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.view.trace_file import from_json, load, save, to_json
from tests.helpers.traces import PROGRAM, TOKENIZER, random_traces, same, script_of, traced

TAGS = TOKENIZER.tags


def test_a_file_round_trips(tmp_path):
    empty = traced([[TOKENIZER.end_of_turn]])
    for number, (trace, *_) in enumerate((empty, *random_traces(60, seed=2))):
        path = tmp_path / f"{number}.json"
        save(trace, path)
        assert same(load(path), trace)
    assert not list(tmp_path.glob("*.part"))
    # What other readers need is in the file.
    trace, _ = traced(script_of(PROGRAM))
    fields = json.loads(to_json(trace))
    assert fields["text"] == PROGRAM.strip()
    assert Program.parse(fields["program"]) == PROGRAM
    assert fields["critical_path"] == trace.critical_path
    assert fields["threads"][1]["topic"] == "first"


def edit(**changes):
    """The file of PROGRAM with some keys changed; a function is applied to the old value, None drops the key."""
    fields = json.loads(to_json(traced(script_of(PROGRAM))[0]))
    for key, value in changes.items():
        if value is None:
            del fields[key]
        else:
            fields[key] = value(fields[key]) if callable(value) else value
    return json.dumps(fields)


def column(name: str, change):
    return lambda tokens: tokens | {name: change(tokens[name])}


REFUSED = [
    ("", "line 1, column 1: not JSON"),
    ("[]", "not a trace"),
    ("[" * 100_000, "nested too deeply|not JSON"),
    ('{"traceEvents": []}', '"format" is not'),
    (edit(version=2), "format version 2, this version of pasta_jax reads 1"),
    (edit(format="other"), "not a trace"),
    (edit(steps=None), "steps: missing"),
    (edit(critical_path=None), "critical_path: missing"),
    (edit(extra=1), "extra: unknown key"),
    (edit(steps="9"), "steps: expected `int`"),
    (edit(steps=True), "steps: expected `int`"),
    (edit(steps=-1), "steps: expected `int` >= 0"),
    (edit(steps=3), "tokens.step: is not within 1 to 3"),
    (edit(steps=10**6), "steps: more than the [0-9]+ tokens"),
    (edit(policy="oracle2"), "policy: unknown value 'oracle2'; choose from predicted"),
    (edit(finish="done"), "finish: unknown value 'done'; choose from stop, length"),
    (edit(closed=["own", "own"]), "tokens.thread: has a thread that is not in closed"),
    (edit(closed=lambda old: [*old, "own"]), "closed: has 5 threads for 3 promises"),
    (edit(closed=[]), "closed: expected `array` of length >= 1"),
    (edit(closed=[["own"]]), r"closed\[0\]: expected `str`"),
    (edit(prompt="\ud800"), "is not valid Unicode"),
    (edit(prompt_ids=[2**31]), "prompt_ids.*: expected `int` <="),
    (edit(prompt_ids=[1.0]), "prompt_ids.*: expected `int`"),
    (edit(rounds=[[1, 2.0]]), "rounds: does not start at step 0"),
    (edit(rounds=[[0, 2.0], [0, 3.0]]), "rounds: decreases"),
    (edit(rounds=[[0, float("nan")]]), "rounds.*: expected `float`"),
    (edit(rounds=[3]), "rounds.*: expected `array`"),
    (edit(tokens=[]), "tokens: expected `object`"),
    (edit(tokens=lambda old: old | {"more": []}), "tokens.more: unknown key"),
    (edit(tokens=column("id", lambda ids: ids[:-1])), "tokens.id: its length differs from that of tokens.text"),
    (edit(tokens=column("step", lambda steps: steps[::-1])), "tokens.step: decreases"),
    (edit(tokens=column("text", lambda text: ["!", *text[1:]])), "text: does not follow from the tokens"),
    (edit(tokens=column("id", lambda ids: [TAGS.async_, *ids[1:]])), "tokens: not a well-formed answer"),
    (edit(parallelism=9.0), "parallelism: does not follow from the tokens"),
    (edit(threads=[]), "threads: does not follow from the tokens"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_files_that_are_not_traces_are_refused(text, message):
    with pytest.raises(PastaError, match=f"^it: .*({message})") as refused:
        from_json(text, "it")
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path):
    with pytest.raises(PastaError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(PastaError, match="bytes: byte 1 is not UTF-8"):
        load(tmp_path / "bytes")
    with pytest.raises(PastaError, match=r"trace\.json: .*choose a writable path"):
        save(traced(script_of(PROGRAM))[0], tmp_path / "bytes" / "trace.json")
