"""Repositories under the real tritonserver: what is asked for is given, signed, counted, and never half.

Both forms are served as they are written: the ensemble around Triton's onnxruntime backend, for which one of
the same name stands in, and the graph on the Python backend.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
from deciding import ACTS, acts_by_hand, choosing, deciding
from fuse_graphs import run
from live_server import until
from test_triton_repository import OTHER, STEP, K, artifact, model_file, tree
from triton_server import SERVER, Triton, needs_tritonserver, triton_on

from calib_serve import Bins, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import ModelError
from calib_serve.core.options.fuse import TritonOptions
from calib_serve.fuse import fuse_onnx, fuse_triton

pytestmark = pytest.mark.server

OUTPUTS = ("logits", "probabilities", "confidence", "predicted", "bin", "receipt")
SUBSETS = [s for n in range(1, 7) for s in itertools.combinations(OUTPUTS, n)]
MODELS = ["step", "alone"]
CPU = TritonOptions(device="cpu")
ALONE = TritonOptions(device="cpu", backend="python")
IMAGES = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype("f4")

each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_tritonserver()
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def triton(folder: Path) -> Iterator[Triton]:
    """A server that polls: both forms, and an ensemble that decides."""
    repository, raw = folder / "models", model_file(folder)
    fuse_triton(raw, STEP, repository, CPU, name="step", unproven=True)
    fuse_triton(raw, STEP, repository, ALONE, name="alone", unproven=True)
    decides = replace(deciding(STEP, "aps"), contract=ACTS, choice=choosing(K))
    fuse_triton(raw, decides, repository, CPU, name="deciding", unproven=True)
    polling = ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=true"]
    with triton_on(repository, folder / "server", *polling) as triton:
        assert triton.ready(), triton.log.read_text()
        yield triton


@pytest.fixture(scope="module")
def expected(folder: Path, triton: Triton) -> dict[str, np.ndarray]:
    """What the fused graph gives for IMAGES."""
    fuse_onnx(folder / "raw.onnx", STEP, folder / "all.onnx", returns="all", unproven=True)
    return run(str(folder / "all.onnx"), {"image": IMAGES})


def ring(folder: Path) -> Keyring:
    return Keyring.load(folder / "server" / "keyring.json")


def post(
    triton: Triton,
    model: str,
    images: np.ndarray = IMAGES,
    outputs: tuple[str, ...] = (),
    *,
    version: str = "",
) -> httpx.Response:
    sent = {"name": "image", "datatype": "FP32", "shape": images.shape, "data": images.ravel().tolist()}
    wanted = [{"name": name} for name in outputs]
    body = json.dumps({"inputs": [sent], **({"outputs": wanted} if outputs else {})})
    where = f"{triton.http}/v2/models/{model}" + (f"/versions/{version}" if version else "")
    return triton.client.post(f"{where}/infer", content=body)


def over_grpc(
    triton: Triton, model: str, images: np.ndarray, outputs: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    sent = grpc.InferInput("image", list(images.shape), "FP32")
    sent.set_data_from_numpy(images)
    wanted = [grpc.InferRequestedOutput(name) for name in outputs] or None
    reply = triton.grpc.infer(model, [sent], outputs=wanted)
    return {one.name: reply.as_numpy(one.name) for one in reply.get_response().outputs}


def given(reply: httpx.Response) -> dict[str, list[Any]]:
    assert reply.status_code == 200, reply.text
    return {one["name"]: one["data"] for one in reply.json()["outputs"]}


def predictions(triton: Triton, model: str, version: str = "1") -> float:
    return sum(triton.counted("calib_predictions_total", model, version).values())


def test_sets_and_abstention_pass_the_step_that_signs(
    triton: Triton, expected: dict[str, np.ndarray]
) -> None:
    model, fitted = "deciding", deciding(STEP, "aps")
    assert fitted.sets is not None
    assert fitted.abstain is not None
    before, probs = predictions(triton, model), expected["probabilities"]
    shown = given(post(triton, model, outputs=("set", "abstain", "act", "decision")))
    assert np.reshape(shown["set"], (-1, K)).tolist() == fitted.sets(probs).tolist()
    assert shown["abstain"] == fitted.abstain(probs).tolist()
    assert shown["act"] == acts_by_hand(probs)
    assert shown["decision"] == choosing(K).names(probs)
    also = over_grpc(triton, model, IMAGES)
    assert set(also) == {*OUTPUTS, "set", "abstain", "act", "decision"}
    assert [one.decode() for one in also["decision"].ravel()] == shown["decision"]
    assert (also["set"].tolist(), also["abstain"].ravel().tolist()) == (
        fitted.sets(probs).tolist(),
        shown["abstain"],
    )
    assert predictions(triton, model) - before == 2 * len(IMAGES)


@each_model
def test_every_subset_of_outputs_is_given_and_every_prediction_counted_once(
    model: str, folder: Path, triton: Triton, expected: dict[str, np.ndarray]
) -> None:
    before = predictions(triton, model)
    for outputs in SUBSETS:
        shown = given(post(triton, model, outputs=outputs))
        also = over_grpc(triton, model, IMAGES, outputs)
        assert set(shown) == set(also) == set(outputs)
        for name in set(outputs) - {"receipt"}:
            np.testing.assert_allclose(np.ravel(shown[name]), np.ravel(expected[name]), rtol=1e-5)
            np.testing.assert_allclose(np.ravel(also[name]), np.ravel(expected[name]), rtol=1e-5)
        for token in [
            *shown.get("receipt", []),
            *(t.decode() for t in also.get("receipt", np.empty(0)).flat),
        ]:
            assert ring(folder).verify(token).model == model
    assert predictions(triton, model) - before == len(SUBSETS) * 2 * len(IMAGES)


@each_model
def test_receipts_say_what_was_predicted_and_sums_follow(
    model: str, folder: Path, triton: Triton, expected: dict[str, np.ndarray]
) -> None:
    name = "calib_predictions_confidence_total"
    before = sum(triton.counted(name, model).values())
    tokens = given(post(triton, model))["receipt"]
    receipts = [ring(folder).verify(token) for token in tokens]
    assert [r.predicted for r in receipts] == expected["predicted"].tolist()
    assert [r.confidence for r in receipts] == pytest.approx(expected["confidence"].tolist())
    assert {(r.model, r.version) for r in receipts} == {(model, "1")}
    summed = sum(triton.counted(name, model).values()) - before
    assert summed == pytest.approx(expected["confidence"].sum(), rel=1e-6)


def test_a_prediction_that_is_nan_is_never_signed_and_counted_as_invalid(triton: Triton) -> None:
    images = IMAGES.copy()
    images[1] = np.nan

    def invalid(model: str) -> float:
        name = f'calib_invalid_outputs_total{{model="{model}",version="1"}} '
        (line,) = [one for one in triton.scrape().splitlines() if one.startswith(name)]
        return float(line.split()[-1])

    before = {model: (predictions(triton, model), invalid(model)) for model in MODELS}
    shown = over_grpc(triton, "step", images)
    assert [bool(token) for token in shown["receipt"].flat] == [True, False, True, True]
    assert np.isnan(shown["probabilities"][1]).all()
    with pytest.raises(grpc.InferenceServerException, match="NaN or infinite for row 1"):
        over_grpc(triton, "alone", images)
    after = {model: (predictions(triton, model), invalid(model)) for model in MODELS}
    assert after["step"] == (before["step"][0] + 3, before["step"][1] + 1)
    assert after["alone"] == (before["alone"][0], before["alone"][1] + 1)


def test_requests_that_run_as_one_batch_get_their_own_answers(
    triton: Triton, expected: dict[str, np.ndarray]
) -> None:
    images = np.concatenate([IMAGES, np.full((1, 3, 2, 2), np.nan, "f4")])
    told: list[Any] = [None] * len(images)
    for i, image in enumerate(images):
        sent = grpc.InferInput("image", [1, 3, 2, 2], "FP32")
        sent.set_data_from_numpy(image[None])
        triton.grpc.async_infer(
            "alone", [sent], lambda result, error, i=i: told.__setitem__(i, (result, error))
        )
    until(lambda: all(told))
    for (result, error), row in zip(told[:4], expected["probabilities"], strict=True):
        assert error is None
        np.testing.assert_allclose(result.as_numpy("probabilities")[0], row, rtol=1e-5)
    assert "NaN or infinite for row 0" in str(told[4][1])


@pytest.mark.last
@each_model
def test_another_version_takes_over_and_a_refused_one_changes_nothing(
    model: str, folder: Path, triton: Triton
) -> None:
    settings = CPU if model == "step" else ALONE
    before, log = tree(folder / "models"), triton.log.read_text()
    with pytest.raises(ModelError, match=r"\(n, 4\)"):
        fuse_triton(
            folder / "raw.onnx", OTHER, folder / "models", settings, name=model, version=2, unproven=True
        )
    assert tree(folder / "models") == before
    other = artifact(
        LogitMap.temperature(9.0), classes=K, class_names=STEP.class_names, reference=Bins.zeros(10)
    )
    fuse_triton(folder / "raw.onnx", other, folder / "models", settings, name=model, version=2, unproven=True)
    raw = run(str(folder / "raw.onnx"), {"image": IMAGES})["z"]

    answered = 0

    def moved() -> bool:
        """Each answer is that of one version, and so are its receipts."""
        nonlocal answered
        shown = given(post(triton, model))
        new = np.allclose(np.reshape(shown["probabilities"], (-1, K)), other.of_logits(raw), atol=1e-6)
        assert {ring(folder).verify(t).version for t in shown["receipt"]} == {"2" if new else "1"}
        answered += new * len(IMAGES)
        return new and triton.ready(model, "2") and not triton.ready(model, "1")

    until(moved)
    given(post(triton, model, version="2"))
    assert predictions(triton, model, "2") == answered + len(IMAGES)
    assert post(triton, model, version="1").status_code == 503  # Triton: not ready
    since = triton.log.read_text().removeprefix(log)
    assert f"loading: {model}:2" in since
    assert "failed" not in since.lower(), since


def caching(path: Path) -> None:
    """Let Triton keep the responses of a packed model."""
    path.write_text(path.read_text() + "\nresponse_cache: { enable: true }\n")


def test_no_receipt_comes_out_of_a_cache(folder: Path, tmp_path: Path) -> None:
    """Neither where a model is loaded with one, nor where its ensemble gets one while the server runs."""
    models, raw = tmp_path / "models", model_file(tmp_path)
    fuse_triton(raw, STEP, models, ALONE, name="alone", unproven=True)
    fuse_triton(raw, STEP, models, ALONE, name="unsigned", receipts=False, unproven=True)
    fuse_triton(raw, STEP, models, CPU, name="step", unproven=True)
    fuse_triton(raw, STEP, models, CPU, name="inner", unproven=True)
    for name in ("alone", "unsigned", "inner_onnx"):
        caching(models / name / "config.pbtxt")
    options = ["--cache-config=local,size=1048576", f"--cache-directory={SERVER.parents[1] / 'caches'}"]
    options += ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false"]
    options += ["--strict-readiness=false"]
    with triton_on(models, tmp_path / "server", *options) as triton:
        until(lambda: triton.ready("step") and triton.ready("inner") and triton.ready("unsigned"))
        assert not triton.ready("alone")
        assert "ModelError: alone has response_cache" in triton.log.read_text()
        for name in ("step", "inner"):  # the graph's own cache has no receipts in it
            receipts = [t for _ in range(3) for t in given(post(triton, name))["receipt"]]
            assert len(set(receipts)) == 3 * len(IMAGES) == predictions(triton, name)
        assert given(post(triton, "unsigned")) == given(post(triton, "unsigned"))
        caching(models / "step" / "config.pbtxt")

        def refused() -> bool:
            reply = post(triton, "step")
            return reply.status_code != 200 and "step has response_cache" in reply.text

        until(refused)
        since = [post(triton, "step").status_code for _ in range(3)]
        assert 200 not in since


def test_a_server_that_misreads_numpy_s_arrays_does_not_start(folder: Path, tmp_path: Path) -> None:
    """Built for numpy 1 and given numpy 2, it read the first prediction for each, and sent empty receipts."""
    fuse_triton(model_file(tmp_path), STEP, tmp_path / "models", ALONE, name="alone", unproven=True)
    with triton_on(tmp_path / "models", tmp_path / "server", "--exit-on-error=true", numpy=2) as triton:
        assert not triton.ready()
        told = triton.log.read_text()
    assert "failed to load 'alone' version 1: Internal: ModelError" in told
    assert 'install "numpy<2" in its Python, or take Triton 25.01 or newer' in told
