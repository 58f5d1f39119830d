"""Libraries of operators: the one that is said, or that of the package whose domains a graph declares."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from calib_serve.core import packages

KNOWN = SimpleNamespace(get_library_path=lambda: "/lib/ortextensions.so")


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "com.microsoft.extensions"])
def test_the_package_of_a_graph_s_own_domain_is_found(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: name == "onnxruntime_extensions" or None)
    monkeypatch.setattr(packages, "import_module", lambda _: KNOWN)
    assert packages.operators_library(None, ["", domain]) == "/lib/ortextensions.so"
    assert packages.operators_library("own.so", ["", domain]) == "own.so"
    assert packages.operators_library(None, ["", "ai.onnx.ml", "com.microsoft"]) is None
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    assert packages.operators_library(None, ["", domain]) is None
