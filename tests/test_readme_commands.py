"""README's commands: read out of the page, and run in one shell."""

import io
import os

import pytest

from tests import ROOT
from tests.readme_commands import PAGES, PLACEHOLDERS, SHORT, commands, fresh_environment, run_all

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
    slow = "sleep 0.1; echo a; sleep 0.05; echo b; sleep 0.4"
    outcomes = run_all([*commands(PAGE), "cat", slow, "(exit 3)", "echo never"], tmp_path, os.environ, log)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0, 3]
    assert 0.05 < outcomes[3].first <= outcomes[3].pause < outcomes[3].seconds
    assert outcomes[3].pause > 0.3  # from b to the end
    assert b"hello world" in log.getvalue()
    assert b"never" not in log.getvalue()
    assert "   3 " in capsys.readouterr().out


@pytest.mark.parametrize(("command", "limit"), [("sleep 60", 0.2), ("exit 0", 60)])
def test_a_command_that_takes_too_long_or_ends_the_shell_fails(command, limit, tmp_path):
    (outcome,) = run_all([command, "echo never"], tmp_path, os.environ, io.BytesIO(), limit)
    assert outcome.code


def test_a_fresh_shell_knows_nothing_of_this_one():
    variables = {"PATH": "/clone/.venv/bin:/bin", "HOME": "/home", "JAX_PLATFORMS": "cpu", "VIRTUAL_ENV": "/clone"}
    assert fresh_environment(variables) == {"PATH": "/bin", "HOME": "/home"}


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
    env = os.environ | {"PYTHONPATH": str(ROOT)}  # keeps the flags that compile quickly
    log = io.BytesIO()
    outcomes = run_all(lines, tmp_path, env, log)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], log.getvalue().decode()
    assert b"then name the ends" in log.getvalue()
    assert (tmp_path / "runs/toy/model/config.json").is_file()
