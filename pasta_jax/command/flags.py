"""Command lines: flags and config overrides parsed by absl, with every mistake as one line that names the flag."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from pasta_jax.command import configs
from pasta_jax.errors import PastaError
from pasta_jax.files.remote import path_of

# What ml_collections and Python's parser of literals raise.
_MISTAKES = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, SyntaxError, RecursionError)


class _OrNone(flags.ArgumentParser):
    """Values of a setting that may be None, as --help shows it; None for another is refused when settings are read."""

    def __init__(self, parser: flags.ArgumentParser):
        self._parser = parser

    def parse(self, argument: Any) -> Any:
        """The value of what was typed."""
        return None if argument == "None" else self._parser.parse(argument)


for _kind, _parser in {int: flags.IntegerParser(), float: flags.FloatParser(), bool: flags.BooleanParser()}.items():
    config_flags.register_flag_parser_for_type(_kind, _OrNone(_parser))


def config_named(arguments: list[str], default: str) -> tuple[str, list[str]]:
    """The value of --config, and the other arguments."""
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    flags.DEFINE_string("config", default, "", flag_values=values)
    rest = _explained(lambda: values(arguments, known_only=True), arguments)
    return values["config"].value, rest


def parse(values: flags.FlagValues, arguments: list[str], settings: Any) -> tuple[list[str], ConfigDict]:
    """Parse flags, and overrides of the settings; the words that are no flags, and the settings as a config."""

    def define_and_parse() -> list[str]:
        config_flags.DEFINE_config_dict("config", configs.as_config(settings), flag_values=values, sys_argv=arguments)
        return values(arguments)

    return _explained(define_and_parse, arguments), values["config"].value


def folder_of(flag: flags.FlagHolder[str | None], content: str = "this run") -> Path:
    """The folder that a flag names, which a command can't do without."""
    if not flag.value:
        raise PastaError(f"--{flag.name} is missing: set a folder for {content}")
    return path_of(flag.value)


def file_of(flag: flags.FlagHolder[str | None]) -> Path | None:
    """The local file that a flag names, if it is set; shells expand no ~ after =."""
    return None if flag.value is None else Path(os.path.expanduser(flag.value))


def _explained(parse: Callable[[], list[str]], arguments: list[str]) -> list[str]:
    """What a parse returns; errors in flags and in config overrides become PastaError."""
    try:
        return parse()
    except flags.Error as error:
        text, is_bool, _ = " ".join(str(error).split()).partition("('Non-boolean")  # absl prints a tuple
        text += "is true or false" * bool(is_bool)
        if "as a ConfigDict" in text:
            given = text.removeprefix("flag ").partition("=")[0]
            raise PastaError(f"{given}: is a section; set its keys, as {given}.KEY=… (--help lists them)") from None
        raise PastaError(f"{text} (--help lists the flags)") from None
    except _MISTAKES as error:  # an AttributeError may wrap a KeyError
        cause = error if isinstance(error, KeyError) else error.args[0] if error.args else ""
        if not isinstance(cause, KeyError):
            raise PastaError(f"config: {' '.join(str(error).split())}") from None
        key, _, hint = str(cause.args[0]).partition("\n")
        names = (argument.lstrip("-").partition("=")[0] for argument in arguments)
        name = next((name for name in names if key.strip("'") in name.split(".")), key)
        raise PastaError(f"--{name}: unknown key; {hint or 'see --help'}") from None
