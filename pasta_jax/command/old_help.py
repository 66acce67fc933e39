"""The text of --help: what a command does, its flags, its config's variants, and the config's keys with their comments.

Values come from the loaded config; comments and docstrings from the source of its file and of the files it imports.
"""

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

Key = tuple[str, ...]  # of the config, outermost name first
WIDTH = 110
LEFT = 34  # columns of flags, variants and keys; their explanation follows


def text(usage: str, summary: str, options: Iterable[flags.Flag], config_name: str, config: ConfigDict) -> str:
    """All of it. `config` is what `config_name`, file.py:variant, returns."""
    path = Path(config_name.partition(":")[0])
    source = _Source(path)
    comments = source.comments()
    name = f"configs/{path.name}" if path.parent.name == "configs" else str(path)
    keys = [_row(key if value == "" else f"{key}={value}", comment) for key, value, comment in _keys(config, comments)]
    parts = [
        f"usage: {usage}",
        summary.strip(),
        f"From {name}:\n\n" + textwrap.indent(source.docstring(), "  "),
        "flags:\n" + "\n".join(_row(_signature(flag), _explanation(flag)) for flag in options),
        f"variants (--config={name}:VARIANT):\n" + "\n".join(_row(*variant) for variant in source.variants()),
        "keys (--config.KEY=VALUE, in quotes if VALUE has brackets or blanks), with this variant's values:\n"
        + "\n".join(keys),
    ]
    return "\n\n".join(parts)


def _row(left: str, right: str) -> str:
    """Two columns; the right one is wrapped, and starts on the next line if the left one is too long."""
    first = f"  {left}".ljust(LEFT)
    if not right:
        return first.rstrip()
    if not first.endswith(" "):
        return f"{first}\n" + textwrap.fill(right, WIDTH, initial_indent=" " * LEFT, subsequent_indent=" " * LEFT)
    return textwrap.fill(right, WIDTH, initial_indent=first, subsequent_indent=" " * LEFT)


def _signature(flag: flags.Flag) -> str:
    """A flag as it is typed."""
    if flag.boolean:
        return f"--[no]{flag.name}"
    if isinstance(flag, flags.EnumFlag):
        return f"--{flag.name}={'|'.join(flag.parser.enum_values)}"
    word = "N" if flag.flag_type() == "int" else flag.name.split("_")[-1].upper()
    return f"--{flag.name}={word}"


def _explanation(flag: flags.Flag) -> str:
    """A flag's help and its default, unless it is off or empty."""
    explanation = str(flag.help).rpartition(">: ")[2]  # without the choices, which absl puts before
    has_default = flag.default not in (None, False, "") and flag.name != "config"
    return f"{explanation} [{flag.default}]" if has_default else explanation


def _keys(config: ConfigDict, comments: dict[Key, str], prefix: Key = ()) -> Iterator[tuple[str, object, str]]:
    """(dotted key, value, comment) of every key; a section with a comment is a row without a value."""
    for name, value in config.items():
        key = (*prefix, name)
        # A config inside another one, as the sweep's base, has its comments under the inner key.
        comment = next((comments[key[start:]] for start in range(len(key)) if key[start:] in comments), "")
        if isinstance(value, ConfigDict):
            if comment:
                yield ".".join(key) + ".*", "", comment
            yield from _keys(value, comments, key)
        else:
            yield ".".join(key), "''" if value == "" else value, comment


class _Source:
    """A config file as it is written."""

    def __init__(self, path: Path):
        code = path.read_text(encoding="utf-8")
        self.tree = ast.parse(code)
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        self.trailing: dict[int, str] = {}  # comments by line
        self.above: dict[int, str] = {}  # comments on lines of their own, by the line that follows
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                line, words = token.start[0], token.string.lstrip("# ")
                if token.line[: token.start[1]].strip():
                    self.trailing[line] = words
                else:
                    self.above[line + 1] = f"{self.above.pop(line, '')} {words}".strip()
        imports = [node for node in self.tree.body if isinstance(node, ast.ImportFrom) and node.module == "configs"]
        names = [alias.name for node in imports for alias in node.names]
        self.imports = {name: _Source(path.with_name(f"{name}.py")) for name in names}

    def docstring(self) -> str:
        """What the file says about itself."""
        return ast.get_docstring(self.tree) or ""

    def variants(self) -> list[tuple[str, str]]:
        """Names, each with the comment on its line or the first line of its function's docstring."""
        nodes = ast.walk(self.functions["get_config"]) if "get_config" in self.functions else ()
        return [
            (name, (node.lineno != node.end_lineno and self.trailing.get(key.lineno)) or self._docstring_of(value))
            for node in nodes
            if isinstance(node, ast.Dict)
            for name, key, value in _entries(node)
        ]

    def _docstring_of(self, value: ast.expr) -> str:
        """The first line of the docstring of a function that is named, or called by a lambda."""
        node = value.body if isinstance(value, ast.Lambda) else value
        node = node.func if isinstance(node, ast.Call) else node
        function = self.functions.get(node.id) if isinstance(node, ast.Name) else None
        return (ast.get_docstring(function) or "").partition("\n")[0] if function else ""

    def comments(self) -> dict[Key, str]:
        """The comment on each key, empty where it has none; first of this file, then of configs that it imports."""
        comments: dict[Key, str] = {}
        variants = {name for name, _ in self.variants()}
        for name in sorted(self.functions, key=lambda name: name in variants):  # what variants share comes first
            if name != "get_config":
                self._visit_function(name, (), comments, ())
        for imported in self.imports.values():
            if "get_config" in imported.functions:
                comments = imported.comments() | comments
        return comments

    def _visit_function(self, name: str, prefix: Key, comments: dict[Key, str], visiting: tuple[str, ...]) -> None:
        """Collect from what a function returns and from its assignments; those of variants explain new keys only."""
        if name not in self.functions or name in visiting:
            return
        is_variant = any(name == variant for variant, _ in self.variants())
        for node in ast.walk(self.functions[name]):
            if isinstance(node, ast.Return) and node.value:
                self._visit(node.value, prefix, comments, (*visiting, name))
            elif isinstance(node, ast.Assign):
                key = (*prefix, *_attributes(node.targets[0]))
                comment = self.trailing.get(node.end_lineno or 0, "") if key != prefix else ""
                if key not in comments:
                    comments[key] = comment
                elif not is_variant and comment not in comments[key]:
                    comments[key] = f"{comments[key]}; {comment}".strip("; ")
                self._visit(node.value, key, comments, (*visiting, name))

    def _visit(self, node: ast.expr, prefix: Key, comments: dict[Key, str], visiting: tuple[str, ...]) -> None:
        """Collect from a dict, a ConfigDict, or a call of a function here or in an imported file."""
        match node:
            case ast.Dict():
                for name, key, value in _entries(node):
                    comments.setdefault((*prefix, name), self._comment(key, value, node))
                    self._visit(value, (*prefix, name), comments, visiting)
            case ast.Call(func=ast.Name(id="ConfigDict"), args=[argument]):
                self._visit(argument, prefix, comments, visiting)
            case ast.Call(func=ast.Name(id=name)):
                self._visit_function(name, prefix, comments, visiting)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in self.imports:
                self.imports[module]._visit_function(name, prefix, comments, ())

    def _comment(self, key: ast.expr, value: ast.expr, section: ast.Dict) -> str:
        """The comments above an entry and at its end. Those of a section written on one line belong to the section."""
        if section.lineno == section.end_lineno:
            return ""
        trailing = self.trailing.get(value.end_lineno or 0) or self.trailing.get(key.lineno, "")
        return f"{self.above.get(key.lineno, '')} {trailing}".strip()


def _entries(node: ast.Dict) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(name, key, value) of the entries whose key is written out."""
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, key, value


def _attributes(target: ast.expr) -> Key:
    """("request", "seed") for the target config.request.seed; empty for a plain name."""
    return (*_attributes(target.value), target.attr) if isinstance(target, ast.Attribute) else ()
