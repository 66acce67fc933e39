"""Models and adapters by their id on the Hugging Face Hub, org/name or org/name@revision: fetched once, then local."""

import re
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import remote
from pasta_jax.progress import say

_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w.][\w./-]*))?")
_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja")  # no pickles: reading those runs code
_COPIES = ("original/*", "consolidated*")  # of gpt-oss and Mistral: the same weights again, under other names


def is_id(name: str) -> bool:
    """Whether a name can only be an id: it looks like one, and its first part is no folder here."""
    return _ID.fullmatch(name) is not None and not Path(name.partition("/")[0]).exists()


def local(name: str) -> Path:
    """The path itself, a copy of what is at gs://, or for an id the folder where the Hub's client keeps its files."""
    if not is_id(name):
        return remote.local(remote.path_of(name))
    import huggingface_hub  # slow to import

    parts = _ID.fullmatch(name).groupdict()
    say(f"{name}: no such path, looking on the Hugging Face Hub")
    try:
        folder = huggingface_hub.snapshot_download(
            parts["repository"],
            revision=parts["revision"],
            allow_patterns=list(_FILES),
            ignore_patterns=list(_COPIES),
        )
    except Exception as error:  # the client's own errors and those of its transport, which differs between versions
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise PastaError(
            f"{name}: no such path, and the Hub didn't provide it ({reason}); download the folder and pass its path"
        ) from None
    return Path(folder)
