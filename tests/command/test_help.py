"""--help: every flag, every variant, and every setting with its comment, without importing JAX."""

import ast
import dataclasses
import functools
import json
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

from pasta_jax.command import configs
from pasta_jax.command import help as command_help
from tests import ROOT
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


# Prints [exit code, --help, errors, slow imports] of each command, from a fork of a process with parsers and configs.
CODE_OF_PAGES = """
import contextlib, importlib, io, json, os, pathlib, runpy, sys
import launch.cli

for path in pathlib.Path("configs").glob("[!_]*.py"):
    importlib.import_module(f"configs.{path.stem}")
commands, launch.cli.command_help.text = json.load(sys.stdin), TEXT

def page(script, *words):
    sys.argv, out, err, code = [script, *words, "--help"], io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(f"launch.{script}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue(), sorted({"jax", "openai", "nltk"} & sys.modules.keys())

pages = []
for command in commands:
    reading, writing = os.pipe()
    if not os.fork():
        with os.fdopen(writing, "w") as file:
            json.dump(page(*command), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        pages.append(json.load(file))
print(json.dumps(pages))
"""


class Page(NamedTuple):
    """What a script printed with --help added to a command, after its flags, its config and all keys have been read."""

    code: int | None
    text: str
    errors: str
    slow_imports: list[str]


def pages(commands: list[list[str]], empty: bool = False) -> list[Page]:
    """The page of each command, a script's name and its words; `empty` pages take less time."""
    code = CODE_OF_PAGES.replace("TEXT", "lambda *_: ''" if empty else "launch.cli.command_help.text")
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, input=json.dumps(commands), capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    return [Page(*page) for page in json.loads(result.stdout)]


def commands_in(text: str) -> list[list[str]]:
    """The commands of launch scripts in a text, each a script's name and its words."""
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    found = [re.search(r"python -m launch\.(.+)", line) for line in lines if not line.startswith(("#", "|"))]
    words = [shlex.split(one[1].replace("$'", "'"), comments=True) for one in found if one and "`" not in one[0]]
    return [line[: next((n for n, word in enumerate(line) if word[:1] in ">|&"), None)] for line in words]


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
