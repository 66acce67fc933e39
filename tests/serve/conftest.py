"""What tests of servers share: the folder of the model that is served."""

from pathlib import Path

import pytest

from tests.helpers.serving import export


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("served") / "model")
