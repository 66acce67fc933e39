"""The base class of all errors that users can cause: one line that states the place, the problem and the fix."""


class PastaError(Exception):
    """Invalid input of any kind. Launch scripts print it as one line and exit with `exit_code`."""

    exit_code = 2  # a subclass that is no mistake of the user's has another
