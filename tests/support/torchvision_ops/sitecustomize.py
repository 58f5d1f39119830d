"""Let torchvision be imported where its compiled operators do not load; put this folder on PYTHONPATH.

torchvision registers shapes for two operators as it is imported, and fails where its library with them could
not be loaded. Its transforms and models need neither.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; names the operators as torchvision is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            self.define()
        return None

    def define(self) -> None:
        import torch

        spec = importlib.util.find_spec("torchvision")
        for compiled in Path(spec.origin).parent.glob("_C*.so") if spec and spec.origin else ():
            with contextlib.suppress(OSError, RuntimeError):
                torch.ops.load_library(compiled)
                return  # they are here
        if hasattr(torch.ops.torchvision, "nms"):
            return  # declared before an import that failed, or by another of these
        self._library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in _OPERATORS:
            self._library.define(operator)
        sys.modules["torchvision_ops_kept"] = self  # a library's operators end with it


sys.meta_path.insert(0, _BeforeTorchvision())
