"""Python, and the packages of each extra: whether they are there, in versions that are tested."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from calib_serve.doctor.asked_for import OWN, applies, lines, meets, of_extra
from calib_serve.doctor.finding import Asked, Finding, note, ok, wrong
from calib_serve.doctor.world import World

__all__ = ["chosen", "extras", "known_extras", "missing", "numpy_for_all", "python"]

_OF_DEVELOPERS = ("all", "dev", "docs")
_TWINS = {"onnx": "gpu", "gpu": "onnx"}
"""Of these a host has one."""


def known_extras(world: World) -> list[str]:
    """The extras of a user, as the metadata of this package names them; none where it has no metadata."""
    own = world.installed.get(OWN)
    named = own.metadata.get_all("Provides-Extra") if own is not None else None
    return sorted(set(map(str, named or ())) - set(_OF_DEVELOPERS))


def missing(extra: str, world: World) -> list[str]:
    """The packages of an extra that are not installed."""
    found = world.installed
    own = found.get(OWN)
    return [] if own is None else sorted({r.name for r in of_extra(own, extra, world)} - set(found))


def chosen(asked: Asked, world: World) -> tuple[str, ...]:
    """The extras that the host is for: those that were named, else those that are there whole."""
    return asked.extras or tuple(extra for extra in known_extras(world) if not missing(extra, world))


def python(asked: Asked, world: World) -> Iterator[Finding]:
    """The version of Python."""
    number = ".".join(map(str, world.python))
    own = world.installed.get(OWN)
    wanted = str(own.metadata["Requires-Python"] or "") if own is not None else ""
    if SpecifierSet(wanted).contains(number):
        yield ok("python", number)
    else:
        yield wrong(
            "python", f"{number}, and calib-serve needs {wanted}", "make an environment of a newer Python"
        )


def extras(asked: Asked, world: World) -> Iterator[Finding]:
    """What calib-serve itself asks for, then each extra."""
    found = world.installed
    own = found.get(OWN)
    if own is None:
        yield wrong(
            "calib-serve", "its metadata is not among the packages of this Python", f"pip install {OWN}"
        )
        return
    base = [one for one in lines(own) if applies(one, world)]
    yield _packages("calib-serve", OWN, own, base, found, asked=True)
    known = known_extras(world)
    for extra in asked.extras or known:
        wanted = of_extra(own, extra, world)
        twin = _TWINS.get(extra)
        if not asked.extras and twin in known and not missing(twin, world) and missing(extra, world):
            continue
        yield _packages(f"extra {extra}", f"{OWN}[{extra}]", own, wanted, found, asked=bool(asked.extras))


def _packages(
    about: str,
    install: str,
    own: Distribution,
    wanted: list[Requirement],
    found: dict[str, Distribution],
    *,
    asked: bool,
) -> Finding:
    lacks = sorted({one.name for one in wanted if one.name not in found})
    have = {one.name: found[one.name].version for one in wanted if one.name in found}
    outside = [
        f"{one.name} is {have[one.name]}, wanted is {one.specifier}"
        for one in wanted
        if one.name in have and not meets(have[one.name], one)
    ]
    run = f"pip install '{install}'"
    if outside and (asked or not lacks):
        told = [*outside, *([f"lacks {', '.join(lacks)}"] if lacks else [])]
        return wrong(about, "; ".join(told), run)
    if lacks:
        told = [f"lacks {', '.join(lacks)}"] if have else ["not installed"]
        return wrong(about, told[0], run) if asked else note(about, told[0], f"if you want it: {run}")
    shown = ", ".join(f"{name} {number}" for name, number in have.items())
    return ok(about, f"{own.version}: {shown}" if about == OWN else shown)


def numpy_for_all(asked: Asked, world: World) -> Iterator[Finding]:
    """Whether a package that is installed says that it does not work with this numpy."""
    found = world.installed
    if "numpy" not in found:
        return  # which is said by what calib-serve itself asks for
    version = found["numpy"].version
    against = [
        f"{name} {package.version} wants numpy{one.specifier}"
        for name, package in sorted(found.items())
        if name != OWN
        for one in lines(package)
        if one.name == "numpy" and applies(one, world) and not meets(version, one)
    ]
    if against:
        yield wrong(
            "numpy",
            f"{version}, and {'; '.join(against)}",
            "upgrade these, or give calib-serve an environment of its own",
        )
    else:
        yield ok("numpy", f"{version}; no package that is installed says that it needs another")
