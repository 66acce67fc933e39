"""Files are short, and imports stand at the top. pyproject.toml states who may import whom."""

import ast

import pytest

from tests import ROOT

SOURCES = [
    path
    for folder in ("pasta_jax", "configs", "launch", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sh", ".html")
]


def named(paths) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


@pytest.mark.parametrize(("folder", "most"), [("launch", 100), ("", 350)])
def test_files_are_short(folder, most):
    """Split a longer one by idea (CONTRIBUTING.md)."""
    found = [path for path in SOURCES if path.is_relative_to(ROOT / folder) and (path.suffix == ".py" or not folder)]
    assert named(path for path in found if len(path.read_text("utf-8").splitlines()) > most) == []


def imports(path, *inside: type) -> set[str]:
    """What nodes of some kinds import: modules, and names of modules."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, inside)]
    found = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom)]
    return {
        f"{one.module}.{alias.name}" if isinstance(one, ast.ImportFrom) else alias.name
        for one in found
        for alias in one.names
    }


def test_functions_import_optional_and_slow_packages_only_and_scripts_no_other_script():
    late = [path for path in SOURCES if path.suffix == ".py" and path.is_relative_to(ROOT / "pasta_jax")]
    functions = {path: imports(path, ast.FunctionDef, ast.AsyncFunctionDef) for path in late}
    assert named(path for path in late if any("pasta_jax" in one for one in functions[path])) == []
    scripts = {path: imports(path, ast.Module) for path in (ROOT / "launch").glob("*.py")}
    others = {path: {one for one in scripts[path] if one.split(".")[0] == "launch"} for path in scripts}
    assert {path.stem: found for path, found in others.items() if found - {"launch.cli"}} == {}
