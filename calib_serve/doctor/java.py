"""The Java that TorchServe runs on."""

from __future__ import annotations

from collections.abc import Iterator

from calib_serve.doctor.extras import chosen
from calib_serve.doctor.finding import Asked, Finding, ok, wrong
from calib_serve.doctor.world import World
from calib_serve.errors import ServerError
from calib_serve.serve.java import find_java

__all__ = ["java"]


def java(asked: Asked, world: World) -> Iterator[Finding]:
    """As ``calib-serve serve`` looks for it."""
    if "torchserve" not in chosen(asked, world):
        return
    try:
        yield ok("java", str(find_java(world.environment)))
    except ServerError as error:
        what, _, do = str(error).partition("; ")
        yield wrong("java", what, do)
