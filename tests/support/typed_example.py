"""What a type checker must accept of the public names, and what it must know of their types."""

from __future__ import annotations

import numpy as np
import torch

import calib_serve as cs


def fitted(logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]], labels: list[int]) -> cs.Artifact:
    artifact = cs.calibrate(logits, labels, "vector", ridge=0.01)
    temperature: float | None = cs.calibrate(logits, labels, "temperature").temperature
    print(temperature, cs.verdict(artifact))
    found = cs.evaluate(artifact.probs(logits), labels, bins=10)
    ece: float = float(found.ece) + found.ece.value
    print(ece, found.ece < 0.1, round(found.nll, 3))
    for one in cs.compare((logits, labels), (logits, labels), ["none", "temperature"]):
        name: str = one.method
        print(name, one.metrics)
    return artifact


def fused(model: torch.nn.Module, artifact: cs.Artifact) -> torch.nn.Module:
    done: tuple[str, ...] = cs.fuse_onnx("model.onnx", artifact, "out.onnx", returns="all").done
    print(done)
    clamped = cs.calibrate_model(model, np.zeros((4, 2)), [0, 1, 0, 1], "neural-clamping", gamma="paper")
    return cs.calibrated(model, clamped, returns="logits")


def refitted(artifact: cs.Artifact) -> cs.Artifact | None:
    samples = cs.read_samples("samples", model="digits", version="1.0")
    return cs.refit(artifact, samples.logits, samples.labels).artifact


def watched(keyring: cs.Keyring) -> str:
    receipt: cs.Receipt = keyring.verify("AQ")
    label = cs.Label(receipt, 3)
    correct: bool = label.correct
    return f"{receipt.model} {correct}"
