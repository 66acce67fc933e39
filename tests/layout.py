"""Write the layout in docs/DESIGN.md from the first line of each file: python -m tests.layout."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/DESIGN.md"
FOLDERS = {  # in reading order; files in the order of ORDER, then by name
    "pasta_jax": "",
    "configs": "one file per kind of run, chosen as `file.py:variant`",
    "launch": "command-line entry points",
    "tests": "test_<module>.py; conftest.py makes the session strict; other files are helpers",
    "docs": "",
}
LAYERS = (
    "lang", "models", "decode", "view", "data", "annotate", "train", "judges", "rivals", "evaluate", "benchmark",
    "serve", "pipelines",
)  # fmt: skip
DOCUMENTED = (".py", ".sh", ".md", ".html", ".jsonl", ".cc", ".h")
UNDESCRIBED = {  # files that cannot describe themselves
    "pasta_jax/view/page.html": "Template of the page: its frame, style and script",
    "pasta_jax/serve/chat.html": "The page at /: a chat whose answers show their threads, a timeline and seconds",
    "pasta_jax/benchmark/programs.jsonl": "43 programs to replay, of parallelism 1.0 to 4.0",
    "pasta_jax/data/no_fork.jsonl": "100 prompts of our own whose answers gain nothing from forks",
    "docs/LANG.md": "tutorial of the language; its examples are tests",
    "docs/EVALUATION.md": "systems, prompts, clocks, files and other tools of an evaluation",
    "docs/DATA.md": "data sources, annotators, verification, fields of records",
    "docs/PYTHON.md": "the Python API, with examples that are tests",
    "docs/SERVING.md": "the server: its API, limits, safety; the chat on a terminal",
    "docs/TPU.md": "running on TPUs, and compiling for them without one",
    "docs/TRACE.md": "format of trace files",
    "docs/DESIGN.md": "this page",
    "docs/RESULTS.md": "figures, each with its command, machine and seed",
    "docs/LOG.md": "experiments by date, including failures",
}


def first_line(path: Path) -> str:
    """The first line of a file's docstring or leading comment."""
    name = path.relative_to(ROOT).as_posix()
    if name in UNDESCRIBED:
        return UNDESCRIBED[name]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        description = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    elif path.suffix in (".cc", ".h"):
        description = text.splitlines()[0].removeprefix("// ")
    else:
        description = next((line[1:].strip() for line in text.splitlines() if re.match(r"# |<!--", line)), "")
    if not description:
        raise SystemExit(f"{name}: start it with a line that describes it, or add it to UNDESCRIBED in {__file__}")
    return description.rstrip(".")


def documented_files(folder: Path) -> list[Path]:
    """The files of a folder that belong in the layout: no pictures, no empty package markers."""
    return sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix in DOCUMENTED and path.stem != "__init__"
    )


def rows() -> list[tuple[int, str, str]]:
    """(indent, name, description)"""
    out = []
    for folder, what in FOLDERS.items():
        out.append((0, f"{folder}/", what))
        if folder == "tests":
            continue
        out += [(1, path.name, first_line(path)) for path in documented_files(ROOT / folder)]
        for layer in LAYERS if folder == "pasta_jax" else ():
            out.append((1, f"{layer}/", ""))
            for path in documented_files(ROOT / folder / layer):
                out.append((2, path.name, first_line(path)))
            for package in sorted(
                path for path in (ROOT / folder / layer).iterdir() if (path / "__init__.py").exists()
            ):
                out.append((2, f"{package.name}/", ""))
                out += [(3, path.name, first_line(path)) for path in documented_files(package)]
    return out


def layout() -> str:
    """The block of text that docs/DESIGN.md holds."""
    lines = []
    for indent, name, what in rows():
        left = "  " * indent + name
        lines.append(f"{left:<26} {what}".rstrip())
    return "\n".join(lines) + "\n"


def with_layout(page: str) -> str:
    """The page with its layout regenerated."""
    return re.sub(r"(## Layout\n\n```\n).*?(```)", lambda match: match[1] + layout() + match[2], page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_layout(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the layout of {PAGE.relative_to(ROOT)}", file=sys.stderr)
