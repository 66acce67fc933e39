"""Serve a model over HTTP: OpenAI's API and a page to chat with. See configs/serve.py."""

from launch import cli
from pasta_jax.serve.settings import ServeSettings


def main(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    alone = settings.most_replicas == 1
    if alone:  # else the devices are the replicas'
        cli.announce_device()

    from pasta_jax.serve import replicas, run  # import JAX: after the flags, so that --help starts quickly

    (run if alone else replicas).run(settings)


if __name__ == "__main__":
    cli.run(main, default_config="configs/serve.py")
