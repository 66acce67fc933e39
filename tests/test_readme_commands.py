"""README's commands: read out of the page, run in one shell, and each accepted by its script as it is written."""

import io
import os
import shlex
import subprocess
import sys

import pytest

from tests import ROOT
from tests.readme_commands import PAGES, PLACEHOLDERS, SHORT, Outcome, Shell, commands, fresh_environment, run_all

README = "".join(page.read_text(encoding="utf-8") for page in PAGES)

PAGE = """
```bash
export WHO=world
printf '%s ' hello \\
    "$WHO"
```
```
not a command
```
"""


def test_commands_are_those_of_the_bash_blocks():
    assert commands(PAGE) == ["export WHO=world", "printf '%s ' hello \"$WHO\""]
    assert commands(PAGE, [("hello", "bye")])[1] == "printf '%s ' bye \"$WHO\""


def test_commands_run_in_one_shell_up_to_the_first_that_fails(tmp_path, capsys):
    log = io.BytesIO()
    outcomes = run_all([*commands(PAGE), "cat", "(exit 3)", "echo never"], tmp_path, dict(os.environ), log)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 3]
    assert b"hello world" in log.getvalue()
    assert b"never" not in log.getvalue()
    assert "   3 " in capsys.readouterr().out


def test_a_command_that_takes_too_long_or_ends_the_shell_fails(tmp_path):
    for command, code in (("sleep 60", 124), ("exit 0", 1)):
        shell = Shell(tmp_path, dict(os.environ), io.BytesIO())
        assert shell.run(command, limit=1 if code == 124 else 60).code == code


def test_pauses_are_those_between_outputs_and_before_the_end(tmp_path):
    shell = Shell(tmp_path, dict(os.environ), io.BytesIO())
    try:
        outcome = shell.run("sleep 0.3; echo a; sleep 0.1; echo b; sleep 0.6")
    finally:
        shell.close()
    assert 0.3 <= outcome.first < outcome.seconds
    assert 0.6 <= outcome.pause < outcome.seconds
    assert outcome.is_prompt
    assert not Outcome("x", 0, first=11, pause=11, seconds=20).is_prompt
    assert not Outcome("x", 0, first=1, pause=16, seconds=20).is_prompt


def test_a_fresh_shell_knows_nothing_of_this_one(tmp_path):
    variables = {"PATH": "/clone/.venv/bin:/bin", "HOME": "/home", "JAX_PLATFORMS": "cpu", "VIRTUAL_ENV": "/clone"}
    assert fresh_environment(variables, None) == {"PATH": "/bin", "HOME": "/home"}
    assert fresh_environment(variables, tmp_path)["PASTA_JAX_CACHE"] == str(tmp_path)


@pytest.mark.parametrize(("part", "_"), [*SHORT, *PLACEHOLDERS])
def test_what_a_short_run_replaces_is_in_readme(part, _):
    assert part in "\n".join(commands(README))


@pytest.mark.extended
def test_readme_trains_a_toy_and_decodes_with_it(tmp_path):
    """A few of the commands, in their short form; tests/readme_commands.py runs all of them."""
    for name in (".venv", "configs", "launch"):
        (tmp_path / name).symlink_to(ROOT / name)
    found = commands(README, SHORT)
    lines = [found[found.index("source .venv/bin/activate")]]
    lines += [next(line for line in found if part in line) for part in ("launch.sft", "decode.py:toy")]
    env = dict(os.environ) | {"PYTHONPATH": str(ROOT)}  # keeps the flags that compile quickly
    log = io.BytesIO()
    outcomes = run_all(lines, tmp_path, env, log)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], log.getvalue().decode()
    assert b"then name the ends" in log.getvalue()
    assert (tmp_path / "runs/toy/model/config.json").is_file()


SCRIPTS = {
    line
    for page in (commands(README), commands(README, SHORT))
    for line in page
    if line.startswith("python -m launch.")
}


@pytest.mark.parametrize("line", sorted(SCRIPTS))
def test_a_command_of_readme_is_accepted_by_its_script(line):
    """Its flags, its config's variant and keys exist: --help is printed after all of them are read."""
    _, *arguments = shlex.split(line.replace("$'", "'"))
    command = [sys.executable, *arguments, "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
