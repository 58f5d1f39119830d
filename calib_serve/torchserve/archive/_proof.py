"""Proof that what is packed gives the scores that were fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.core.errors import OptionError
from calib_serve.core.files import sha256
from calib_serve.core.options.pack import AroundOptions, PackOptions
from calib_serve.fuse import Against, required_proof
from calib_serve.models import read_requests
from calib_serve.torchserve.archive._archive import Archive


def prove_model(file: Path, artifact: Artifact, asked: PackOptions) -> str:
    """Prove a model's file by its hash, or by its scores for the rows to compare it with; say what proves it.

    FuseError where they differ, or nothing proves it.
    """
    proof = required_proof(artifact, lambda: sha256(file), file, asked, asked.inputs)
    if isinstance(proof, str):
        return proof
    from calib_serve.models import load_model  # noqa: PLC0415 - which brings torch

    proof = proof.taking(["inputs"])
    inputs = proof.inputs["inputs"]
    how: dict[str, Any] = {"input_shape": inputs.shape[1:], "device": "cpu"}
    model = load_model(str(file), outputs=artifact.model.returned(asked.outputs), **how)
    return proof.prove(np.asarray(model.logits(inputs), np.float64), file)


def archive_proof(archive: Archive, artifact: Artifact, asked: AroundOptions) -> Against | str:
    """The scores to compare those of the samples in probe_data with, or the words for an archive's proof."""
    inputs = None
    if asked.against is not None:
        if asked.probe_data is None:
            raise OptionError("against", "is of the samples in probe_data, and none are given")
        requests = read_requests(asked.probe_data)
        inputs = {"inputs": np.arange(len(requests)) if requests.rows is None else requests.rows}
    # Rows that a fit kept are of a model's inputs, and not of requests.
    return required_proof(replace(artifact, kept=None), archive.digest, archive.path, asked, inputs)
