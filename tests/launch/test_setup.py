"""setup.sh in a small tree of its own, where it installs one tiny wheel without a network."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT

SCRIPTS = ROOT / "launch"
pytestmark = pytest.mark.extended  # creates environments and runs pip


def write_wheel(folder: Path, version: str) -> None:
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"tiny-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def pin(root: Path, version: str) -> None:
    (root / "requirements.txt").write_text(f"--no-index\n--find-links {(root / 'wheels').as_uri()}\ntiny=={version}\n")


def setup(root: Path, *flags: str, **env: str) -> subprocess.CompletedProcess:
    command = [str(root / "launch/setup.sh"), *flags]
    env = os.environ | {"PYTHON": sys.executable} | env
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=120)


def tiny_version(root: Path) -> str:
    """The version of tiny in the .venv; also shows that our own package is importable from anywhere."""
    code = "import pasta_jax, tiny; print(tiny.version)"
    return subprocess.check_output([root / ".venv/bin/python", "-Ic", code], cwd="/", text=True).strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("a tree with blanks")
    shutil.copytree(SCRIPTS, root / "launch", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for folder in ("wheels", "pasta_jax"):
        (root / folder).mkdir()
    (root / "pasta_jax/__init__.py").touch()
    write_wheel(root / "wheels", "1.0")
    write_wheel(root / "wheels", "2.0")
    pin(root, "1.0")
    first = setup(root)
    assert (first.returncode, first.stderr) == (0, "")
    assert "creating .venv" in first.stdout
    assert tiny_version(root) == "1.0"
    return root


@pytest.fixture
def whole(tree) -> Path:
    """The tree with its .venv complete, whatever the previous test has done to it."""
    pin(tree, "1.0")
    assert setup(tree).returncode == 0
    return tree


def test_setup_with_nothing_to_do_prints_one_line(whole):
    again = setup(whole)
    assert again.stdout == f"setup: ready: .venv, Python {sys.version_info[0]}.{sys.version_info[1]}, base\n"


def test_setup_follows_a_changed_pin(whole):
    pin(whole, "2.0")
    assert "installing base" in setup(whole).stdout
    assert tiny_version(whole) == "2.0"


def test_setup_reinstalls_what_was_removed_by_hand(whole):
    subprocess.check_call([whole / ".venv/bin/python", "-Im", "pip", "uninstall", "-qqy", "tiny"])
    assert "by hand" in setup(whole).stdout
    assert tiny_version(whole) == "1.0"


def test_setup_that_fails_states_the_cause_and_can_be_rerun(whole):
    pin(whole, "3.0")
    failed = setup(whole)
    assert failed.returncode == 1
    assert "No matching distribution found for tiny==3.0" in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("setup: pip could not install base")
    pin(whole, "1.0")  # the stamp of the previous install must not be accepted
    assert "installing base" in setup(whole).stdout


def test_setup_recreates_an_interrupted_install(whole):
    (whole / ".venv/setup/base.stamp").unlink()
    (whole / ".venv/setup/base.log").write_text("Installing collected packages: tiny\n")
    (whole / ".venv/leftover").touch()
    assert "interrupted" in setup(whole).stdout
    assert not (whole / ".venv/leftover").exists()
    assert tiny_version(whole) == "1.0"


def test_setup_recreates_a_venv_without_its_python_with_all_its_parts(whole):
    shutil.copy(whole / "requirements.txt", whole / "requirements-tpu.txt")
    assert setup(whole, "--tpu").stdout.endswith("base tpu\n")
    (whole / ".venv/bin/python").unlink()
    assert setup(whole).stdout.endswith("base tpu\n")
    assert tiny_version(whole) == "1.0"


def test_setup_extracts_data_from_a_source_archive(whole):
    folder = whole / "archive"
    folder.mkdir()
    pages = {"data/alpaca_en_demo.json": "[]", "data/dpo_en_demo.json": "[1]", "data/other.json": "[2]"}
    pages["PKG-INFO"] = "Metadata-Version: 2.1\nName: rows\nVersion: 1.0\n"
    # Its own build backend: pip asks the archive for its name, and without a network it cannot install another.
    pages["pyproject.toml"] = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    pages["backend.py"] = (
        "import os\n"
        "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    os.mkdir(folder + '/rows-1.0.dist-info')\n"
        "    open(folder + '/rows-1.0.dist-info/METADATA', 'w').write(open('PKG-INFO').read())\n"
        "    return 'rows-1.0.dist-info'\n"
        "def build_wheel(*_): raise SystemExit('nothing is built')\n"
    )
    with tarfile.open(folder / "rows-1.0.tar.gz", "w:gz") as archive:
        for name, text in pages.items():
            file = tarfile.TarInfo(f"rows-1.0/{name}")
            file.size = len(text)
            archive.addfile(file, io.BytesIO(text.encode()))
    hashes = {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / "rows-1.0.tar.gz", whole / "wheels/tiny-1.0-py3-none-any.whl")
    }
    rows, tiny = (f"--hash=sha256:{digest}\n" for digest in hashes.values())
    wheels = (whole / "wheels").as_uri()
    (whole / "requirements-data.txt").write_text(f"--no-index\n--find-links {wheels}\ntiny==1.0 {tiny}")
    pin_rows = f"--no-index\n--find-links {folder.as_uri()}\nrows==1.0 {rows}"
    (whole / "requirements-data-archive.txt").write_text(pin_rows.replace("sha256:", "sha256:0")[:-2] + "\n")
    failed = setup(whole, "--data")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("setup: pip could not download the data archive")
    (whole / "requirements-data-archive.txt").write_text(pin_rows)
    assert setup(whole, "--data").stdout.endswith("base data\n")
    extracted = whole / ".venv/share/pasta_jax/llamafactory"
    assert {path.name: path.read_text() for path in extracted.iterdir()} == {
        "alpaca_en_demo.json": "[]",
        "dpo_en_demo.json": "[1]",
    }
    assert "installing" not in setup(whole, "--data").stdout


def test_setup_refuses_an_unknown_option(whole):
    refused = setup(whole, "--dev", "--tpus")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("setup: unknown option --tpus\nUsage: ")


def test_setup_without_a_python_is_one_line(whole):
    missing = setup(whole, PYTHON="/no/such/python")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("setup: no Python 3.11 or 3.12 at PYTHON=/no/such/python: ")
    assert missing.stderr.count("\n") == 1


def test_setup_without_the_venv_module_is_one_line(whole, tmp_path):
    fake = tmp_path / "python3.11"
    fake.write_text('#!/bin/sh\ncase "$2" in *version_info*) echo 3.11 ;; *) exit 1 ;; esac\n')
    fake.chmod(0o755)
    missing = setup(whole, PYTHON=str(fake))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "lacks the venv module" in missing.stderr
    assert missing.stderr.count("\n") == 1
