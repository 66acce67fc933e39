"""Files are short, scripts are thin, links have targets. pyproject.toml states which room may import which."""

import ast
import re

import pytest

from tests import ROOT

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
    assert all(re.match(r"jax$|pasta_jax\.", name) for name in late)


def test_scripts_and_the_api_are_fully_typed():
    untyped = []
    for path in [path for path in (*MODULES, *SCRIPTS) if re.match(r"launch/|pasta_jax/api\.py", path)]:
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
