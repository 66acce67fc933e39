"""The scripts' command lines: what demo.sh and test.sh pass on, and a --help that starts quickly."""

import importlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli
from tests import ROOT
from tests.helpers.forked import Forked

SCRIPTS = ROOT / "launch"


@pytest.mark.parametrize(
    ("arguments", "prompt", "rest", "variant"),
    [
        ([], "What are the benefits of regular exercise?", [], "pasta"),
        (["Why?"], "Why?", [], "pasta"),
        (["--seed=1", "Two words", "--out=a b"], "Two words", ["--seed=1", "--out=a b"], "pasta"),
        (["-", "-v"], "-", ["-v"], "pasta"),
        (["--qwen", "Why?", "-v"], "Why?", ["-v"], "qwen"),
    ],
)
def test_demo_asks_the_first_argument_that_is_not_a_flag(tmp_path, arguments, prompt, rest, variant):
    output = run_in_fake_tree(tmp_path, "demo.sh", *arguments)
    command = ["-P", "-m", "launch.decode", f"--config={tmp_path}/configs/decode.py:{variant}"]
    options = [
        "--compare",
        "--config.compare_passes=1",
        f"--html={tmp_path}/runs/demo.html",
        f"--prompt={prompt}",
        *rest,
    ]
    assert output == command + options


@pytest.mark.parametrize("script", ["demo.sh", "test.sh"])
def test_help_is_the_scripts_head_and_installs_nothing(tmp_path, script):
    (tmp_path / "launch").mkdir()
    shutil.copy(SCRIPTS / script, tmp_path / "launch")  # without setup.sh
    shown = subprocess.check_output([tmp_path / "launch" / script, "--help"], text=True)
    assert f"\n  launch/{script} " in shown
    assert "#" not in shown
    assert "set -" not in shown


HEAVY = "real or tpu or extended"
WHOLE = ["-n", "2", "--dist", "worksteal"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["-m", f"not ({HEAVY})", *WHOLE]),
        (["--all"], WHOLE),
        (["quick"], ["-m", f"not ({HEAVY} or slow)", *WHOLE]),
        (
            ["quick", "-x", "tests/lang/test_clock.py"],
            ["-m", f"not ({HEAVY} or slow)", "-x", "tests/lang/test_clock.py"],
        ),
        (["tests/lang/test_clock.py", "-k", "quick"], ["tests/lang/test_clock.py", "-k", "quick"]),
    ],
)
def test_a_mode_selects_tests_and_other_arguments_are_those_of_pytest(tmp_path, arguments, expected):
    assert run_in_fake_tree(tmp_path, "test.sh", *arguments) == ["-m", "pytest", *expected]


def test_tests_run_where_there_is_no_home(tmp_path, monkeypatch):
    for name in ("HOME", "PASTA_JAX_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert run_in_fake_tree(tmp_path, "test.sh", "-x") == ["-m", "pytest", "-x"]


def run_in_fake_tree(root: Path, script: str, *arguments: str) -> list[str]:
    """The arguments with which a script calls Python, where setup.sh does nothing."""
    (root / "launch").mkdir()
    (root / ".venv/bin").mkdir(parents=True)
    shutil.copy(SCRIPTS / script, root / "launch")
    for name, text in {"launch/setup.sh": "", ".venv/bin/python": 'printf "%s\\n" "$@"\n'}.items():
        (root / name).write_text(f"#!/bin/sh\n{text}")
        (root / name).chmod(0o755)
    return subprocess.check_output([root / "launch" / script, *arguments], text=True).splitlines()


def test_setup_shows_what_pip_does_without_a_terminal_too():
    """Time is simulated: each attempt to read a line takes six seconds, and those for the second one time out."""
    lines = (SCRIPTS / "setup.sh").read_text().splitlines()
    start = lines.index("show_progress() {")
    code = [
        'say() { echo "setup: $*"; }',
        "read() {",
        "  SECONDS=$((SECONDS + 6)) attempt=$((${attempt:-0} + 1))",
        "  case $attempt in 1) line=one ;; 2 | 3) return 142 ;; 4) line=two ;; *) return 1 ;; esac",
        "}",
        *lines[start : lines.index("}", start) + 1],
        "show_progress",
    ]
    output = subprocess.check_output(["bash", "-c", "\n".join(code)], text=True, timeout=60)
    assert output == "setup: 6 s, one\nsetup: 12 s, one\nsetup: 18 s, one\nsetup: 24 s, two\n"


@pytest.mark.parametrize(("exists", "name"), [(True, "tree"), (False, "tree"), (False, "a tree")])
def test_a_python_without_the_packages_says_what_to_run(tmp_path, exists, name):
    tmp_path = tmp_path / name
    shutil.copytree(SCRIPTS, tmp_path / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    if exists:
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
    command = [sys.executable, "-S", "-m", "launch.decode", "--prompt=Hi!"]  # -S: without installed packages
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    quote = "'" * (" " in name)
    to_run = f"source {quote}{tmp_path}/.venv/bin/activate{quote}"
    if not exists:
        to_run = f"bash {quote}{tmp_path}/launch/setup.sh{quote} && {to_run}"
    expected = f"error: {sys.executable} lacks the packages of this project; run: {to_run}\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", expected)


def test_an_error_ends_a_script_in_one_line_and_its_exit_code():
    code = (
        "import sys; from launch import cli; from pasta_jax import errors; from pasta_jax.llm import client as llm\n"
        "def main(config): raise (llm.EndpointDown if config.max_pairs else errors.PastaError)('no connection')\n"
        "cli.run(main, 'configs/annotate.py')"
    )
    for flags, expected in (((), 2), (("--config.max_pairs=1",), 3)):
        command = [sys.executable, "-c", code, *flags]
        result = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (expected, "error: no connection\n")


def stopped(script: str, pipeline: str, workdir: Path) -> None:
    """A command whose run gets a signal."""

    def run(settings, workdir, watch, *_):
        with watch() as stopping:
            signal.raise_signal(signal.SIGTERM)
            assert stopping()

    importlib.import_module(f"pasta_jax.preference.{pipeline}").run = run
    sys.argv = [script, f"--workdir={workdir}"]
    cli.run(importlib.import_module(f"launch.{script}").main, default_config=f"configs/{script}.py:tiny")


@pytest.mark.slow
@pytest.mark.parametrize(("script", "pipeline"), [("preference", "run"), ("sweep", "sweep")])
def test_a_stopped_run_ends_with_the_signals_exit_code(tmp_path, script, pipeline):
    assert Forked(tmp_path, stopped, script, pipeline, tmp_path).finish(143) == ""
