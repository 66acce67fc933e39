"""The decode command: on a tiny model in this process, and its refusals, one line each."""

import dataclasses
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import configs.decode
from pasta_jax import progress
from pasta_jax.answer import run as pipeline
from pasta_jax.answer.prompts import Prompt, read_program, read_prompt, read_prompts_file
from pasta_jax.decode import device_loop
from pasta_jax.decode import prefill as prefilling
from pasta_jax.decode.lane_log import LaneLog
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.toy import task as toy
from pasta_jax.view import live
from pasta_jax.view.trace_file import load
from tests import ROOT
from tests.helpers.forked import command
from tests.helpers.traces import PROGRAM, tiny_model
from tests.view.test_terminal import plain

SURFACE = PROGRAM.render()
pytestmark = pytest.mark.usefixtures("few_programs")


def test_a_replay_is_printed_in_reading_order_and_labelled(answer):
    Path("program.txt").write_text(SURFACE + "\n")
    Path("sub").mkdir()
    out, err = answer(
        prompt="why?", program="program.txt", trace="sub/t.json", perfetto="p.json", html="h.html", svg="s.svg"
    )
    assert out == PROGRAM.strip() + "\n"
    assert "replay: the answer comes from program.txt, tiny did not write it" in err
    trace = load(Path("sub/t.json"))
    assert (trace.prompt, trace.replayed, trace.model) == ("why?", True, "tiny")
    assert trace.program() == PROGRAM
    assert f"[stop: {len(trace.token)} tokens in {trace.steps} steps (critical path {trace.steps}, parallelism" in err
    assert "A replay" in Path("h.html").read_text()
    assert Path("s.svg").read_text().startswith("<svg ")
    assert json.loads(Path("p.json").read_text())["otherData"]["replayed"] is True
    assert not list(Path().rglob("*.part"))


def test_the_live_view_leaves_the_answer_and_a_timeline(answer, monkeypatch):
    monkeypatch.setattr(live, "FRAMES", 1e9)  # draw every frame
    monkeypatch.setattr(live, "SHARE", 1.0)
    Path("program.txt").write_text(SURFACE)
    out, _ = answer(prompt="why?", program="program.txt", live="yes")
    shown, _, rest = out.rpartition("\x1b[1A\x1b[2K")  # the view removes itself line by line
    assert "1 first" in shown
    assert "the first of two chunks" in rest
    assert "█" in rest
    assert "steps" in rest
    rest = plain(rest)
    assert re.search(r"threads +main and 3 chunks *\nsteps +\d+ for \d+ tokens of text", rest)
    assert "loading" in rest


def test_an_answer_is_shown_at_reading_speed_after_it_was_decoded(answer, monkeypatch):
    order = []
    monkeypatch.setattr(live.LiveView, "replay", lambda view, events: order.append(len(events)))
    record_time = LaneLog.record_time
    monkeypatch.setattr(LaneLog, "record_time", lambda *a, **b: (order.append(0), record_time(*a, **b)))
    Path("program.txt").write_text(SURFACE)
    out, _ = answer(prompt="why?", program="program.txt", live="yes", slow=True, html="h.html")
    assert order[-1] > order[-2] == 0  # all events at once, after the last time was taken
    assert "the first of two chunks" in out
    assert re.search(r"page +h\.html *\n", plain(out))


def test_one_prompt_as_json_and_with_its_baseline(answer):
    answer(prompt="hello", sequential=True, output="base.jsonl")
    out, err = answer(prompt="hello", sequential=True, json=True, baseline="base.jsonl")
    record = json.loads(out)
    assert record["theoretical_speedup"] == 1
    assert record["load_s"] >= 0
    assert record["text"] == json.loads(Path("base.jsonl").read_text())["text"]
    assert "theoretical speedup 1.00 over" in err


def test_the_question_of_a_config_is_asked_without_a_prompt(answer):
    out, err = answer(question="its own", json=True)
    assert json.loads(out)["prompt"] == "its own"
    assert err.startswith("the question of this config:\nits own\n")
    out, err = answer(question="its own", prompt="hello", json=True)
    assert json.loads(out)["prompt"] == "hello"
    assert "question" not in err


def test_the_toys_question_is_one_of_its_problems():
    *walks, last = configs.decode.toy().question.split("\n")
    level = toy.LEVELS["medium"]
    assert last == toy.ENDS_REQUEST
    assert 1 < len(walks) <= len(level.parts)
    for walk in walks:
        ring, first, count = walk.split(" ")
        assert ring in list(toy.RINGS)[: level.rings]
        assert first in toy.RINGS[ring].split()[: level.words]
        assert level.steps[0] <= int(count) <= level.steps[1]


def test_compiling_counts_for_no_request(answer, monkeypatch):
    """The time to the first token is the model's; a prompt of a new length may compile for longer."""
    compiled, write = [0.0], prefilling.write

    def compiles(*arguments, **statics):
        compiled[0] += 100
        return write(*arguments, **statics)

    monkeypatch.setattr(prefilling, "write", compiles)
    monkeypatch.setattr(device_loop.compilation_cache, "seconds", lambda: compiled[0])
    out, err = answer(prompt="hello", json=True)
    record = json.loads(out)
    assert -100_000 < record["prefill_ms"] < 0
    assert record["compile_s"] == 100
    assert "100.0 s compiling]" in err


def test_tags_are_used_by_default_if_the_model_was_trained_on_them(answer, monkeypatch):
    def sequential(**values) -> bool:
        return json.loads(answer(prompt="hello", json=True, **values)[0])["sequential"]

    assert sequential()
    assert "tiny: not trained on the tags, so it decodes sequentially\n" in answer(prompt="hello")[1]
    assert not sequential(sequential=False)
    trained = dataclasses.replace(tiny_model(), positions=PREDICTED)
    monkeypatch.setattr(pipeline, "load", lambda source, only_decoding, mesh: trained)
    assert not sequential()
    assert sequential(sequential=True)


# Refusals


@pytest.mark.parametrize("flag", ["output", "trace", "html"])
def test_an_output_that_cannot_be_written_is_refused_before_decoding(answer, monkeypatch, flag):
    def read_only(**_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    message = f"--{flag}=new/file: new: no such folder; create the folder or choose another one"
    with pytest.raises(PastaError, match=message):
        answer(prompt="x", **{flag: "new/file"})
    assert not Path("new").exists()
    Path("new").mkdir()
    message = f"--{flag}=new/file: Permission denied; choose a folder that you may write to"
    with monkeypatch.context() as patch:
        patch.setattr(atomic.tempfile, "TemporaryFile", read_only)
        patch.setattr(pipeline, "run", pytest.fail)
        with pytest.raises(PastaError, match=message):
            answer(prompt="x", **{flag: "new/file"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "--prompt is missing"),
        ({"prompt": " "}, "--prompt is empty"),
        ({"prompt": "x", "prompts_file": "y"}, "pass one of the two"),
        ({"prompts_file": "none.jsonl"}, r"none\.jsonl: No such file"),
        ({"prompt": "x", "program": "none.txt"}, r"none\.txt: No such file"),
        ({"prompt": "x", "program": "bad.txt"}, r"bad\.txt: line 1, column 3: a promise must be directly followed"),
        ({"prompt": "x", "program": "bad.txt", "sequential": True}, "a replay follows its program"),
        ({"prompts_file": "two.jsonl", "program": "bad.txt"}, "--program: answers one prompt"),
        ({"prompts_file": "two.jsonl", "live": "yes"}, "--live=yes: shows the text of one prompt"),
        ({"prompt": "x", "slow": True}, "--slow: shows one answer on a terminal; drop it, or pass --prompt and --live"),
        ({"prompt": "x", "slow": True, "live": "yes", "json": True}, "--slow: shows one answer on a terminal"),
        ({"prompts_file": "two.jsonl", "slow": True}, "--slow: shows one answer"),
        ({"prompt": "x", "trace": "."}, "--trace=.: is a folder"),
        ({"prompt": "x", "html": "bad.txt/h.html"}, "--html=bad.txt/h.html: bad.txt: Not a directory; create"),
        ({"prompt": "x", "html": "a", "svg": "a"}, "--html --svg: two flags name the same file"),
        ({"prompts_file": "two.jsonl", "output": "./two.jsonl"}, "--output=two.jsonl: is --prompts_file"),
        ({"prompt": "x", "baseline": "two.jsonl"}, "has 2 answers for 1 prompts"),
        ({"prompts_file": "two.jsonl", "baseline": "two.jsonl"}, r"two\.jsonl: line 1: not a sequential answer"),
        (
            {"prompts_file": "swapped.jsonl", "baseline": "two.jsonl"},
            "two.jsonl: line 1: prompt: differs",
        ),
        ({"prompt": "x" * 600}, "--prompt: 607 tokens, but the context of 512 must"),
        ({"prompts_file": "long.jsonl"}, r"long\.jsonl: line 3: 607 tokens"),
        ({"prompt": "x", "rows": 1, "sequential": False}, "rows 1: chunks need a row"),
        ({"prompt": "x", "lanes": 0}, "config.decoding.lanes: expected `int` >= 1"),
    ],
)
def test_bad_flags_are_refused(answer, values, message):
    Path("bad.txt").write_text('a <promise topic="t" tokens=1 />b')
    Path("two.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}')
    Path("swapped.jsonl").write_text('{"prompt": "two"}\n{"prompt": "one"}')
    Path("long.jsonl").write_text('{"prompt": "one"}\n\n' + json.dumps({"prompt": "x" * 600}))
    with pytest.raises(PastaError, match=message) as refused:
        answer(**values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no records"),
        ("[]", "has no records"),
        ('{"prompt": "a"}\n{"prompt": "b"', "line 2, column 15: not JSON"),
        ('[\n{"prompt": "a"},\n]', "line 3, column 1: not JSON|line 2, column"),
        ('"a"', "line 1: not a JSON object"),
        ("{}", "line 1: has neither prompt nor instruction"),
        ('{"prompt": "a", "instruction": "b"}', "line 1: has both"),
        ('{"prompt": 3}', "line 1: prompt: must be text"),
        ('{"instruction": "  "}', "line 1: instruction: must be text that is not blank"),
        ('{"instruction": "a", "input": "b"}', "line 1: input: would be ignored"),
        ('{"prompt": "a", "system": "b"}', "line 1: system: would be ignored; join it with the prompt"),
        ('{"instruction": "a", "dataset": 3}', "line 1: dataset: must be text"),
        ('[{"instruction": "a"}, {"instruction": ""}]', "record 2: instruction: must be"),
        ("[" * 99_999, "nested too deeply|not JSON"),
    ],
)
def test_a_prompts_file_is_refused_by_line_and_field(tmp_path, text, message):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(PastaError, match=rf"p\.jsonl: .*({message})") as refused:
        read_prompts_file(path)
    assert "\n" not in str(refused.value)


def test_prompts_come_from_json_lines_and_from_alpaca_evals_list(tmp_path):
    path = tmp_path / "p"
    path.write_text(
        '\ufeff{"prompt": "a\\u2028b", "more": 1}\r\n\n{"instruction": "c", "input": ""}\n', encoding="utf-8"
    )
    assert read_prompts_file(path) == [Prompt(f"{path}: line 1", "a\u2028b"), Prompt(f"{path}: line 3", "c")]
    path.write_text('\n[{"instruction": "a", "dataset": "x"},\n {"prompt": "b"}]')
    assert read_prompts_file(path) == [Prompt(f"{path}: record 1", "a", "x"), Prompt(f"{path}: record 2", "b")]
    path.write_bytes(b"\xff")
    with pytest.raises(PastaError, match="line 1: byte 1 is not UTF-8"):
        read_prompts_file(path)


def test_the_line_break_at_the_end_of_a_program_file_is_not_text(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text(SURFACE + "\n\n")
    assert read_program(path).strip() == PROGRAM.strip() + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", "[1"),
        ("t", '{"program": "a"}\n{"program": "b"}\n'),
        ("t", '\n{\n "version": 1\n}'),
        ("t", '[\n {"program": "a"}]'),
    ],
)
def test_json_is_not_replayed_as_text(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(PastaError, match=f"{name}: is JSON, not an answer in PASTA-LANG"):
        read_program(tmp_path / name)
    (tmp_path / "answer.txt").write_text('[1, 2]\n{"a": 1}')
    assert read_program(tmp_path / "answer.txt").strip() == '[1, 2]\n{"a": 1}'


def test_a_prompt_comes_from_stdin(monkeypatch):
    for line, start in (("\n", ""), ("\r\n", "\ufeff")):  # as echo and editors write
        for end in ("", line):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{start}é{line}?{end}".encode())))
            assert read_prompt("-").text == "é\n?"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    with pytest.raises(PastaError, match="stdin: byte 1 is not UTF-8"):
        read_prompt("-")


def test_nothing_is_said_while_a_prompt_is_typed(monkeypatch):
    class Typed(io.BytesIO):
        def read(self, *most: int) -> bytes:
            assert not all(one.what for one in progress._running)
            return super().read(*most)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Typed(b"why?\n")))
    assert read_prompt("-").text == "why?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt=x", "--live=maybe"], "error: flag --live=maybe: "),
        (["--prompt=x", "--rows=two"], "error: flag --rows=two: "),
        (["--prompt=x", "--config.request.seed=-1"], "error: config.request.seed: expected `int` >= 0"),
        (["--prompt=x", "--config.request.sede=1"], "error: --config.request.sede: unknown key; Did you mean"),
        (["--prompt=x", "--config=none.py"], "error: --config: [Errno 2] No such file or directory: 'none.py'; pass"),
        (
            ["--config=configs/sft.py:toy"],
            "error: --config=configs/sft.py:toy: not for launch.decode; use --config=configs/decode.py:VARIANT",
        ),
        (["Why?", "--prompt=Who?"], "error: 'Why?': unexpected argument beside --prompt"),
        (["Why?", "Who?"], "error: 'Who?': unexpected argument; put the question in quotes"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    process = command(tmp_path, "decode", *arguments)
    assert process.finish(2) == ""
    assert_refused(process.errors(), message)


def test_a_refusal_is_one_line_and_exit_code_2_from_any_folder(tmp_path):
    words = [sys.executable, "-m", "launch.decode", "--prompt=x", "--program=none.txt"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert_refused(result.stderr, "error: none.txt: No such file or directory")


def assert_refused(errors: str, message: str) -> None:
    *device, line = errors.splitlines()
    assert line.startswith(message)
    assert all(line.startswith("device: ") for line in device)
