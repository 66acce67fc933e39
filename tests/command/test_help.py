"""--help: every flag, every variant, and every setting with its comment, without importing JAX."""

import ast
import dataclasses
import json
import re
import subprocess
import sys

import pytest

from pasta_jax.command import configs
from pasta_jax.command import help as command_help
from tests import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "launch").glob("[!_]*.py") if path.stem != "cli")


@dataclasses.dataclass(frozen=True)
class Pan:
    """What it boils in."""

    metal: str = "iron"  # which metal
    lid: bool | None = None  # None: as the pan has one


@dataclasses.dataclass(frozen=True)
class Plate:
    salt: int = 1
    cup: str = ""


@dataclasses.dataclass(frozen=True)
class Egg:
    minutes: int = 4  # in boiling water
    pan: Pan = Pan()
    # How it is served.
    # Several lines.
    plate: Plate = Plate()  # salt: grains
    lengths: tuple[int, ...] = (2, 3)  # word word word word word word word word word word word word word word word


CONFIG = '''
"""Boil an egg.

    python -m launch.egg
"""
from tests.command.test_help import Egg, Pan


def soft() -> Egg:
    """Four minutes."""
    return Egg()


def hard() -> Egg:
    """A hard egg.

    More about it.
    """
    return Egg(minutes=_long(), pan=Pan("steel"))


def _long():
    return 9
'''


@pytest.fixture
def page(tmp_path) -> str:
    path = tmp_path / "egg.py"
    path.write_text(CONFIG)
    return command_help.text("egg [--flag=value]", "Boil.", [], *configs.load(f"{path}:hard"))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("soft", "Four minutes."),
        ("hard", "A hard egg."),
        ("minutes=9", "in boiling water"),
        ("pan.*", "What it boils in."),
        ("pan.metal=steel", "which metal"),
        ("pan.lid=None", "None: as the pan has one"),
        ("plate.*", "How it is served. Several lines. salt: grains"),
        ("plate.salt=1", ""),
        ("plate.cup=''", ""),
    ],
)
def test_variants_and_settings_are_explained_by_their_docstrings_and_comments(page, left, right):
    [line] = (line for line in page.splitlines() if f"{line}  ".startswith(f"  {left}  "))
    assert line.removeprefix(f"  {left}").strip() == right


def test_the_page_begins_with_the_usage_quotes_the_config_file_and_wraps_its_lines(page):
    assert page.startswith("usage: egg [--flag=value]\nBoil.\n")
    assert "\n  Boil an egg.\n\n      python -m launch.egg\n" in page
    assert "_long" not in page
    assert all(len(line) <= command_help.WIDTH for line in page.splitlines())


# Prints {script: [page of --help, slow modules it imported]}, each from a fork of a process that knows the parsers.
PAGES = """
import io, json, os, runpy, sys
import launch.cli

def page(script):
    sys.argv, sys.stdout = [script, "--help"], io.StringIO()
    try:
        runpy.run_module(f"launch.{script}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert end.code == 0, end.code
    return sys.stdout.getvalue(), sorted({"jax", "openai", "nltk"} & sys.modules.keys())

pages = {}
for script in sys.argv[1:]:
    reading, writing = os.pipe()
    if not os.fork():
        with os.fdopen(writing, "w") as file:
            json.dump(page(script), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        pages[script] = json.load(file)
print(json.dumps(pages))
"""


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[str, list[str]]]:
    command = [sys.executable, "-c", PAGES, *SCRIPTS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_explains_every_flag_variant_and_key_of_a_script_without_slow_imports(script, pages):
    page, slow = pages[script]
    assert not slow, "import them inside main, after the flags are parsed: --help must start quickly"
    listed = page.partition("\nflags:")[2]
    for node in ast.walk(ast.parse((ROOT / f"launch/{script}.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_"):
            name = ast.literal_eval(node.args[0])
            (start,) = re.findall(rf"^  --(?:\[no\])?{name}\b[^ ]*", listed, flags=re.MULTILINE)
            explanation = re.split(r"\n(?:\n|  -)", listed.partition(f"\n{start}")[2])[0]
            example = f"--{name}" if "[no]" in start else f"--{name}="
            assert example in explanation, f"explain --{name} with an example"
    assert "  --config=CONFIG" in page
    variants = page.partition("\nvariants ")[2].partition("\n\nkeys ")[0].splitlines()[1:]
    assert variants
    assert all(line[command_help.LEFT :].strip() for line in variants), "explain each variant"
    assert page.partition("\nkeys ")[2].count("=") > 1
