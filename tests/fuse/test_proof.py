"""A calibration goes into a file that gives the scores that were fitted, and into no other unasked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_texts import LAYER, TWO, W, graph
from numpy.typing import NDArray

from calib_serve import Artifact
from calib_serve.artifact import KeptRows, LogitMap, ProbTable, hash_rows
from calib_serve.core.errors import CalibServeError, FuseError, InputError, ModelError
from calib_serve.core.files import sha256
from calib_serve.core.options.data import ProofOptions
from calib_serve.fuse import Against, fuse_onnx, proof_in, required_proof
from calib_serve.models import load_model
from calib_serve.scores import softmax

PRODUCT = "z = MatMul(x, w) y = Softmax(z)"
X = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
Z = X @ W
OTHER_FILE = {"outputs": "logits", "sha256": "0" * 64}


class Estimator:
    """A classifier whose classes come in another order than those of the artifact."""

    classes_ = np.array(["c", "b", "a"])

    def decision_function(self, X: Any) -> NDArray[Any]:
        return (np.asarray(X) @ W)[:, ::-1]


def raw(folder: Path, body: str = LAYER + PRODUCT, inputs: str = "float[n, 3] x", **options: str) -> Path:
    rows = "4" if "[4, 3]" in inputs else "n"
    onnx.save(graph(body, inputs, f"float[{rows}, 3] y", **options), folder / "raw.onnx")
    return folder / "raw.onnx"


def fuse(source: Path, fitted: Artifact, **options: Any) -> str:
    return fuse_onnx(source, fitted, source.parent / "out.onnx", **options).proof


@pytest.mark.parametrize("model", [None, {"outputs": "logits"}, OTHER_FILE])
def test_nothing_is_written_without_a_proof_and_unproven_is_written_down(
    model: dict[str, str] | None, tmp_path: Path
) -> None:
    fitted = artifact(TWO, classes=3, model=model or {"outputs": "logits"})
    with pytest.raises(FuseError, match=r"nothing shows that .*raw.onnx gives the scores .* --unproven"):
        fuse(raw(tmp_path), fitted)
    assert not (tmp_path / "out.onnx").exists()
    assert fuse(raw(tmp_path), fitted, unproven=True).startswith("unproven")
    (said,) = [
        p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props if p.key == "calib_serve.proof"
    ]
    assert said.startswith("unproven")


def test_the_file_that_the_fit_ran_is_known_by_its_hash_and_no_metadata_are_believed(tmp_path: Path) -> None:
    source = raw(tmp_path)
    fitted = artifact(TWO, classes=3, model={"outputs": "logits", "sha256": sha256(source)})
    assert "hash" in fuse(source, fitted)
    model = onnx.load(source)
    model.metadata_props.add(key="calib_serve.model", value=sha256(source))
    onnx.save(model, source)
    with pytest.raises(FuseError, match="was fitted for"):
        fuse(source, fitted)


def test_what_passed_a_seam_is_not_what_the_file_of_its_model_returns(tmp_path: Path) -> None:
    known = {"outputs": "logits", "sha256": sha256(raw(tmp_path)), "seam": "inference"}
    with pytest.raises(CalibServeError, match="nothing shows"):
        fuse(tmp_path / "raw.onnx", artifact(TWO, classes=3, model=known), outputs="logits")


@pytest.mark.parametrize(
    ("body", "inputs", "constants"),
    [
        (LAYER + PRODUCT, "float[n, 3] x", ""),
        (LAYER + PRODUCT, "float[1, 3] x", ""),
        (LAYER + PRODUCT, "float[4, 3] x", ""),
        (LAYER + "c = Cast <to: int = 1> (x) z = MatMul(c, w) y = Softmax(z)", "double[n, 3] x", ""),
        # A weight that may be given from outside has its own numbers where nobody does.
        (PRODUCT, "float[3, 3] w, float[n, 3] x", "float[3, 3] w = {1, 2, 0, 0, 1, -1, 2, 0, 1}"),
    ],
)  # fmt: skip
def test_a_graph_is_compared_whatever_its_batch_and_type(
    body: str, inputs: str, constants: str, tmp_path: Path
) -> None:
    source = raw(tmp_path, body, inputs, constants=constants)
    fitted = artifact(TWO, classes=3, model=OTHER_FILE)
    # Logits are known up to a constant of each row, as probabilities are.
    assert fuse(source, fitted, against=(X.astype("f8"), Z + 7)).startswith("60 rows")
    wrong = Z.copy()
    wrong[41] *= 1.01
    with pytest.raises(FuseError, match=r"1 of 60 rows \(1.7%\) differ by more than 0.001 .*, row 41 by"):
        fuse(source, fitted, against=(X, wrong))


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (lambda z: z[:, ::-1], "differ"),
        (lambda z: z[::-1], "differ"),
        (lambda z: 2 * z, "differ"),
        (lambda z: np.log(softmax(z) + 0.01), "differ"),
        (lambda z: np.where(np.arange(60)[:, None] == 3, z[::-1], z), "row 3 "),
        (lambda z: z[:59], "59 rows of scores"),
        (lambda z: z[:19], "at least 20"),
        (lambda z: z[:, :2], "3 classes"),
    ],
)
def test_other_scores_are_refused(spoilt: Any, why: str, tmp_path: Path) -> None:
    given = spoilt(Z)
    inputs = X[: len(given)] if len(given) < 20 else X
    with pytest.raises((FuseError, InputError), match=why):
        fuse(raw(tmp_path), artifact(TWO, classes=3), against=(inputs, given))
    assert [path.name for path in tmp_path.iterdir()] == ["raw.onnx"]


def test_what_the_probabilities_hide_the_calibrated_ones_show() -> None:
    """Logits of 50 and 100 are both sure; at a temperature of 25 they are not."""
    z = np.zeros((20, 2))
    z[:, 0] = 50
    cool = artifact(LogitMap.temperature(25.0), classes=2)
    with pytest.raises(FuseError, match="20 of 20 rows"):
        Against(cool, {"x": z}, z).prove(2 * z, "it")
    assert Against(artifact(classes=2), {"x": z}, z).prove(2 * z, "it").startswith("20 rows")


def test_a_value_at_the_edge_of_a_bin_is_no_difference() -> None:
    z = np.zeros((20, 2))
    table = ProbTable(np.array([[0.5]]), np.array([[0.1, 0.9]]))
    Against(artifact(table, classes=2), {"x": z}, z).prove(z + np.array([1e-9, 0.0]), "it")


def test_a_score_that_is_not_a_number_is_no_proof() -> None:
    z = np.zeros((20, 3))
    with pytest.raises(FuseError, match=r"1 of 20 rows .* row 5 by nan"):
        Against(artifact(classes=3), {"x": z}, z).prove(
            np.where(np.arange(20)[:, None] == 5, np.nan, z), "it"
        )


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a")])
def test_an_estimator_s_classes_are_matched_by_name(names: tuple[str, ...], tmp_path: Path) -> None:
    fitted = replace(artifact(TWO, classes=3), class_names=names)
    if names == ("a", "b", "c"):
        assert fuse(raw(tmp_path), fitted, against=Estimator(), inputs={"x": X}).startswith("60 rows")
        return
    with pytest.raises(FuseError, match="differ"):
        fuse(raw(tmp_path), fitted, against=Estimator(), inputs={"x": X})


def test_a_model_that_is_compared_with_needs_inputs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs inputs"):
        fuse(raw(tmp_path), artifact(TWO, classes=3), against=Estimator())


def test_a_file_of_scores_may_hold_their_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", inputs=X, logits=Z, labels=np.zeros(60, int))
    np.savez(tmp_path / "named.npz", x=X, logits=Z)
    np.savez(tmp_path / "alone.npz", logits=Z)
    np.savez(tmp_path / "x.npz", x=X)
    fitted = artifact(TWO, classes=3)
    for name in ("s.npz", "named.npz"):
        assert fuse(raw(tmp_path), fitted, against=tmp_path / name).startswith("60 rows")
    assert fuse(raw(tmp_path), fitted, against=tmp_path / "alone.npz", inputs=tmp_path / "x.npz")
    with pytest.raises(InputError, match="holds no inputs"):
        fuse(raw(tmp_path), fitted, against=tmp_path / "alone.npz")
    np.savez(tmp_path / "other.npz", z=X, logits=Z)
    with pytest.raises(FuseError, match="the model takes"):
        fuse(raw(tmp_path), fitted, against=tmp_path / "other.npz")


def kept(n: int = 32) -> Artifact:
    return replace(artifact(TWO, classes=3, model=OTHER_FILE), kept=KeptRows(hash_rows(X[:n]), Z[:n]))


def test_rows_that_the_fit_kept_are_found_under_any_name_in_any_order_and_precision(
    tmp_path: Path,
) -> None:
    fitted = Artifact.load(kept().save(tmp_path / "a"))
    given = {"labels": np.arange(60), "cal_inputs": X[::-1].astype("f8")}
    assert fuse(raw(tmp_path), fitted, inputs=given).startswith("32 rows")
    with pytest.raises(FuseError, match="of which it keeps rows"):
        fuse(raw(tmp_path), fitted, inputs={"x": X[20:]})
    other = raw(tmp_path, LAYER.replace("{1, 2", "{1, 3") + PRODUCT)
    with pytest.raises(FuseError, match="of 32 rows"):
        fuse(other, fitted, inputs=given)


def test_what_the_artifact_keeps_of_inputs_is_their_hashes() -> None:
    assert kept().kept.inputs.shape == (32, 32)  # type: ignore[union-attr]
    assert (hash_rows(X) == hash_rows(X.astype("f8"))).all()
    assert len(np.unique(hash_rows(X), axis=0)) == 60


def test_the_comparison_and_its_absence_are_not_asked_for_both() -> None:
    with pytest.raises(InputError, match="unproven"):
        ProofOptions(against="x.npz", unproven=True)


@pytest.mark.server
def test_an_estimator_s_file_is_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    labels = Z.argmax(axis=1)
    model = LogisticRegression().fit(X, labels)
    joblib.dump(model, tmp_path / "m.joblib")
    fitted = artifact(TWO, classes=3, model={"outputs": "probabilities"})
    found = required_proof(fitted, "", "it", ProofOptions(against=tmp_path / "m.joblib"), {"x": X})
    assert isinstance(found, Against)
    np.testing.assert_allclose(softmax(found.logits), model.predict_proba(X), atol=1e-6)
    (tmp_path / "m.pkl").write_bytes(b"no pickle")
    with pytest.raises(FuseError, match="could not be run"):
        required_proof(fitted, "", "it", ProofOptions(against=tmp_path / "m.pkl"), {"x": X})


def test_weights_in_another_file_are_part_of_the_hash(tmp_path: Path) -> None:
    def saved(weight: NDArray[Any]) -> Path:
        model = graph(PRODUCT, "float[n, 3] x", "float[n, 3] y")
        (tmp_path / "w.bin").unlink(missing_ok=True)  # else it is appended to
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype("f4"), "w"))
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        return tmp_path / "m.onnx"

    known = load_model(saved(W)).facts().sha256
    fitted = artifact(TWO, classes=3, model={"outputs": "logits", "sha256": known})
    assert "hash" in fuse(tmp_path / "m.onnx", fitted)
    before = sha256(tmp_path / "m.onnx")
    assert sha256(saved(2 * W)) == before
    with pytest.raises(FuseError, match="nothing shows"):
        fuse(tmp_path / "m.onnx", fitted)


def test_a_threshold_of_an_estimator_s_own_is_in_no_file_of_its_scores(tmp_path: Path) -> None:
    tuned = Estimator()
    tuned.best_threshold_ = 0.3  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="decides by a threshold of its own"):
        fuse(raw(tmp_path), artifact(TWO, classes=3), against=tuned, inputs={"x": X})


def test_what_a_file_says_of_its_proof_is_read(tmp_path: Path) -> None:
    proof = fuse(raw(tmp_path), artifact(TWO, classes=3), against=(X, Z))
    assert proof_in(tmp_path / "out.onnx") == proof
    with pytest.raises(ModelError, match="no file that a calibration was fused into"):
        proof_in(tmp_path / "raw.onnx")
