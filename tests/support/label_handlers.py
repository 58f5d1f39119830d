"""TorchServe archives of multi-label models as people make them; random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from foreign_handlers import Foreign, own, weights
from live_server import CLASSES, WIDTH

from calib_serve import Artifact
from calib_serve.artifact import LogitMap

NAMES = tuple(f"tag {k}" for k in range(CLASSES))
SCALE, BIAS = np.linspace(0.4, 1.6, CLASSES), np.linspace(-0.5, 0.5, CLASSES)

THRESHOLDED = """
threshold = 0.5

def postprocess(self, outputs):
    found = torch.sigmoid(outputs).cpu().numpy()
    return [
        {"tags": [k for k in range(len(row)) if row[k] >= self.threshold], "scores": row.tolist()}
        for row in found
    ]
"""
LABELS: dict[str, Foreign] = {
    "tagger": Foreign(own(THRESHOLDED)),
    "after_sigmoid": Foreign(
        own("def postprocess(self, outputs):\n    return outputs.tolist()"), returns="torch.sigmoid(z)"
    ),
    "by_numpy": Foreign(
        own("def postprocess(self, outputs):\n    return (1 / (1 + np.exp(-outputs.numpy()))).tolist()")
    ),
    "decided": Foreign(
        own(
            "def postprocess(self, outputs):\n"
            "    return [torch.nonzero(row > 0.5)[:, 0].tolist() for row in torch.sigmoid(outputs)]"
        )
    ),
    "one_tag": Foreign(
        own("def postprocess(self, outputs):\n    return torch.sigmoid(outputs).tolist()"), out=1
    ),
}


def labels_artifact(outputs: str = "label_logits", labels: int = CLASSES, **more: Any) -> Artifact:
    """A scale and a bias for each label."""
    names = NAMES if labels == CLASSES else ()
    facts = {"model": {"outputs": outputs, "input_shape": [WIDTH]}, "class_names": names, **more}
    scale, bias = np.resize(SCALE, labels), np.resize(BIAS, labels)
    return Artifact((LogitMap(scale, bias),), method="platt", classes=labels, **facts)


def calibrated(logits: np.ndarray, labels: int = CLASSES) -> np.ndarray:
    """What numpy makes of label logits (n, L), without this package."""
    z = np.asarray(logits, np.float64) * np.resize(SCALE, labels) + np.resize(BIAS, labels)
    return 1 / (1 + np.exp(-z))


def logits_of(x: np.ndarray, out: int = CLASSES) -> np.ndarray:
    """The logits of every network here but ``pipeline``'s."""
    with torch.inference_mode():
        return weights(out)(torch.from_numpy(x)).numpy()


def array_files(folder: Path) -> Path:
    """Requests that the others answer, in a folder of one folder."""
    (folder / "requests" / "any").mkdir(parents=True, exist_ok=True)
    for k in range(3):
        body = [0.1 * j if j % 3 == k else -0.2 for j in range(WIDTH)]
        (folder / "requests" / "any" / f"{k}.json").write_text(json.dumps(body))
    return folder / "requests"
