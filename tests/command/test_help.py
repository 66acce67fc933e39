"""--help: every flag, every variant, and every setting with its comment, without importing JAX."""

import ast
import dataclasses
import functools
import re

import pytest

from pasta_jax.command import configs
from pasta_jax.command import help as command_help
from tests import ROOT
from tests.helpers.help_pages import Page, commands_in, pages
from tests.readme_commands import SHORT

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


@pytest.fixture(scope="module")
def page_of() -> dict[str, Page]:
    return dict(zip(SCRIPTS, pages([[script] for script in SCRIPTS]), strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_explains_every_flag_variant_and_key_of_a_script_without_slow_imports(script, page_of):
    code, page, errors, slow = page_of[script]
    assert (code, errors) == (0, "")
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


def test_the_commands_of_docstrings_and_documents_are_accepted_by_their_scripts():
    """Their flags, configs, variants and keys exist."""
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in (ROOT / "configs").glob("*.py")}
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        texts[path] = "".join(re.findall(r"^```\w*\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE))
    texts["short forms"] = functools.reduce(lambda text, part: text.replace(*part), SHORT, texts[ROOT / "README.md"])
    commands = [(path, command) for path, text in texts.items() for command in commands_in(text)]
    assert len(commands) > 100
    seen = pages([command for _, command in commands], empty=True)
    refused = [(*one, page.errors) for one, page in zip(commands, seen, strict=True) if page.code or page.errors]
    assert not refused
