"""What a package asks for, as its metadata say."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution

from calib_serve.doctor.requirement import Requirement
from calib_serve.doctor.world import World

__all__ = ["OWN", "lines", "of_extra"]

OWN = "calib-serve"


def lines(package: Distribution) -> Iterator[Requirement]:
    """What it asks for; lines of another form, such as of a URL, are left out."""
    for line in package.requires or ():
        try:
            yield Requirement.read(line)
        except ValueError:
            continue


def of_extra(package: Distribution, extra: str, world: World) -> list[Requirement]:
    """What an extra of ours asks for beside the package itself."""
    asked = [one for one in lines(package) if "extra" in one.marker]
    return [one for one in asked if one.applies(extra, world.python)]
