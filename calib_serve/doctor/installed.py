"""The packages that are installed in the folders of a world, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

from calib_serve.doctor.requirement import Requirement, canonical
from calib_serve.doctor.world import World

__all__ = ["OWN", "installed", "lines", "of_extra"]

OWN = "calib-serve"


def installed(world: World) -> dict[str, Distribution]:
    """Each package by its name in metadata's form; of two in different folders the one that is imported."""
    found: dict[str, Distribution] = {}
    for one in distributions(path=list(world.packages)):
        name = one.metadata["Name"] if one.metadata is not None else None
        if name:  # a folder of metadata that is left of a broken installation has none
            found.setdefault(canonical(name), one)
    return found


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
