"""The base class of all errors that users can cause: one line that states the place, the problem and the fix."""

import re
import sys
import traceback

_LONGEST = 1000  # characters of a message; a value that it quotes may be of any length
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class PastaError(Exception):
    """Invalid input of any kind. Launch scripts print it as one line and exit with `exit_code`."""

    exit_code = 2  # a subclass that is no mistake of the user's has another

    def __str__(self) -> str:
        return one_line(super().__str__())


def brief(error: Exception) -> str:
    """Another library's error on one short line, to be quoted as a reason."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def one_line(text: str) -> str:
    """A message as one printable line: paths and quoted values may hold line breaks, escapes, and be very long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def place_of(error: BaseException) -> str:
    """File and line where an exception was raised; its message may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__ or sys.exc_info()[2])
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
