"""Archives that nobody here wrote, packed again: each is calibrated, or refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from foreign_handlers import FOREIGN, archive, artifact, trial
from label_handlers import array_files
from sizes import sized

from calib_serve import Artifact
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import CalibServeError, FuseError
from calib_serve.torchserve import pack_around, read_archive
from calib_serve.torchserve.mar_options import TRIAL, ModelOptions

pytestmark = pytest.mark.server

REFUSED = [name for name, foreign in FOREIGN.items() if foreign.refused]
SERVED = [name for name, foreign in FOREIGN.items() if not foreign.refused]
ELSEWHERE = {
    "ids_at_inference": "model",
    "own_handle": "model",
    "service": "_service.net",
    "average_in_a_method": "average",
}


@pytest.fixture(autouse=True)
def _torchvision_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support" / "torchvision_ops"))


@pytest.mark.parametrize("name", REFUSED[:: sized(ci=3, nightly=1)])
def test_what_cannot_be_calibrated_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    foreign = FOREIGN[name]
    with pytest.raises(CalibServeError, match=foreign.refused):
        pack_around(
            archive(name, tmp_path), artifact(foreign), tmp_path / "out", **foreign.options, unproven=True
        )
    assert not list((tmp_path / "out").glob("*")), "nothing is written"


@pytest.mark.parametrize("name", sized(ci=["ids_at_inference"], nightly=SERVED))
def test_the_seam_is_found_and_its_form_is_known(name: str, tmp_path: Path) -> None:
    foreign = FOREIGN[name]
    how = trial(name, tmp_path)
    made = pack_around(archive(name, tmp_path), artifact(foreign), tmp_path / "out", **how, unproven=True)
    options, packed = ModelOptions.read(read_archive(made).config), read_archive(made)
    assert TRIAL in packed.files
    if "seam" not in foreign.options and name not in ("without_base", "function", "forward"):
        assert options.seam == ELSEWHERE.get(name, "inference")
    assert options.outputs == {
        "softmaxed": "probabilities",
        "one_logit": "logit",
        "log_softmaxed_ids": "log_probs",
    }.get(name, "logits")


@pytest.mark.nightly
def test_a_calibration_that_depends_on_the_kind_of_scores_wants_the_kind_it_was_fitted_on(
    tmp_path: Path,
) -> None:
    weights = [0.5 + 0.1 * k for k in range(10)]
    vector = Artifact((LogitMap(np.array(weights), np.zeros(10)),), method="vector", classes=10)
    source = archive("softmaxed", tmp_path)
    how = {"probe_data": array_files(tmp_path), "unproven": True}
    with pytest.raises(FuseError, match="--outputs"):
        pack_around(source, vector, tmp_path / "out", **how)
    assert pack_around(source, vector, tmp_path / "out", outputs="probabilities", **how)
