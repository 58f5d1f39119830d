"""A row of NaN has no confidence, whatever runtime serves it: none is surer of it than of any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_texts import graph
from onnx_runtimes import RUNTIMES, by_tract

from calib_serve.artifact import LogitMap, ProbTable, Step
from calib_serve.fuse import fuse_onnx

ALL = {**RUNTIMES, "tract": by_tract}
GOOD = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
BROKEN = np.array([[np.nan] * 3, [1, np.nan, 0], [1, 0, np.nan], [-np.inf] * 3, [2, 1, 0]], "f4")
EACH = LogitMap(np.array([1.2, 0.8, 1.5]), np.array([0.1, -0.2, 0.3]), on="log_probs")
STEPS: dict[str, tuple[Step, ...]] = {
    "each class": (EACH,),
    "a least": (LogitMap(np.array(1.0), None, on="log_probs", least=0.01), LogitMap.temperature(2.0)),
    "table of the top": (ProbTable(np.array([[0.5, 0.75]]), np.array([[0.4, 0.7, 0.9]])),),
    "table of each": (ProbTable(np.tile([0.5], (3, 1)), np.tile([0.2, 0.9], (3, 1))),),
}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the reference
@pytest.mark.parametrize("runtime", ALL)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("tail", ["Softmax", "Identity"])
def test_nan_is_never_sure(tail: str, steps: str, runtime: str, tmp_path: Path) -> None:
    body = "no = Constant <value = float {0}> () z = Add(x, no) s = Softmax(z) "
    body += "y = Identity(s)" if tail == "Softmax" else "n = Neg(s) m = Neg(n) y = Identity(m)"
    onnx.save(graph(body), tmp_path / "raw.onnx")
    fitted = artifact(*STEPS[steps], classes=3, model={"outputs": "probabilities"})
    known = {"returns": "all", "unproven": True, "inputs": {"x": GOOD}, "outputs": "probabilities"}
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", **known)
    found = ALL[runtime](tmp_path / "out.onnx", {"x": BROKEN})
    sure = np.nan_to_num(found["confidence"], nan=0.0)
    assert (sure[:4] <= 0).all()  # tract's is -3.4e38
    assert (found["bin"][:4] == 0).all()
    np.testing.assert_allclose(
        sure[4], fitted.of_logits(np.log([[0.66524096, 0.24472847, 0.09003057]])).max(), atol=1e-6
    )
