"""The interpreter's loop at Gemma 7B's shape, by the TPU's own compiler: what it holds, copies and exchanges."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requires import requires_libtpu

ROOT = Path(__file__).parents[1]
MIB = 2**20
LANES, ROWS, EMBED, PREFILL, BFLOAT16 = 8, 8, 3072, 512, 2

pytestmark = requires_libtpu


def in_a_process(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a module as a process: the TPU plugin reads its environment when it loads."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "XLA_", "JAX_"))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=570)


def compile_tpu(*arguments: str) -> subprocess.CompletedProcess:
    return in_a_process("launch.compile_tpu", *arguments)


@functools.cache
def compiled(topology: str) -> dict:
    process = compile_tpu(f"--topology={topology}", "--config=configs/compile_tpu.py:gemma_7b")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("topology", ["v5e:2x4", "v6e:2x4"])
@pytest.mark.parametrize("name", ["run", "prefill"])
def test_a_7b_model_decodes_in_place_on_eight_chips(topology, name):
    report = compiled(topology)
    program = report["programs"][name]
    # From the shapes: 16 heads over 8 devices, keys and values, 28 layers, 8 lanes of 4096 slots.
    assert report["keys_values"] == 2 * 28 * 8 * (16 // 8) * 4096 * 256 * BFLOAT16
    # The whole state is updated in place, and nothing else is.
    assert report["state"] <= program["alias"] < report["state"] + MIB
    # No second pool, no second copy of any kernel: a layer's pool alone has 64 MiB, its kernels 72.
    assert program["temp"] < 32 * MIB
    assert program["arguments"] < report["params"] + report["state"] + MIB
    assert program["peak"] < 4 * 1024 * MIB  # of 16 GiB on a v5e


@pytest.mark.parametrize("topology", ["v5e:2x4", "v6e:2x4"])
def test_a_layer_exchanges_two_sums_of_hidden_states_and_nothing_longer_moves(topology):
    programs = compiled(topology)["programs"]
    run, prefill = programs["run"]["collectives"], programs["prefill"]["collectives"]
    assert run["in_layers"] == {"all-reduce": 2 * 2}  # after `out` and `down`, in the loops of one row and of eight
    assert run["largest"] == {"all-reduce": LANES * ROWS * EMBED * BFLOAT16}
    assert prefill["in_layers"] == {"all-reduce": 2}
    assert prefill["largest"] == {"all-reduce": PREFILL * EMBED * BFLOAT16}


def test_the_compiler_refuses_what_does_not_fit_in_one_line():
    process = compile_tpu("--topology=v5e:1x1")
    assert process.returncode == 2
    *_, last = process.stderr.splitlines()
    assert last.startswith("error: run of gemma_7b doesn't fit: RESOURCE_EXHAUSTED")
    assert "exceeds available HBM (15.75G)" in last
    assert process.stdout == ""


def test_unknown_topologies_and_programs_are_refused_in_one_line():
    for arguments, message in (
        (["--topology=v5e-8"], "error: --topology=v5e-8: "),
        (["--config.data=3"], "error: mesh 3 x 2: 8 devices available"),
        (["--config.prefill=100"], "error: config.prefill: unknown value 100; choose from 16, "),
        (["--config.lanes=0"], "error: config.lanes: "),
        (["--config.programs=('train',)", "--config.train.block=100"], "error: config.train.block 100: "),
    ):
        process = compile_tpu(*arguments)
        assert process.returncode == 2
        assert process.stderr.splitlines()[-1].startswith(message), process.stderr
