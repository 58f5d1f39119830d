"""Kubernetes objects held against the models of KServe's and Kubernetes' own Python packages.

These packages drop what they do not know; a cluster refuses it. So does ``check``, with what is required, and
the type of every value. ``scripts/system_tools.sh`` installs them in a folder of their own.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import urllib3.util.connection  # noqa: F401  # it opens a socket when first imported: here, not in a test

PACKAGES = Path(sys.prefix) / "kserve"
_SCALARS = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "object": (object,)}


@cache
def _models() -> tuple[ModuleType, ...]:
    if not PACKAGES.is_dir():
        assert os.environ.get("CI") != "true", f"{PACKAGES} is missing; run scripts/system_tools.sh"
        pytest.skip(f"{PACKAGES} is missing; run scripts/system_tools.sh")
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    # The models alone: the packages around them import servers and clients that are not installed.
    for name in ("kserve", "kubernetes", "kubernetes.client"):
        package = ModuleType(name)
        package.__path__ = [str(PACKAGES.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)
    return import_module("kserve.models"), import_module("kubernetes.client.models")


def model(kind: str) -> Any:
    """The class of a kind, such as ``V1ConfigMap``."""
    return next(getattr(module, kind) for module in _models() if hasattr(module, kind))


def check(value: Any, kind: str, where: str = "") -> Any:
    """``value`` of YAML as an object of ``kind``, or ValueError: a field unknown, missing or mistyped."""
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        return [
            check(one, found[1], f"{where}[{i}]") for i, one in enumerate(_typed(value, (list,), kind, where))
        ]
    if found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        entries = _typed(value, (dict,), kind, where)
        return {
            _typed(key, (str,), "str", where): check(one, found[1], f"{where}.{key}")
            for key, one in entries.items()
        }
    if kind in _SCALARS:
        return _typed(value, _SCALARS[kind], kind, where)
    return _object(_typed(value, (dict,), kind, where), kind, where)


def _object(value: dict[str, Any], kind: str, where: str) -> Any:
    cls = model(kind)
    names = {in_yaml: name for name, in_yaml in cls.attribute_map.items()}
    if unknown := set(value) - set(names):
        raise ValueError(f"{where or kind}: {kind} has no field {sorted(unknown)}")
    fields = {
        names[key]: check(one, cls.openapi_types[names[key]], f"{where}.{key}") for key, one in value.items()
    }
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(f"{where or kind}: {error}") from error


def _typed(value: Any, types: tuple[type, ...], kind: str, where: str) -> Any:
    if not isinstance(value, types) or (
        isinstance(value, bool) and bool not in types and object not in types
    ):
        raise ValueError(f"{where}: {kind} is wanted, got {value!r}")
    return value
