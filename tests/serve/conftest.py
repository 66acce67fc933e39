"""What tests of servers share: the folder of the model that is served, and a server that wants a key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.serving import KEY, OTHER_PAGE, Server, export


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="session")
def server(folder) -> Iterator[Server]:
    with Server(folder, key=KEY, request__temperature=1.0, origins=f"({OTHER_PAGE!r},)") as server:
        yield server
        assert server.stop() == 0
        assert server.lines[-1] == "stopped\n"
        assert not [line for line in server.lines if "error" in line or "crow" in line]
