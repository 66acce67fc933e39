"""The error of the language, in one line: the place, the violated rule, and the fix."""

from pasta_jax.errors import PastaError, one_line


class LangError(PastaError):
    """A violated rule. `rule` is one constant sentence per kind, so that errors can be counted; `fix` is specific.

    `line` and `column` count from 1. An error in a sequence of ids has the `index` of the offending id, which counts
    from 0; its place is line 1, column index + 1.
    """

    def __init__(self, rule: str, fix: str, line: int = 1, column: int = 1, index: int | None = None):
        if index is not None:
            line, column = 1, index + 1
        super().__init__(rule, fix, line, column, index)
        self.rule, self.fix, self.line, self.column, self.index = rule, fix, line, column, index

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}" if self.index is None else f"id {self.index}"
        return one_line(f"{place}: {self.rule}; {self.fix}")


def quoted(text: str, width: int = 40) -> str:
    """Untrusted text, shortened and escaped for a one-line message."""
    return ascii(text if len(text) <= width else text[: width - 3] + "...")
