"""One watch for all labels."""

import pytest
from real_servers import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("watch")) as server:
        yield server
