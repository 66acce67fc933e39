"""What the launch scripts share: config flags, one-line errors with exit code 2, the line that says where it runs."""

import os
import sys
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from pasta_jax.errors import PastaError

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "file.py:variant; its keys: --config.key=value", lock_config=True
)


def run(main: Callable, default_config: str, argument: str = "") -> None:
    """Parse the command line and run main(config), or main(config, word) for a script that takes an `argument`.

    Whatever a user got wrong ends in one line and exit code 2.
    """

    def parse_flags(arguments: list[str]) -> list[str]:
        given = any(argument.lstrip("-").partition("=")[0] == "config" for argument in arguments)
        # As an argument and not as the flag's default: a default would be read before our error handling stands.
        return _parse(arguments if given else [arguments[0], f"--config={default_config}", *arguments[1:]])

    def start(arguments: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # JAX reports each backend it did not find as information
        words, wanted = arguments[1:], int(bool(argument))
        if len(words) > wanted:
            raise PastaError(f"{words[wanted]!r}: not a flag; flags are written --name=value (--help lists them)")
        if len(words) < wanted:
            raise PastaError(f"a word is missing: {argument}")
        main(_readable(CONFIG.value), *words)

    try:
        app.run(start, flags_parser=parse_flags)
    except PastaError as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str]) -> list[str]:
    """absl's parser, with its errors and those of config overrides as ours."""
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        raise PastaError(f"{' '.join(str(error).split())} (--help lists the flags)") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PastaError(f"config: {' '.join(str(error).split())}") from None


def _readable(config: ConfigDict) -> ConfigDict:
    """The config, or an error for a file that could not be read (which shows at the first access only)."""
    try:
        config.keys()
    except OSError as error:
        raise PastaError(f"--config: {' '.join(str(error).split())}; give file.py:variant") from None
    return config


def fail(message: str) -> None:
    """One line on stderr and exit code 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def announce_device() -> None:
    """Say first, on stderr, what this runs on: a silent fall-back to the CPU is the commonest surprise."""
    import jax

    devices = jax.devices()
    print(f"device: {len(devices)} x {devices[0].device_kind} ({jax.default_backend()})", file=sys.stderr, flush=True)
