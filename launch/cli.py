"""What the launch scripts share: config flags, --help, one-line errors with their exit code, the name of the device."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from pasta_jax.command import console
from pasta_jax.command import errors as command_end
from pasta_jax.command import help as command_help
from pasta_jax.command.flags import parse, readable
from pasta_jax.device import compilation_cache, platform
from pasta_jax.device.malloc import restart_on_large_pages
from pasta_jax.errors import PastaError
from pasta_jax.progress import break_silence, say
from pasta_jax.runs import processes

ROOT = Path(__file__).parents[1]
HELP = {"--help", "-help", "-h", "--helpshort"}
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "file.py:variant; set its keys with --config.key=value", lock_config=True
)


def run(
    main: Callable[..., None],
    default_config: str,
    argument: str = "",
    keep_programs: bool = True,
    large_pages: bool = False,
) -> None:
    """Parse the command line and call main(config), or main(config, word) for a script that takes an `argument`.

    Every error ends in one line on stderr (command/errors.py); a user's mistake exits with 2. `large_pages` are
    for scripts that allocate much memory on the CPU (device/malloc.py).
    """

    def parse_flags(arguments: list[str]) -> list[str]:
        words = [word for word in arguments if word not in HELP]
        has_config = any(word.lstrip("-").partition("=")[0] == "config" for word in words)
        # Passed as an argument: the flag's own default would be read outside our error handling.
        rest = parse(flags.FLAGS, words if has_config else [words[0], f"--config={ROOT / default_config}", *words[1:]])
        if len(words) < len(arguments):
            _print_help(words[0], argument)
        return rest

    def start(arguments: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # JAX logs every backend that it did not find
        words, expected = arguments[1:], int(bool(argument))
        if len(words) > expected:
            raise PastaError(f"{words[expected]!r}: unexpected argument; write flags as --name=value (see --help)")
        if len(words) < expected:
            raise PastaError(f"missing argument: {argument}")
        if large_pages:
            restart_on_large_pages()
        if keep_programs:
            compilation_cache.keep()  # before main imports JAX
        platform.choose()
        together = processes.joined(Path(arguments[0]).stem) if keep_programs else contextlib.nullcontext()
        with break_silence(f"{Path(arguments[0]).stem}: working"), together:
            main(readable(CONFIG.value), *words)

    command_end.explain(lambda: app.run(start, flags_parser=parse_flags))


def _print_help(script: str, argument: str) -> None:
    """Print what the script does, its flags, and the variants and keys of the chosen config; exit with code 0."""
    config_flag, summary = flags.FLAGS["config"], sys.modules["__main__"].__doc__ or ""
    options = [*flags.FLAGS.get_key_flags_for_module(script), config_flag, *processes.flags_of(Path(script).stem)]
    usage = f"python -m launch.{Path(script).stem} {argument and f'<{argument}> '}[--flag=value …]"
    file, config = config_flag.config_filename, readable(CONFIG.value)
    print(console.as_typed(command_help.text(usage, summary, options, file, config)), flush=True)
    sys.exit(0)


def announce_device() -> None:
    """Print the device on stderr before anything else: a silent fall-back to the CPU is a common surprise."""
    compilation_cache.announce()
    say(f"device: {platform.describe()}")
