"""Programs compiled by the TPU's own compiler, each call in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any

from tests import ROOT

WHOLE = "v5e:2x4"
# Prints a line of each case in turn: its report as JSON, or the error. Every family of models is a preset, tiny.
CASES = """
import ast, sys
from pasta_jax.tpu import environment
environment.prepare()
from configs.compile_tpu import gemma_7b
from pasta_jax.errors import PastaError
from pasta_jax.models.config import PRESETS
from pasta_jax.runs.settings import changed
from pasta_jax.tpu import compile as compile_tpu
from pasta_jax.tpu import report as compile_tpu_report
from tests.helpers.families import VARIANTS
PRESETS.update(VARIANTS)
for topology, changes in ast.literal_eval(sys.argv[1]):
    try:
        reports = list(compile_tpu.compile_all(changed(gemma_7b(), **changes), [topology]))
        print(compile_tpu_report.as_json(reports))
    except PastaError as error:
        print(error)
"""
FEW = {"lanes": 2, "rows": 2, "slots": 512}  # quicker to compile
SFT = {"train.data": 4, "train.rows": 4, "train.tokens": 1024, "train.block": 128}


def in_a_process(*arguments: str) -> subprocess.CompletedProcess:
    """Run Python in a process: the TPU plugin reads its environment when it loads."""
    command = [sys.executable, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "XLA_", "JAX_"))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=570)


def each(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line of each case; one process imports JAX and loads the compiler for all."""
    process = in_a_process("-c", CASES, repr(cases))
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def family(kind: str) -> dict[str, Any]:
    """What the compiler says of a family's loop and training step on eight chips."""
    changes = FEW | SFT | {"presets": (kind,), "programs": ("run", "sft"), "data": 4, "lanes": 4}
    return json.loads(each([(WHOLE, changes)])[-1])["programs"]
