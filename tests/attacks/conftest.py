"""One cage for all attacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cage import Cage

collect_ignore = ["conftest.py"]  # for doctests: there are several modules of this name


@pytest.fixture(scope="session")
def cage() -> Iterator[Cage]:
    with Cage() as cage:
        yield cage
