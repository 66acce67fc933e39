"""Command lines: flags and config overrides parsed by absl, with every mistake as one line that names the flag."""

from absl import flags
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError

# What ml_collections and Python's parser of literals raise.
_MISTAKES = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, SyntaxError, RecursionError)


def parse(values: flags.FlagValues, arguments: list[str]) -> list[str]:
    """Parse with absl; errors in flags and in config overrides become PastaError."""
    try:
        return values(arguments)
    except flags.Error as error:
        raise PastaError(f"{' '.join(str(error).split())} (--help lists the flags)") from None
    except _MISTAKES as error:  # an AttributeError may wrap a KeyError
        cause = error.args[0] if error.args else ""
        if not isinstance(cause, KeyError):
            raise PastaError(f"config: {' '.join(str(error).split())}") from None
        key, _, hint = str(cause.args[0]).partition("\n")
        names = (argument.lstrip("-").partition("=")[0] for argument in arguments)
        name = next((name for name in names if key.strip("'") in name.split(".")), key)
        raise PastaError(f"--{name}: unknown key; {hint or 'see the config file'}") from None


def readable(config: ConfigDict) -> ConfigDict:
    """The config; a file that cannot be read shows at the first access only."""
    try:
        config.keys()
    except OSError as error:
        raise PastaError(f"--config: {str(error).splitlines()[-1].strip()}; pass file.py:variant") from None
    return config
