"""One cage for all attacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cage import Cage


@pytest.fixture(scope="session")
def cage() -> Iterator[Cage]:
    with Cage() as cage:
        yield cage
