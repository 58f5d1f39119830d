"""A program: imports modules one by one and says, a line of JSON each, what became of it.

It runs in a process of its own, where a library that crashes takes nothing else down. It is given the folders
to import from as JSON, then the modules' names, and imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import Any

# A model of one node, y = Identity(x), opset 13: the smallest that a session takes.
_IDENTITY = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a0808"
    "0112040a02080142040a00100d"
)


def main(arguments: list[str]) -> None:
    """Import each module; what is printed meanwhile goes to stderr."""
    sys.path[:] = json.loads(arguments[0])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for name in arguments[1:]:
        print(json.dumps({"begins": name}), file=out, flush=True)
        print(json.dumps({"module": name, **_tried(name)}), file=out, flush=True)


def _tried(name: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(name)
        return _FACTS.get(name, lambda _: {})(module)
    except BaseException as error:  # whatever the library does, the next one is tried
        return {"error": _line(error)}


def _torch(torch: Any) -> dict[str, Any]:
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    facts: dict[str, Any] = {"version": str(torch.__version__), "built_for": built, "gpus": 0}
    try:
        torch.zeros(1).numpy()
    except Exception as error:  # built for numpy 1, it raises where numpy is 2
        facts["error"] = f"it cannot use numpy: {_line(error)}"
    if built:
        try:
            torch.cuda.init()
            facts["gpus"] = torch.cuda.device_count()
        except Exception as error:  # the driver's own words
            facts["why"] = _line(error)
    return facts


def _onnxruntime(ort: Any) -> dict[str, Any]:
    offered = ort.get_available_providers()
    facts: dict[str, Any] = {"version": ort.__version__, "offered": offered, "taken": []}
    if "CUDAExecutionProvider" in offered:
        with contextlib.suppress(Exception):
            ort.preload_dlls()
        try:
            wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
            facts["taken"] = ort.InferenceSession(_IDENTITY, providers=wanted).get_providers()
        except Exception as error:  # onnxruntime raises a dozen unrelated types
            facts["why"] = _line(error)
    return facts


_FACTS = {"torch": _torch, "onnxruntime": _onnxruntime}


def _line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


if __name__ == "__main__":
    main(sys.argv[1:])
