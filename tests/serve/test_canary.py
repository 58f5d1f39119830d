"""A calibrated archive beside the one it was made from, both served by one real TorchServe."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from live_server import NAMES, Running, inputs, network, temperature_artifact
from others_archives import archived

from calib_serve.fuse.torchserve import pack_around

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("canary")
    (folder / "index_to_name.json").write_text(json.dumps({str(k): name for k, name in enumerate(NAMES)}))
    (folder / "own.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\n")
    options = ("--extra-files", folder / "index_to_name.json", "--config-file", folder / "own.yaml")
    old = archived(folder / "store", *options, form="tgz")
    new = pack_around(old, temperature_artifact(class_names=()), folder / "store", batch_size=4, trial=False)
    return register(old, new)


def ask(running: Running, path: str, x: np.ndarray) -> Any:
    return running.http.post(f"/predictions/{path}", json=x.tolist()).raise_for_status()


def test_the_old_version_answers_by_default_and_as_before_and_the_new_one_is_calibrated(
    running: Running,
) -> None:
    with torch.inference_mode():
        logits = network()(torch.from_numpy(inputs(5, seed=3))).numpy()
    before = temperature_artifact(1.0).probs(logits)
    after = temperature_artifact().probs(logits)
    for k, x in enumerate(inputs(5, seed=3)):
        for path, wanted in (("pets", before), ("pets/3.1", before), ("pets/3.1-calibrated", after)):
            np.testing.assert_allclose(ask(running, path, x).json(), wanted[k], atol=1e-5)


def test_receipts_name_the_new_version_and_labels_the_mapping_s_classes(running: Running) -> None:
    assert "x-calib-receipt" not in ask(running, "pets", inputs(1)[0]).headers
    receipt = ask(running, "pets/3.1-calibrated", inputs(1)[0]).headers["x-calib-receipt"]
    known = running.keyring.verify(receipt)
    assert (known.model, known.version) == ("pets", "3.1-calibrated")
    for label, accepted in (("a stranger", 0), (NAMES[4], 1)):
        told = running.label([{"receipt": receipt, "label": label}]).json()
        assert told["accepted"] == accepted, told
