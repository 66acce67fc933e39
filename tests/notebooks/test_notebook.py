"""The script of docs/API.md that trains, as a notebook runs it: load, decode in parallel, train and evaluate."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.test_docs import blocks

FEW = "import pytest; from tests.helpers.few_programs import decode_with_few_programs as f; f(pytest.MonkeyPatch())\n"
REPORT = """
import json
print(json.dumps({"exact": report["model"]["exact"], "speedup": report["speed"], "steps": tagged.steps,
    "rows": answer.trace.rows, "policy": answer.trace.policy, "text": answer.text, "tokens": len(answer.trace.token)}))
"""


def script() -> str:
    """The Python block of the page that trains."""
    (script,) = [block for block in blocks("docs/API.md") if "sft.run(" in block]
    return script


def test_the_script_is_short():
    assert len([line for line in script().splitlines() if line.strip()]) <= 15


@pytest.mark.extended
def test_a_notebook_loads_decodes_trains_and_evaluates(tmp_path):
    (tmp_path / "notebook.py").write_text(FEW + script() + REPORT)
    command = [sys.executable, "notebook.py"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["steps"] == 12
    assert report["rows"] == 8  # asynchronously: the model was trained on the tags
    assert report["policy"] == "predicted"
    assert report["tokens"] > 0
    assert (tmp_path / "runs/tagged/model/config.json").is_file()
