"""The code is laid out as docs/DESIGN.md states: its layout is current, files are short, imports go down only."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from tests import layout

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "pasta_jax").rglob("*.py"))
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "launch").glob("[!_]*.py"))
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("pasta_jax", "configs", "launch", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sh", ".html")
)
MOST_LINES, MOST_LINES_OF_A_SCRIPT = 350, 100
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
# What each layer may import from pasta_jax besides itself. Modules outside the packages are layers too.
BASE = {"errors", "remote", "assets", "files", "fingerprints", "progress", "settings", "outside", "ranges"}
BELOW = {
    "errors": set(),
    "assets": {"errors", "files"},
    "remote": {"errors"},
    "files": {"errors", "remote"},
    "fingerprints": set(),
    "progress": set(),
    "outside": {"errors"},
    "ranges": set(),
    "settings": {"errors", "outside"},
    "answer_cache": {"errors", "files", "hosts", "outside", "ranges"},
    "llm": BASE | {"answer_cache", "hosts"},
    "command_help": set(),
    "console": set(),
    "malloc": set(),
    "command_line": {"errors"},
    "command_end": {"errors", "files"},
    "memory": {"errors"},
    "chips": set(),
    "compiled": {"errors", "assets", "progress"},
    "devices": {"errors"},
    "hosts": {"errors", "progress", "devices"},
    "workdir": {"errors", "files", "remote"},
    "sharding": {"errors", "ranges"},
    "checkpoint": {"errors", "files", "outside", "ranges", "remote", "sharding"},
    "metrics": {"errors", "files", "outside", "progress", "ranges"},
    "lang": BASE,
    "models": BASE | {"lang", "sharding"},
    "decode": BASE | {"lang", "models", "sharding", "compiled", "memory"},
    "view": BASE | {"lang", "decode"},
    "serve": BASE | {"lang", "models", "decode", "view"},
    "api": BASE | {"lang", "models", "decode", "view"},
    "harness": BASE | {"lang", "models", "decode", "api"},
    "data": BASE | {"lang", "models"},
    "annotate": BASE | {"lang", "models", "data", "view", "llm", "answer_cache", "hosts"},
    "train": BASE | {"lang", "models", "data", "sharding", "checkpoint", "metrics", "chips", "hosts"},
    "judges": BASE | {"lang", "models", "data", "llm", "answer_cache"},
    "rivals": BASE | {"lang", "models", "data", "decode", "sharding", "compiled"},
    "evaluate": BASE | {"lang", "models", "data", "decode", "annotate", "judges", "rivals"},
    "benchmark": BASE | {"lang", "models", "data", "decode", "train", "evaluate", "sharding", "chips", "malloc"},
    "pipelines": BASE
    | {"lang", "models", "data", "decode", "annotate", "train", "judges", "evaluate", "benchmark", "view", "api"}
    | {"rivals", "serve", "llm", "answer_cache", "sharding", "checkpoint", "metrics", "workdir", "compiled", "memory"}
    | {"chips", "hosts"},
}


def imported(path: str, in_functions: bool = False) -> set[str]:
    """The dotted names that a file imports, or those that it imports only when a function runs."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = set()
    for node in (node for root in (functions if in_functions else [tree]) for node in ast.walk(root)):
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


def test_no_module_imports_itself_through_others():
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in MODULES}
    graph = {
        name: {whole if whole in names else whole.rpartition(".")[0] for whole in imported(path)}
        & names.keys() - {name}
        for name, path in names.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_functions_import_optional_and_slow_packages_only():
    late = {path: imported(path, in_functions=True) for path in MODULES}
    assert not {path: names for path, names in late.items() if any(name.startswith("pasta_jax") for name in names)}


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_is_thin(path):
    """It imports no other script but cli.py, and in its functions only what loads JAX, which --help does not need."""
    lines = (ROOT / path).read_text().splitlines()
    assert len(lines) <= MOST_LINES_OF_A_SCRIPT
    assert {name for name in imported(path) if name.startswith("launch")} <= {"launch.cli"}
    assert "typing.Any" not in imported(path)
    late = imported(path, in_functions=True)
    assert all(re.match(r"jax$|pasta_jax\.(pipelines|train\.fit)\.", name) for name in late)


def test_pipelines_scripts_and_the_api_are_fully_typed():
    untyped = []
    for path in [path for path in (*MODULES, *SCRIPTS) if re.match(r"launch/|pasta_jax/(pipelines/|api\.py)", path)]:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                typed = all(argument.annotation or argument.arg == "self" for argument in arguments)
                if not typed or (node.returns is None and not node.name.startswith("__")):
                    untyped.append(f"{path}:{node.lineno}")
    assert untyped == []


def test_files_are_short():
    lines = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}, (
        "split it by idea (CONTRIBUTING.md)"
    )


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
