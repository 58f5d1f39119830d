"""What a package asks for, as its metadata say."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from calib_serve.doctor.world import World

__all__ = ["OWN", "applies", "lines", "meets", "of_extra"]

OWN = "calib-serve"


def lines(package: Distribution) -> Iterator[Requirement]:
    """What it asks for, each by its canonical name; lines that are no requirement are left out."""
    for line in package.requires or ():
        try:
            one = Requirement(line)
        except InvalidRequirement:
            continue
        one.name = canonicalize_name(one.name)
        yield one


def of_extra(package: Distribution, extra: str, world: World) -> list[Requirement]:
    """What an extra of ours asks for beside the package itself."""
    return [one for one in lines(package) if not applies(one, world) and applies(one, world, extra)]


def applies(one: Requirement, world: World, extra: str = "") -> bool:
    """Whether a requirement counts for an ``extra`` under the Python of ``world``."""
    if one.marker is None:
        return True
    full = ".".join(map(str, world.python))
    short = ".".join(map(str, world.python[:2]))
    return one.marker.evaluate({"extra": extra, "python_version": short, "python_full_version": full})


def meets(version: str, one: Requirement) -> bool:
    """Whether an installed version is one of those asked for; one that is no version is not."""
    return one.specifier.contains(version, prereleases=True)
