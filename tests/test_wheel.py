"""The wheel: what it holds, and the commands that it installs, run in an environment of its own outside the tree."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from pasta_jax.command import console
from tests import ROOT
from tests.helpers.requires import requires_dev, requires_smollm2

INSIDE = ("launch", "configs", "checkpoints")


def tracked(*folders: str) -> set[str]:
    """The files of folders that belong to the repository, without shell scripts."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return {name for name in listed.split("\n") if name and not name.endswith(".sh") and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the files of the repository."""
    source = tmp_path_factory.mktemp("wheel")
    others = {path.name for path in ROOT.glob("requirements*.txt")}
    others |= {"pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"}
    for name in tracked("pasta_jax", *INSIDE, "tests") | others:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", build], cwd=source, check=True, capture_output=True)
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """Run an installed command in an empty folder: the environment has the wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv")
    python = folder / "venv/bin/python"
    pip = [sys.executable, "-Im", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(name: str, *words: str) -> str:
        argv = [python.parent / name, *words]
        result = subprocess.run(argv, cwd=tmp_path_factory.mktemp("empty"), env=env, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.mark.slow
@requires_dev("setuptools")
def test_the_wheel_holds_the_package_with_its_data_scripts_configs_and_adapters_and_nothing_else(wheel):
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert files == tracked("pasta_jax") | {f"pasta_jax/_scripts/{name}" for name in tracked(*INSIDE)}
    for ending in (".jsonl", ".html", ".cc", ".h", ".safetensors", "pasta_jax/py.typed"):
        assert any(name.endswith(ending) for name in files)


@pytest.mark.slow
@requires_dev("setuptools")
def test_an_installed_command_has_its_own_scripts_and_configs(command):
    page = command("pasta-sft", "--help", "--config=configs/sft.py:tiny")
    assert page.startswith("usage: pasta-sft [--flag=value …]")
    assert "  train.steps=12 " in page
    assert "python -m launch" not in page


@pytest.mark.slow
@requires_smollm2
@requires_dev("setuptools")
def test_an_installed_command_finds_an_adapter_by_name(command):
    few = ("--config.request.max_tokens=4", "--config.decoding.widths=()", "--config.decoding.rows=2")
    assert command("pasta-decode", "--config=configs/decode.py:pasta", "--prompt=Hi!", "--live=no", *few).strip()


def test_each_launch_script_has_a_command():
    names = {path.stem.replace("_", "-") for path in (ROOT / "launch").glob("[!_]*.py") if path.stem != "cli"}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {f"pasta-{name}": "pasta_jax.command.console:main" for name in names}


def test_a_clones_texts_are_left_as_they_are():
    text = "python -m launch.compile_tpu --help"
    assert console.as_typed(text) == text
    assert console.as_typed(text, console._IN_WHEEL) == "pasta-compile-tpu --help"
    assert console.as_typed("bash launch/setup.sh --ray", console._IN_WHEEL) == "pip install 'pasta_jax[ray]'"


@pytest.mark.parametrize(("toy", "variant", "question"), [(False, "local", " 'Give three"), (True, "toy", "\n")])
def test_a_finished_run_names_the_next_command(toy, variant, question, capsys):
    console.print_next("runs/my model", toy)
    command = f"python -m launch.decode --config=configs/decode.py:{variant} --config.model.path='runs/my model'"
    assert capsys.readouterr().out.startswith(f"next: {command}{question}")
    console.print_next("runs/mine", toy, "--config.model.preset=qwen")
    assert "--config.model.preset=qwen --config.model.adapter=runs/mine" in capsys.readouterr().out
