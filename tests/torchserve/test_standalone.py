"""A standalone archive's worker, where nothing of ours is installed: not even safetensors."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from live_server import exported, inputs, network, temperature_artifact

from calib_serve.torchserve import pack

pytestmark = pytest.mark.server

# What TorchServe's worker does, in a process that can import nothing but the archive, torch and ts.
WORKER = """
import json, sys
from importlib.machinery import PathFinder

MISSING = {"safetensors", "cyclopts", "rich", "onnx", "onnxruntime", "PIL", "httpx", "scipy", "sklearn"}

found = PathFinder.find_spec

def find_spec(name, *where):  # None, not an error: torch looks for onnx, and does without
    return None if name.split(".")[0] in MISSING else found(name, *where)

PathFinder.find_spec = find_spec
folder, row = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, folder)
from ts.context import RequestProcessor
from ts.service import Service
import calibrated_classifier, calib_serve
handler = calibrated_classifier.Handler()
manifest = json.load(open(folder + "/MAR-INF/MANIFEST.json"))
service = Service("digits", folder, manifest, handler.handle, None, 8)
handler.initialize(service.context)
service.context.request_processor = [RequestProcessor({})]
(reply,) = handler.handle([{"body": row}], service.context)
print("\\n" + json.dumps({"file": calib_serve.__file__, "reply": json.loads(reply)}))
"""


def test_it_serves_from_its_own_files(tmp_path: Path) -> None:
    path = pack(
        exported(tmp_path / "net.pt2"),
        temperature_artifact(),
        tmp_path,
        name="digits",
        standalone=True,
        unproven=True,
    )
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(unpacked)
    x = inputs(1, seed=21)
    command = [sys.executable, "-c", WORKER, str(unpacked), json.dumps(x[0].tolist())]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert told.returncode == 0, told.stderr[-2000:]
    result = json.loads(next(line for line in told.stdout.splitlines() if line.startswith('{"file"')))
    assert result["file"].startswith(str(unpacked))
    with torch.inference_mode():
        wanted = temperature_artifact().probs(network()(torch.from_numpy(x)).numpy())[0]
    np.testing.assert_allclose(result["reply"]["probabilities"], wanted, rtol=1e-6)
    assert "receipt" not in result["reply"], "no keyring is configured: receipts are off"
    assert "receipts are off" in told.stdout + told.stderr
