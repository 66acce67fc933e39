"""The error of the language: where, which rule, and how to fix it, in one line."""

from pasta_jax.errors import PastaError


class LangError(PastaError):
    """A violated rule. `rule` is one fixed sentence a kind, so refusals can be counted by it; `fix` tells the case.

    `line` and `column` count from 1. An error in a sequence of ids names the offending id by `index`, which counts
    from 0 as Python does; such an error stands on line 1, column index + 1.
    """

    def __init__(self, rule: str, fix: str, line: int = 1, column: int = 1, index: int | None = None):
        if index is not None:
            line, column = 1, index + 1
        super().__init__(rule, fix, line, column, index)
        self.rule, self.fix, self.line, self.column, self.index = rule, fix, line, column, index

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}" if self.index is None else f"id {self.index}"
        return f"{place}: {self.rule}; {self.fix}"


def quoted(text: str, width: int = 40) -> str:
    """A piece of somebody's text, made safe for a one-line message."""
    return ascii(text if len(text) <= width else text[: width - 3] + "...")
