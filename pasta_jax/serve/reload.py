"""Adapters read again while the server runs: each that has changed takes its own place between two rounds."""

import threading
from collections.abc import Callable, Sequence

from pasta_jax.decode.request import Request
from pasta_jax.errors import PastaError, brief, one_line
from pasta_jax.files import remote
from pasta_jax.progress import say
from pasta_jax.serve.service import Service
from pasta_jax.weights.beside import Beside, exchanged
from pasta_jax.weights.model import Model


def reloader(service: Service, adapters: Sequence[Beside], template: Callable[[Beside], Request]) -> Callable[[], None]:
    """What makes a thread of its own read config.adapters again; a signal handler may call it."""
    wanted = threading.Event()

    def work() -> None:
        model, held = service.model, tuple(adapters)
        while True:
            wanted.wait()
            wanted.clear()
            model, held = reload(service, model, held, template)

    threading.Thread(target=work, name="reload", daemon=True).start()
    return wanted.set


def reload(
    service: Service, model: Model, held: Sequence[Beside], template: Callable[[Beside], Request]
) -> tuple[Model, tuple[Beside, ...]]:
    """Read config.adapters again, and wait until no answer runs with what has changed: the model and its adapters then.

    An adapter that cannot be used leaves the old one in its place, and a line says why.
    """
    remote.forget()  # what is at gs:// may be another by now
    read, templates, refused = [], {}, False
    for text, old in zip(service.settings.adapters, held, strict=True):
        new = old
        try:
            other, now = exchanged(model, text, old)
            templates[f"{service.name}:{now.name}"] = template(now)
            model, new = other, now
        except PastaError as error:
            refused = True
            say(f"{old.name} stays as it was: {error}")
        except Exception as error:  # no memory, say: the server goes on
            refused = True
            say(one_line(f"{old.name} stays as it was: {brief(error)}; read it again with SIGHUP"))
        read.append(new)
    changed = [new for new, old in zip(read, held, strict=True) if new != old]
    if changed:
        swapped = threading.Event()
        with service.engine.at_once():  # what is submitted from now on waits for the new weights, with the new rules
            service.engine.exchange(model.params, {one.number for one in changed}, swapped.set)
            service.adapters.update(templates)
        swapped.wait()
        say(f"read again: {', '.join(one.name for one in changed)}")
    elif not refused:
        say("no adapter has changed")
    return model, tuple(read)
