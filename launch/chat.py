"""Chat with a model on a terminal: Ctrl-C stops an answer, /help lists the commands. See configs/decode.py."""

import contextlib
import sys

from launch import cli
from pasta_jax.answer.settings import DecodeSettings

with contextlib.suppress(ImportError):  # where Python has it, input() gets line editing and a history of lines
    import readline  # noqa: F401


def main(settings: DecodeSettings) -> None:
    """Load the model and converse."""
    cli.announce_device()

    from pasta_jax.answer import chat  # imports JAX: after the flags, so that --help starts quickly

    sys.stdin.reconfigure(errors="surrogateescape")  # so that a byte that is not UTF-8 spoils no line but its own
    chat.run(settings, input if sys.stdin.isatty() else lambda _: input())


if __name__ == "__main__":
    cli.run(main, default_config="configs/decode.py")
