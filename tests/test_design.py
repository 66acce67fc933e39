"""The code is laid out as docs/DESIGN.md says: its layout is current, imports go down only, no package cycle."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from tests import layout

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "pasta_jax").rglob("*.py"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
# What each layer may import of ours, itself apart. Modules beside the packages are layers of their own.
BASE = {"errors", "assets", "files", "fingerprints", "progress", "settings"}
BELOW = {
    "errors": set(),
    "assets": {"errors", "files"},
    "files": {"errors"},
    "fingerprints": set(),
    "progress": set(),
    "settings": {"errors"},
    "llm": BASE,
    "sharding": {"errors"},
    "checkpoint": {"errors", "files", "sharding"},
    "metrics": {"errors", "files", "progress"},
    "lang": BASE,
    "models": BASE | {"lang", "sharding"},
    "decode": BASE | {"lang", "models", "sharding"},
    "view": BASE | {"lang", "decode"},
    "api": BASE | {"lang", "models", "decode", "view"},
    "data": BASE | {"lang", "models"},
    "annotate": BASE | {"lang", "models", "data", "view", "llm"},
    "train": BASE | {"lang", "models", "data", "sharding", "checkpoint", "metrics"},
    "judges": BASE | {"lang", "models", "data", "llm"},
    "evaluate": BASE | {"lang", "models", "data", "decode", "annotate", "judges"},
    "benchmark": BASE | {"lang", "models", "data", "decode", "train", "evaluate", "sharding"},
    "pipelines": BASE
    | {"lang", "models", "data", "decode", "annotate", "train", "judges", "evaluate", "benchmark", "view", "api"}
    | {"llm", "sharding", "checkpoint", "metrics"},
}


def imported(path: str) -> set[str]:
    """The dotted names that a file imports."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_the_layers_have_no_cycle():
    graphlib.TopologicalSorter(BELOW).prepare()


def test_the_layout_is_current():
    page = layout.PAGE.read_text()
    assert layout.with_layout(page) == page, "run: python -m tests.layout"


@pytest.mark.parametrize("path", [path for path in MODULES if path.count("/") > 1 or path != "pasta_jax/__init__.py"])
def test_imports_go_down_only(path):
    layer = path.removesuffix(".py").split("/")[1]
    names = imported(path)
    ours = {name.split(".")[1] for name in names if name.startswith("pasta_jax.")}
    assert ours <= BELOW[layer] | {layer}, f"{path}: see 'Imports go down only' in docs/DESIGN.md"
    assert not any(name.split(".")[0] in ("configs", "launch", "tests") for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
