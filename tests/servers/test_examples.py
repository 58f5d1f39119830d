"""Every example is short, and is what its page shows."""

from __future__ import annotations

import pytest
from example_servers import EXAMPLES, added_lines

ROOT = EXAMPLES.parents[1]
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/calibrated.py"))


@pytest.mark.parametrize("name", NAMES)
def test_calibration_and_monitoring_take_at_most_ten_lines(name: str) -> None:
    assert 0 < len(added_lines(name)) <= 10, added_lines(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_each_file_whole(name: str) -> None:
    pages = [path.read_text() for path in (ROOT / "docs" / "how-to").glob("*.md")]
    for path in EXAMPLES.joinpath(name).glob("*.py"):
        shown = [page for page in pages if f"```python\n{path.read_text()}```" in page]
        assert path.name == "plain.py" or len(shown) == 1, f"no page shows {path}, or two do"
