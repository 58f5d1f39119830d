"""Archives that torch-model-archiver makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from live_server import network
from scripted import scripted

HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler


class Mine(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row.get("body") or row.get("data") for row in data])

    def postprocess(self, outputs):
        return torch.softmax(outputs, 1).tolist()
"""


def archived(folder: Path, *options: object, name: str = "pets", version: str = "3.1") -> Path:
    """``folder/name.mar``: our small network with a handler that is not ours."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = folder.parent / f"{folder.name}-sources"
    sources.mkdir(exist_ok=True)
    (sources / "mine.py").write_text(HANDLER)
    (folder.parent / "tmp").mkdir(exist_ok=True)
    arguments = {
        "--model-name": name,
        "--version": version,
        "--serialized-file": scripted(sources / "net.pt", network()),
        "--handler": sources / "mine.py",
        "--export-path": folder,
    }
    words = [str(word) for pair in arguments.items() for word in pair] + [str(word) for word in options]
    subprocess.run(
        [sys.executable, "-m", "model_archiver.model_packaging", *words],
        check=True,
        env={"TMPDIR": str(folder.parent / "tmp"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    return folder / f"{name}.mar"
