"""Profiles: operations have the phases of their scopes, times add up, a run leaves report, pictures and traces."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from pasta_jax.benchmark import phases, profile
from pasta_jax.benchmark.settings import BenchmarkSettings, InterpreterBenchmark, ProfileBenchmark, StepBenchmark
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.traces import tiny_model, traced

SCOPES = {
    "jit(run)/while/body/while/body/model/jit(layer)/Layer/qkv/ffi_call": "products",
    "jit(run)/while/body/while/body/model/jit(layer)/Layer/attention/write/scatter": "write",
    "jit(run)/while/body/while/body/model/jit(layer)/Layer/attention/ffi_call": "attention",
    "jit(run)/while/body/while/body/model/jit(layer)/Layer/mlp_norm/mul": "layers, rest",
    "jit(run)/while/body/while/body/write/scatter": "write",
    "jit(run)/while/body/while/body/sample/head/ffi_call": "head",
    "jit(run)/while/body/while/body/sample/jit(_where)/select_n": "sampling",
    "jit(run)/while/body/while/cond/count_rows/reduce_sum": "threads",
    "reduce_sum": "other",
    "": "other",
}


def test_operations_have_the_phase_of_their_scopes():
    assert {scopes: phases.phase_of(scopes) for scopes in SCOPES} == SCOPES


def test_a_program_is_read_without_what_runs_others():
    program = """HloModule jit_run
  %mul.1 = f32[2,8]{1,0:T(8,128)} multiply(%a, %b), metadata={op_name="jit(run)/model/Layer/mlp_norm/mul" id=3}
  %while.2 = (s32[], f32[8]{0}) while(%t), condition=%c, body=%b, metadata={op_name="jit(run)/while"}
  ROOT %ffi_call.3 = (f32[8]{0}, u8[0]{0}) custom-call(%t), metadata={op_name="jit(run)/model/Layer/down/ffi_call"}
  %dot.4 = f32[2,8]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %bitcast.5 = f32[16]{0} bitcast(%dot.4)
  %mul.6 = f32[16]{0} multiply(%bitcast.5, %bitcast.5), metadata={op_name="jit(run)/model/Layer/mul" id=3}
  copy.7 = f32[8]{0} copy(%mul.6)
"""
    assert phases.phases_of(program) == {
        "mul.1": "layers, rest", "ffi_call.3": "products", "dot.4": "products", "bitcast.5": "layers, rest",
        "mul.6": "layers, rest", "copy.7": "other",
    }  # fmt: skip


def test_phases_share_moments_and_add_up_to_the_time_that_passed():
    ms = 10**6
    spans = [
        (0, 4 * ms, "products"),
        (2 * ms, 4 * ms, "attention"),
        (5 * ms, 6 * ms, "head"),
        (6 * ms, 6 * ms, "other"),
    ]
    total = phases.split(spans)
    assert total == dict.fromkeys(phases.PHASES, 0.0) | {
        "products": 3.0, "attention": 1.0, "between": 1.0, "head": 1.0,
    }  # fmt: skip
    assert phases.split([]) == dict.fromkeys(phases.PHASES, 0.0)


def test_an_answer_costs_its_steps_by_width_and_its_events():
    tags = ByteTokenizer.tags
    fed = [  # (step, token): one, three and two rows; two forks and a join; step 5 of four rows computes six
        (1, tags.promise), (2, tags.async_), (2, 7), (2, 7), (3, 7), (3, 7), (4, tags.async_), (5, tags.sync),
        (5, 7), (5, 7), (5, 7),
    ]  # fmt: skip
    step, token = (np.asarray(column) for column in zip(*fed, strict=True))
    trace = dataclasses.replace(traced([[ByteTokenizer().end_of_turn]])[0], step=step, token=token, steps=5, rows=6)
    costs = profile.Costs({1: 10.0, 3: 14.0, 6: 20.0}, fork=0.5, join=0.25)
    assert profile.parts_of(trace, 3, costs) == {
        "path": 30.0, "waiting": 20.0, "rows": 4.0 + 4.0 + 10.0, "forks": 1.0, "joins": 0.25,
    }  # fmt: skip


@pytest.mark.extended
def test_a_profile_adds_up_and_leaves_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "load_or_make", lambda _: tiny_model())
    profiled, unrounded = profile.profiled, []  # a host that is busy elsewhere can hide a tiny model's phases
    monkeypatch.setattr(profile, "profiled", lambda *of: unrounded.append(profiled(*of)) or unrounded[-1])
    programs = tmp_path / "programs.jsonl"
    text = 'a<promise topic="b" tokens=1 /><async>c d</async><promise topic="e" tokens=1 /><async>f</async><sync/>g h'
    programs.write_text(json.dumps({"program": text}) + "\n")
    settings = BenchmarkSettings(
        interpreter=InterpreterBenchmark(str(programs), 3, (1, 3), slots=128, prompt=8, rounds=1, event_rounds=2),
        decode=StepBenchmark(steps=4, rounds=2),
        profile=ProfileBenchmark(folder=str(tmp_path / "profile")),
    )
    report = profile.profile(settings)
    assert list(report["phases"]) == [1, 3]
    for rows, by_phase in report["phases"].items():
        assert sum(by_phase.values()) == pytest.approx(report["ms_per_step"][rows], abs=0.05)
    assert [by_phase["products"] > 0 for by_phase in unrounded] == [True, True]
    [answer] = report["answers"]
    assert answer["steps"] >= answer["critical_path"] > 0
    assert sum(answer["parts"].values()) == pytest.approx(answer["asynchronous_ms"], abs=1)
    folder = tmp_path / "profile"
    assert json.loads((folder / "report.json").read_text())["benchmark"] == "profile"
    assert json.loads(gzip.decompress((folder / "step_of_3_rows.perfetto.json.gz").read_bytes()))["traceEvents"]
    for name in ("steps.svg", "answers.svg"):
        assert "<svg" in (folder / name).read_text()
    assert "products" in profile.table(report)
