"""What the launch scripts share: config flags, --help, one-line errors with their exit code, the name of the device."""

import contextlib
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from absl import app, flags, logging

from pasta_jax.command import configs, console
from pasta_jax.command import errors as command_end
from pasta_jax.command import help as command_help
from pasta_jax.command.flags import config_named, parse
from pasta_jax.device import compilation_cache, platform
from pasta_jax.device.malloc import restart_on_large_pages
from pasta_jax.errors import PastaError
from pasta_jax.progress import break_silence, say
from pasta_jax.runs import processes
from pasta_jax.runs.settings import read

HELP = {"--help", "-help", "-h", "--helpshort"}
CONFIG_FLAG = flags.Flag(
    flags.ArgumentParser(),
    flags.ArgumentSerializer(),
    "config",
    None,
    "file.py:variant; set its keys with --config.key=value",
)


def run(
    main: Callable[..., None],
    default_config: str,
    argument: str = "",
    optional: bool = False,
    keep_programs: bool = True,
    large_pages: bool = False,
    quiet: bool = False,
) -> None:
    """Parse the command line and call main(settings), or main(settings, word) for a script that takes an `argument`.

    Without an `optional` argument, main gets none. Every error ends in one line on stderr (command/errors.py); a user's
    mistake exits with 2. `large_pages` are for scripts that allocate much memory on the CPU (device/malloc.py); with
    `quiet`, XLA logs nothing.
    """
    settings: object = None

    def parse_flags(arguments: list[str]) -> list[str]:
        nonlocal settings
        words = [word for word in arguments if word not in HELP]
        asks_help = len(words) < len(arguments)
        name, words = config_named(words, default_config)
        module, settings = configs.load(name, console.ROOT, default_config)
        if not isinstance(settings, typing.get_type_hints(main).get("settings", object)):
            script = Path(words[0]).stem
            raise PastaError(f"--config={name}: not for launch.{script}; use --config={default_config}:VARIANT")
        rest, config = parse(flags.FLAGS, words, settings)
        shown, settings = settings, read(config, type(settings))
        if asks_help:
            word = argument and f"[{argument}] " if optional else argument and f"<{argument}> "
            _print_help(words[0], word, module, shown)
        return rest

    def start(arguments: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # JAX logs every backend that it did not find
        words, expected = arguments[1:], int(bool(argument))
        if len(words) > expected:
            quotes = f"put the {argument} in quotes, " if optional else ""
            raise PastaError(
                f"{words[expected]!r}: unexpected argument; {quotes}write flags as --name=value (see --help)"
            )
        if len(words) < expected and not optional:
            raise PastaError(f"missing argument: {argument} (see --help)")
        if large_pages:
            restart_on_large_pages()
        if keep_programs:
            compilation_cache.keep()  # before main imports JAX
        platform.choose(quiet=quiet)
        together = processes.joined(Path(arguments[0]).stem) if keep_programs else contextlib.nullcontext()
        with break_silence(f"{Path(arguments[0]).stem}: working"), together:
            main(settings, *words)

    command_end.explain(lambda: app.run(start, flags_parser=parse_flags))


def _print_help(script: str, argument: str, module: ModuleType, settings: object) -> None:
    """Print what the script does, its flags, and the variants and keys of the chosen config; exit with code 0."""
    summary, name = sys.modules["__main__"].__doc__ or "", Path(script).stem
    options = [*flags.FLAGS.get_key_flags_for_module(script), CONFIG_FLAG, *processes.flags_of(name)]
    usage = f"python -m launch.{name} {argument}[--flag=value …]"
    print(console.as_typed(command_help.text(usage, summary, options, module, settings)), flush=True)
    sys.exit(0)


def announce_device() -> None:
    """Print the device on stderr before anything else: a silent fall-back to the CPU is a common surprise."""
    compilation_cache.announce()
    say(f"device: {platform.describe()}")
