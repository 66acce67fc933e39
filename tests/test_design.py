"""The tree is as docs/DESIGN.md says: every module has its line, every line its file, and imports go down only."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("pasta_jax", "configs", "launch")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__init__.py"
)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
# What each layer may import of ours, itself apart.
BASE = {"errors", "assets"}
BELOW = {
    "errors": set(),
    "assets": {"errors"},
    "lang": BASE,
    "models": BASE | {"lang", "sharding"},
    "decode": BASE | {"lang", "models", "sharding"},
    "data": BASE | {"lang", "models"},
    "train": BASE | {"lang", "models", "data", "sharding", "checkpoint", "metrics"},
    "evaluate": BASE | {"lang", "models", "data", "decode"},
    "sharding": {"errors"},
    "checkpoint": {"errors", "sharding"},
    "events": set(),
    "metrics": {"errors", "events"},
}


def layout() -> list[str]:
    """The paths that the page's layout names."""
    page = (ROOT / "docs/DESIGN.md").read_text()
    folders, paths = [], []
    for line in re.search(r"## Layout\n\n```\n(.*?)```", page, re.DOTALL)[1].splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        folders = [*folders[: len(indent) // 2], name]
        paths.append("".join(folders))
    return paths


def test_every_line_of_the_layout_has_its_file():
    assert [path for path in layout() if not (ROOT / path).exists()] == []


def test_every_module_has_its_line_in_the_layout():
    missing = sorted(set(MODULES) - set(layout()))
    assert missing == [], "write what each is for into the layout of docs/DESIGN.md"


@pytest.mark.parametrize("path", [path for path in MODULES if path.startswith("pasta_jax/")])
def test_imports_go_down_only(path):
    layer = path.removesuffix(".py").split("/")[1]
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    ours = {name.split(".")[1] for name in names if name.startswith("pasta_jax.")}
    assert ours <= BELOW[layer] | {layer}, f"{path}: see 'Imports go down only' in docs/DESIGN.md"
    assert not any(name.split(".")[0] in ("configs", "launch", "tests") for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
