"""--help: every flag, every variant, and every key with its comment, read from the config file as it is written."""

import ast
import re
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from pasta_jax.command import help as command_help
from tests import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "launch").glob("[!_]*.py") if path.stem != "cli")

CONFIG = '''
"""Boil an egg.

    python -m launch.egg
"""
from configs import shared

def get_config(variant="soft"):
    """The config of a variant."""
    return shared.pick({
        "soft": lambda: egg(4),  # four minutes
        "hard": hard,
    }, variant)

def egg(minutes):
    """Any egg."""
    config = ConfigDict({
        "minutes": minutes,  # in boiling water
        "pan": shared.pan("steel"),
        # How it is served.
        # Several lines.
        "plate": {"salt": 1, "cup": ""},  # salt: grains
        "plain": 3,
    })
    config.pan.lid = None  # None: as the pan has one
    return config

def hard():
    """A hard egg.

    More about it.
    """
    config = egg(9)
    config.minutes = 9  # of this variant only
    config.knife = ConfigDict({"length": (2, 3)})  # to cut it
    return config
'''
SHARED = '''
"""Shared."""

def pan(metal):
    return ConfigDict({
        "metal": metal,  # which metal
        "lid": False,  # True: closed
    })
'''


@pytest.fixture
def page(tmp_path) -> str:
    (tmp_path / "egg.py").write_text(CONFIG)
    (tmp_path / "shared.py").write_text(SHARED)
    config = ConfigDict(
        {
            "minutes": 9,
            "pan": {"metal": "steel", "lid": None},
            "plate": {"salt": 1, "cup": ""},
            "plain": 3,
            "knife": {"length": (2, 3)},
        }
    )
    return command_help.text("egg [--flag=value]", "Boil.", [], f"{tmp_path}/egg.py:hard", config)


def test_variants_are_explained_by_the_comment_on_their_line_or_by_their_docstring(page):
    assert explained(page, "soft") == "four minutes"
    assert explained(page, "hard") == "A hard egg."


@pytest.mark.parametrize(
    ("key", "comment"),
    [
        ("minutes=9", "in boiling water"),
        ("pan.metal=steel", "which metal"),
        ("pan.lid=None", "True: closed; None: as the pan has one"),
        ("plate.*", "How it is served. Several lines. salt: grains"),
        ("plate.salt=1", ""),
        ("plate.cup=''", ""),
        ("plain=3", ""),
        ("knife.*", "to cut it"),
        ("knife.length=(2, 3)", ""),
    ],
)
def test_keys_have_their_values_and_comments(page, key, comment):
    assert explained(page, key) == comment


def explained(page: str, left: str) -> str:
    """What the page writes to the right of a word."""
    (line,) = (line for line in page.splitlines() if f"{line}  ".startswith(f"  {left}  "))
    return line.removeprefix(f"  {left}").strip()


def test_the_page_begins_with_the_usage_and_quotes_the_config_file(page):
    assert page.startswith("usage: egg [--flag=value]\n\nBoil.\n")
    assert "  Boil an egg.\n\n  python -m launch.egg\n" in page


def test_long_explanations_are_wrapped_below_their_beginning(tmp_path):
    (tmp_path / "egg.py").write_text(
        'def get_config():\n    return {\n        "a": 1,  # ' + "word " * 40 + "\n    }\n"
    )
    text = command_help.text("egg", "", [], f"{tmp_path}/egg.py", ConfigDict({"a": 1}))
    lines = text.splitlines()[-3:]
    assert all(len(line) <= command_help.WIDTH for line in lines)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_explains_every_flag_variant_and_key_of_a_script(script, tmp_path):
    code = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); sys.argv[1:] = ['--help']\n"
    code += "try:\n    runpy.run_module('launch." + script + "', run_name='__main__', alter_sys=True)\n"
    code += "finally:\n    assert 'jax' not in sys.modules, 'JAX was imported'"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    tree = ast.parse((ROOT / f"launch/{script}.py").read_text())
    listed = result.stdout.partition("\nflags:")[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_"):
            name = ast.literal_eval(node.args[0])
            (start,) = re.findall(rf"^  --(?:\[no\])?{name}\b[^ ]*", listed, flags=re.MULTILINE)
            explanation = re.split(r"\n(?:\n|  -)", listed.partition(f"\n{start}")[2])[0]
            example = f"--{name}" if "[no]" in start else f"--{name}="
            assert example in explanation, f"explain --{name} with an example"
    assert "  --config=CONFIG" in result.stdout
    variants = result.stdout.partition("\nvariants ")[2].partition("\n\nkeys ")[0].splitlines()[1:]
    assert variants
    assert all(line[command_help.LEFT :].strip() for line in variants), "explain each variant"
    assert result.stdout.partition("\nkeys ")[2].count("=") > 1


def test_help_shows_the_values_of_the_chosen_variant():
    command = [sys.executable, "-m", "launch.sft", "--config=configs/sft.py:tiny", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "  train.steps=12 " in result.stdout


def test_help_with_an_unknown_variant_is_refused_in_one_line():
    command = [sys.executable, "-m", "launch.sft", "--config=configs/sft.py:huge", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: --config=configs/sft.py:huge: unknown variant")
