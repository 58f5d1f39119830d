"""What lies where a file should: a pipe that nobody writes to, a device, a folder, terabytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cage import Cage
from openers import OPENERS

pytestmark = pytest.mark.server


def terabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "nothing": lambda _: None,
    "a link to itself": lambda path: path.symlink_to(path),
    "terabytes": terabytes,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_no_file_of_bytes_is_refused_and_not_waited_for(
    cage: Cage, tmp_path: Path, opener: str, kind: str
) -> None:
    if opener.startswith("labels") and kind == "a pipe":
        pytest.skip("labels may come by a pipe")
    path = tmp_path / "in" / OPENERS[opener][0]
    path.parent.mkdir(parents=True)
    KINDS[kind](path)
    if kind in ("a pipe", "terabytes"):
        path.chmod(0o600)  # or secrets were refused for their rights
    fate = cage.run(f"open {opener}", path)
    assert fate.kind in ("fine", "refused"), fate.told
