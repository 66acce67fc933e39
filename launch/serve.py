"""Serve a model over HTTP: OpenAI's API and a page to chat with. See configs/serve.py."""

from launch import cli
from pasta_jax.serve.settings import ServeSettings


def main(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    cli.announce_device()

    from pasta_jax.serve import run as serve  # imports JAX: after the flags, so that --help starts quickly

    serve.run(settings)


if __name__ == "__main__":
    cli.run(main, default_config="configs/serve.py")
