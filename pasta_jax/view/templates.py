"""Pages from jinja2 templates: every text that they insert is made printable and escaped, unless it is Markup."""

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from pasta_jax.view.text import markup, printable


def plain(text: str) -> Markup:
    """A line in which Markdown sees no element, no cell, no link and no image."""
    return Markup(markup(text).replace("|", "&#124;").replace("[", "&#91;"))


_ENVIRONMENT = Environment(
    autoescape=True,
    finalize=lambda value: printable(value) if type(value) is str else value,
    keep_trailing_newline=True,
    lstrip_blocks=True,
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters["plain"] = plain


def render(template: Path, **values: Any) -> str:
    """Fill in a template file."""
    return _compiled(template).render(values)


@functools.cache
def _compiled(template: Path) -> Template:
    return _ENVIRONMENT.from_string(template.read_text(encoding="utf-8"))
