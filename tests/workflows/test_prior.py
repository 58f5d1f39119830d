"""Class shares of real logits: recovered without labels, corrected for, and left alone where more changed."""

from __future__ import annotations

import numpy as np
import pytest
from command_line import calib_serve
from sizes import sized

from calib_serve import Artifact, calibrate, calibrate_model, estimate_prior, with_prior
from calib_serve.core.errors import InputError
from calib_serve.metrics import classwise_ece, nll
from calib_serve.metrics.confusion import Confusion

SHARES = np.array([0.3, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05])


@pytest.fixture(scope="module")
def real(data_dir):
    return {
        name: np.load(data_dir / "logits" / f"{name}.npz")
        for name in ("kull_resnet110_c10", "c10LT_resnet110")
    }


def rows(labels, shares, n, rng):
    """Rows whose labels have these shares: label shift and nothing else."""
    each = rng.choice(len(shares), n, p=shares)
    at = [np.flatnonzero(labels == k) for k in range(len(shares))]
    return np.concatenate([rng.choice(at[k], (each == k).sum()) for k in range(len(shares))])


def cal(file):
    return file["cal_logits"], file["cal_labels"]


@pytest.mark.parametrize("method", ["temperature", "structured-vector"])
def test_shares_are_recovered_and_the_correction_helps(real, method) -> None:
    file = real["kull_resnet110_c10"]
    rng = np.random.default_rng(0)
    artifact = calibrate(*cal(file), method, outputs="logits")
    covered = []
    for _ in range(sized(ci=8, nightly=400)):
        at = rows(file["test_labels"], SHARES, 2000, rng)
        found = estimate_prior(artifact, file["test_logits"][at])
        assert found.kind == "moved"
        covered.append((found.counted.low <= SHARES) & (found.counted.high >= SHARES))
    assert np.mean(covered) > 0.88
    z, y = file["test_logits"][at], file["test_labels"][at]
    known, estimated = with_prior(artifact, SHARES), with_prior(artifact, found)
    for made in (known, estimated):
        assert nll(made.probs(z), y) < nll(artifact.probs(z), y) - 0.005
        assert classwise_ece(made.probs(z), y) < classwise_ece(artifact.probs(z), y)


def test_counts_hold_where_classes_are_not_calibrated(real) -> None:
    """A temperature leaves a model of long-tailed training wrong by class."""
    file = real["c10LT_resnet110"]
    rng = np.random.default_rng(1)
    z, y = cal(file)
    half = rng.permutation(len(y))
    fit, rest = half[: len(y) // 2], half[len(y) // 2 :]
    artifact = calibrate(z[fit], y[fit], "temperature", outputs="logits")
    found = estimate_prior(artifact, z[rest][rows(y[rest], SHARES, 3000, rng)])
    assert found.kind == "moved"
    assert np.abs(found.counted.shares - SHARES).max() < 0.03


def test_a_real_shift_of_more_than_shares_is_not_corrected(data_dir, tmp_path) -> None:
    file = np.load(data_dir / "logits" / "pneumonia_cnn_inhouse.npz")
    artifact = calibrate(*cal(file), "temperature", outputs="logits")
    found = estimate_prior(artifact, file["test_logits"])
    assert found.kind == "other"
    with pytest.raises(InputError, match="do not correct"):
        with_prior(artifact, found)


def made(n, shares, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    return (2 * (rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[y])).astype("f4"), y


def test_a_fit_with_a_prior_keeps_all_that_monitoring_needs() -> None:
    z, y = made(3000, [0.5, 0.3, 0.2], 0)
    new = {"a": 0.2, "b": 0.2, "c": 0.6}
    plain, fitted = (
        calibrate(z, y, "temperature", class_names="abc", prior=p, outputs="logits") for p in (None, new)
    )
    np.testing.assert_allclose(fitted.probs(z), with_prior(plain, new).probs(z), atol=1e-12)
    assert fitted.fit.prior.new == (0.2, 0.2, 0.6)
    assert fitted.metrics_after["ece"] == plain.metrics_after["ece"]
    assert "before the correction of class shares" in fitted.data["measured_on"]
    confusion = Confusion.of(fitted.data["confusion"], 3)
    assert confusion.on == "held-out folds"
    assert confusion.count.sum() == 3000
    traffic, t = made(3000, [0.2, 0.2, 0.6], 1)
    served = fitted.probs(traffic)
    assert estimate_prior(fitted, traffic).kind == "same"
    assert estimate_prior(plain, traffic).kind == "moved"
    reference = fitted.reference
    assert reference.n == pytest.approx(3000, rel=0.01)
    assert reference.mean_confidence() == pytest.approx(served.max(axis=1).mean(), abs=0.02)
    assert reference.accuracy() == pytest.approx((served.argmax(axis=1) == t).mean(), abs=0.02)
    shares = np.array(fitted.reference_classes) / sum(fitted.reference_classes)
    np.testing.assert_allclose(shares, np.bincount(served.argmax(axis=1)) / 3000, atol=0.03)


def test_auto_leaves_out_what_cannot_be_corrected() -> None:
    z, y = made(600, [0.5, 0.3, 0.2], 2)
    artifact = calibrate(z, y, prior=[0.2, 0.2, 0.6], outputs="logits")
    tried = {score.method for score in artifact.selection.scores}
    assert not tried & {"histogram-mass"}
    assert artifact.fit.prior.how == "given"
    with pytest.raises(InputError, match="cannot be corrected"):
        calibrate(z, y, "histogram-mass", prior=[0.2, 0.2, 0.6], outputs="logits")


def test_weights_that_differ_within_a_class_leave_no_confusion() -> None:
    z, y = made(400, [0.5, 0.3, 0.2], 3)
    weight = np.random.default_rng(0).random(400) + 0.1
    artifact = calibrate(z, y, "temperature", sample_weight=weight, outputs="logits")
    assert "differ within a class" in artifact.data["confusion"]["unknown"]
    found = estimate_prior(artifact, z)
    assert found.kind == "unknown"
    with pytest.raises(InputError, match="nothing to correct"):
        with_prior(artifact, found)
    balanced = calibrate(z, y, "temperature", class_weight="balanced", outputs="logits")
    np.testing.assert_allclose(balanced.data["class_shares"], 1 / 3)
    assert Confusion.of(balanced.data["confusion"], 3).count.sum() == 400


def test_traffic_that_cannot_be_is_refused() -> None:
    z, y = made(400, [0.5, 0.3, 0.2], 4)
    artifact = calibrate(z, y, "temperature", outputs="logits")
    for bad in (np.full((5, 3), np.nan), np.empty((0, 3)), np.zeros((5, 4))):
        with pytest.raises(InputError):
            estimate_prior(artifact, bad)
    with pytest.raises(InputError, match="lie in"):
        estimate_prior(artifact, z, calibrated=True)
    with pytest.raises(InputError, match="fit it again"):
        estimate_prior(Artifact((), method="none", classes=3), z)
    assert estimate_prior(artifact, artifact.probs(z), calibrated=True).kind == "same"
    one = calibrate(z[:, 1] - z[:, 0], y > 0, "platt", outputs="logit", prior=[0.1, 0.9])
    assert estimate_prior(one, z[:, 1] - z[:, 0]).kind == "moved"


def test_a_calibration_inside_the_model_takes_a_prior_too() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    z, y = made(300, [0.5, 0.3, 0.2], 5)
    inputs = z.reshape(300, 1, 1, 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3)).eval()
    with torch.no_grad():
        model[1].weight.copy_(2 * torch.eye(3))
    artifact = calibrate_model(model, inputs, y, "neural-clamping-efficient", prior=[0.2, 0.2, 0.6])
    assert artifact.fit.prior.new == (0.2, 0.2, 0.6)
    assert artifact.reference.n == pytest.approx(300)
    assert Confusion.of(artifact.data["confusion"], 3).count.sum() == 300
    with pytest.raises(InputError, match="masked head learns"):
        calibrate_model(model, inputs, y, "masked-head", prior=[0.2, 0.2, 0.6])


def run(*arguments, code=0):
    found = calib_serve(*arguments)
    assert found.exit_code == code, found.output
    return found.stdout


def test_the_commands_estimate_correct_and_refuse(tmp_path) -> None:
    z, y = made(3000, [0.5, 0.3, 0.2], 6)
    traffic, _ = made(3000, [0.2, 0.2, 0.6], 7)
    np.savez(tmp_path / "cal.npz", logits=z, labels=y)
    np.savez(tmp_path / "traffic.npz", logits=traffic)
    (tmp_path / "shares.txt").write_text("0 = 0.2\n1 = 0.2\n2 = 0.6\n")
    fit = ("fit", tmp_path / "cal.npz", "--method", "temperature", "-o")
    run(*fit, tmp_path / "plain")
    for i, shares in enumerate(("0.2,0.2,0.6", tmp_path / "shares.txt")):
        run(*fit, tmp_path / str(i), "--prior", shares)
    fitted = [Artifact.load(tmp_path / str(i)) for i in range(2)]
    assert fitted[0].fingerprint == fitted[1].fingerprint
    ask = ("refit", "prior", tmp_path / "plain", tmp_path / "traffic.npz")
    run(*ask, "-o", tmp_path / "new")
    made_of = Artifact.load(tmp_path / "new")
    np.testing.assert_allclose(made_of.probs(traffic), fitted[0].probs(traffic), atol=0.1)
    told = estimate_prior(Artifact.load(tmp_path / "plain"), traffic)
    assert told.kind == "moved"
    assert told.counted is not None
    assert np.abs(told.counted.shares - [0.2, 0.2, 0.6]).max() < 0.05
    refused = calib_serve("refit", "prior", tmp_path / "0", ask[-1], "-o", tmp_path / "x")
    assert "nothing to correct" in refused.stderr
    assert not (tmp_path / "x").exists()
    for bad in ("0.2,x", "{bad"):
        run(*fit, tmp_path / "bad", "--prior", bad, code=2)
