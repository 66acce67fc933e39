"""The one error a user can cause: a single line that names the place and the fix."""


class PastaError(Exception):
    """Raised for bad input of any kind; launch scripts print it as one line and exit with code 2."""
