"""The wheel: what it holds, what it leaves out, and the commands that it installs."""

import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from pasta_jax.command import console
from tests import ROOT
from tests.helpers.requires import requires_dev

SCRIPTS = sorted(path.stem for path in (ROOT / "launch").glob("[!_]*.py") if path.stem != "cli")


def tracked(*folders: str) -> set[str]:
    """The files of folders that belong to the repository, without shell scripts."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name for name in listed.stdout.split("\n") if name and not name.endswith(".sh") and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """Built from the files of the repository."""
    source = tmp_path_factory.mktemp("wheel")
    others = {path.name for path in ROOT.glob("requirements*.txt")}
    others |= {"pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"}
    for name in tracked("pasta_jax", "configs", "launch", "tests") | others:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", build], cwd=source, check=True, capture_output=True)
    (path,) = (source / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
@requires_dev("setuptools")
def test_the_wheel_holds_the_package_with_its_data_scripts_and_configs_and_nothing_else(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    inside = {f"pasta_jax/_scripts/{name}" for name in tracked("launch", "configs")}
    assert files == tracked("pasta_jax") | inside
    assert any(name.endswith(".jsonl") for name in files)
    assert any(name.endswith(".html") for name in files)


@pytest.mark.slow
@requires_dev("setuptools")
def test_an_unpacked_wheel_runs_its_own_scripts_with_its_own_configs(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    code = "import sys; sys.argv[0] = 'pasta-sft'; from pasta_jax.command.console import main; main()"
    command = [sys.executable, "-S", "-c", code, "--help", "--config=configs/sft.py:tiny"]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    result = subprocess.run(
        command, cwd=tmp_path / "elsewhere", env={"PYTHONPATH": ":".join([str(tmp_path / "site"), *packages])},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: pasta-sft [--flag=value …]")
    assert "  train.steps=12 " in result.stdout
    assert "python -m launch" not in result.stdout


def test_each_launch_script_has_a_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {f"pasta-{name.replace('_', '-')}": "pasta_jax.command.console:main" for name in SCRIPTS}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--config=configs/sft.py:toy", f"--config={ROOT}/configs/sft.py:toy"),
        ("configs/sft.py", f"{ROOT}/configs/sft.py"),
        ("--config=configs/none.py:toy", "--config=configs/none.py:toy"),
        ("--config=own/configs/sft.py", "--config=own/configs/sft.py"),
        ("--config.model.path=configs/a", "--config.model.path=configs/a"),
    ],
)
def test_configs_are_found_from_anywhere(word, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert console.with_own_config(word) == expected


def test_a_config_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/sft.py").touch()
    monkeypatch.chdir(tmp_path)
    assert console.with_own_config("--config=configs/sft.py:toy") == "--config=configs/sft.py:toy"


def test_a_clones_texts_are_left_as_they_are():
    text = "python -m launch.compile_tpu --help"
    assert console.as_typed(text) == text
    assert console.as_typed(text, console._IN_WHEEL) == "pasta-compile-tpu --help"
