"""The handler in this process, inside TorchServe's own context: what models and subclasses may do to it."""

from __future__ import annotations

import importlib.util
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_server import CLASSES, WIDTH, inputs, network, temperature_artifact, torchscript

from calib_serve import Keyring
from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET
from calib_serve.fuse.torchserve import pack, pack_around
from calib_serve.fuse.torchserve.archive import read_archive, write_archive
from calib_serve.fuse.torchserve.shipped_files import shipped
from calib_serve.receipts import group_number
from calib_serve.serve import observer
from calib_serve.serve.classifier import CalibratedClassifier, Prediction, device_of
from calib_serve.serve.emit import Emitter
from calib_serve.serve.wrapped import CalibratedWrapper

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.context import Context, RequestProcessor
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
    from ts.torch_handler.request_envelope.json import JSONEnvelope


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Metrics go to a list, signals and exit hooks are left alone, receipts are on."""
    sent: list[str] = []
    monkeypatch.setattr(observer, "Emitter", lambda interval: Emitter(write=sent.append, interval=3600))
    monkeypatch.setattr(observer, "end_cleanly", lambda flush: lambda: None)
    Keyring.new().save(tmp_path / "keyring.json")
    monkeypatch.setenv(KEYRING, str(tmp_path / "keyring.json"))
    return sent


def context(path: Path, folder: Path, *, gpu: int | None = None) -> Context:
    """What TorchServe hands to a handler."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    config = dict(read_archive(path).config)
    return Context("digits", str(folder), manifest, 8, gpu, "0.12", model_yaml_config=config)


def started(
    tmp_path: Path, handler: CalibratedClassifier | None = None, **options: Any
) -> tuple[Any, Context]:
    model = torchscript(tmp_path / "net.pt", options.pop("net", None))
    artifact = options.pop("artifact", temperature_artifact())
    path = pack(model, artifact, tmp_path, name="digits", **options)
    ctx = context(path, tmp_path / "unpacked")
    handler = handler or CalibratedClassifier()
    handler.initialize(ctx)
    return handler, ctx


def ask(handler: Any, ctx: Context, *bodies: Any) -> list[tuple[int, Any]]:
    ctx.request_processor = [RequestProcessor({}) for _ in bodies]
    replies = handler.handle([{"body": body} for body in bodies], ctx)
    assert len(replies) == len(bodies)
    for i in range(len(bodies)):
        for name, value in ctx.get_response_headers(i).items():
            assert isinstance(value, str)
            assert value.isascii()
            assert value.isprintable(), f"{name} would end the worker"
    return [(ctx.get_response_status(i)[0], json.loads(reply)) for i, reply in enumerate(replies)]


def test_a_reply_has_what_was_asked_for(tmp_path: Path) -> None:
    handler, ctx = started(tmp_path, top=3, probabilities=False, abstain_below=0.99)
    ((status, reply),) = ask(handler, ctx, inputs(1)[0].tolist())
    assert status == 200
    assert "probabilities" not in reply
    assert reply["top"][0]["class"] == reply["predicted"]
    assert len(reply["top"]) == 3
    assert reply["abstain"] is True
    assert reply["label"] == f"digit {reply['predicted']}"


class Moody(torch.nn.Module):
    """Raises where an input's first number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] > 100).any()):
            raise RuntimeError("no")
        return self.net(x)


def test_an_input_that_the_model_raises_on_is_alone_in_failing(tmp_path: Path) -> None:
    handler, ctx = started(tmp_path, net=Moody())
    xs = inputs(5).tolist()
    xs[2][0] = 200.0
    outcomes = ask(handler, ctx, *xs)
    assert [status for status, _ in outcomes] == [200, 200, 500, 200, 200]
    assert outcomes[2][1]["message"] == "the model failed on this input"


@pytest.mark.parametrize("error", [ValueError("x\n[METRICS]y"), SystemExit(3), KeyError("k")])
def test_whatever_a_subclass_raises_costs_one_request(tmp_path: Path, error: BaseException) -> None:
    class Handler(CalibratedClassifier):
        def preprocess(self, payload: Any) -> Any:
            if payload == "read":
                raise error
            return super().preprocess(inputs(1)[0].tolist())

        def postprocess(self, prediction: Prediction) -> Any:
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen == 2:
                raise error
            return super().postprocess(prediction)

    handler, ctx = started(tmp_path, Handler())
    outcomes = ask(handler, ctx, "fine", "read", "write", "fine")
    assert [status for status, _ in outcomes] == [200, 400, 500, 200]
    assert "METRICS" not in json.dumps(outcomes)


def test_a_reply_that_json_cannot_hold_is_a_500_and_not_broken_json(tmp_path: Path) -> None:
    class Handler(CalibratedClassifier):
        def postprocess(self, prediction: Prediction) -> Any:
            return {"confidence": float("nan")} if prediction.receipt else np.float32(1)

    handler, ctx = started(tmp_path, Handler())
    assert ask(handler, ctx, inputs(1)[0].tolist())[0][0] == 500


def test_items_of_two_sizes_run_apart_and_come_back_in_order(tmp_path: Path) -> None:
    class Padded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(torch.nn.functional.pad(x, [0, 16 - x.shape[1]]))

    artifact = temperature_artifact(model={"input_shape": [-1]})
    handler, ctx = started(tmp_path, net=Padded(), artifact=artifact)
    short, full = [1.0] * 4, [1.0] * 4 + [0.0] * (WIDTH - 4)
    replies = [reply for _, reply in ask(handler, ctx, short, full, short)]
    np.testing.assert_allclose(replies[0]["probabilities"], replies[1]["probabilities"], rtol=1e-5)
    assert replies[0]["probabilities"] == replies[2]["probabilities"]


def test_a_model_that_returns_probabilities_is_calibrated_through_its_logits(tmp_path: Path) -> None:
    net = torch.nn.Sequential(network(), torch.nn.Softmax(1))
    handler, ctx = started(tmp_path, net=net, outputs="probabilities")
    x = inputs(1)
    ((_, reply),) = ask(handler, ctx, x[0].tolist())
    with torch.inference_mode():
        wanted = temperature_artifact().probs(network()(torch.from_numpy(x)).numpy())[0]
    np.testing.assert_allclose(reply["probabilities"], wanted, rtol=1e-4)


def test_a_wrong_number_of_classes_is_found_when_the_model_loads(tmp_path: Path) -> None:
    net = torch.nn.Linear(WIDTH, CLASSES + 1).eval()
    with pytest.raises(ModelError, match="returns 11 classes, the artifact is for 10"):
        started(tmp_path, net=net)


def test_a_model_file_that_was_exchanged_does_not_load(tmp_path: Path) -> None:
    path = pack(torchscript(tmp_path / "net.pt"), temperature_artifact(), tmp_path, name="digits")
    ctx = context(path, tmp_path / "unpacked")
    torchscript(tmp_path / "unpacked" / "model.pt", torch.nn.Linear(WIDTH, CLASSES))
    with pytest.raises(ModelError, match="not the file that was packed"):
        CalibratedClassifier().initialize(ctx)


def test_without_a_keyring_there_is_no_receipt_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(KEYRING)
    handler, ctx = started(tmp_path)
    ((status, reply),) = ask(handler, ctx, inputs(1)[0].tolist())
    assert status == 200
    assert "receipt" not in reply
    assert "receipts are off" in caplog.text


def test_when_monitoring_breaks_the_predictions_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: list[str]
) -> None:
    handler, ctx = started(tmp_path)
    before = ask(handler, ctx, *inputs(8).tolist())

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Keyring, "sign", broken)
    handler._observer._sums = []
    after = ask(handler, ctx, *inputs(8).tolist())
    for (_, was), (status, now) in zip(before, after, strict=True):
        assert status == 200
        assert was.pop("receipt")
        assert was == now
    handler._observer.flush()
    text = "".join(in_this_process)
    assert "calib_monitor_errors_total.Count:8.0|#stage:receipt" in text
    assert "calib_monitor_errors_total.Count:1.0|#stage:record" in text


def test_a_request_names_its_segment_and_group_however_its_headers_are_spelled(tmp_path: Path) -> None:
    handler, ctx = started(tmp_path)
    told: list[dict[str, str]] = [
        {"X-Calib-Segment": "north", "x-calib-group": "patient 7"},
        {"x-calib-group": "patient 7"},
        {},
        {"x-calib-segment": "s" * 1000},
    ]
    ctx.request_processor = [RequestProcessor(headers) for headers in told]
    bodies = [inputs(1)[0].tolist(), inputs(1)[0].tolist(), "no input", inputs(1)[0].tolist()]
    replies = [json.loads(reply) for reply in handler.handle([{"body": body} for body in bodies], ctx)]
    ring = Keyring.load(tmp_path / "keyring.json")
    first, second, last = (ring.verify(replies[i]["receipt"]) for i in (0, 1, 3))
    assert (first.segment, second.segment, last.segment) == ("north", "", "s" * 63)
    assert first.group == second.group == group_number("patient 7")
    assert last.group == 0
    assert "receipt" not in replies[2]


def test_a_label_budget_says_whose_labels_are_wanted_and_signs_the_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LABEL_BUDGET, "0.25")
    handler, ctx = started(tmp_path)
    replies = [reply for _, reply in ask(handler, ctx, *inputs(200).tolist())]
    ring = Keyring.load(tmp_path / "keyring.json")
    receipts = [ring.verify(reply["receipt"]) for reply in replies]
    assert {one.inclusion for one in receipts} == {0.25}
    assert [reply.get("label_wanted", True) for reply in replies] == [one.wanted for one in receipts]
    assert 20 < sum(one.wanted for one in receipts) < 90


def test_an_empty_request_has_its_reason(tmp_path: Path) -> None:
    handler, ctx = started(tmp_path)
    outcomes = ask(handler, ctx, None, b"", "", bytearray())
    assert {status for status, _ in outcomes} == {400}
    assert handler.handle([], ctx) == []


def test_a_worker_without_a_gpu_runs_on_the_cpu() -> None:
    ctx = Context("m", "", {}, 1, None, "0.12")
    assert device_of(ctx) == "cpu"


def wrapped(tmp_path: Path, handler: str) -> tuple[CalibratedWrapper, Context]:
    """An archive with one of TorchServe's own handlers, packed again and about to be loaded."""
    fields = {"handler": handler, "serializedFile": "net.pt"}
    files = {"net.pt": torchscript(tmp_path / "net.pt")}
    old = write_archive(tmp_path / "old.mar", files, name="digits", version="1", **fields)
    path = pack_around(old, temperature_artifact(), tmp_path / "store")
    return CalibratedWrapper(), context(path, tmp_path / "unpacked")


def test_a_handler_of_torchserve_s_own_is_calibrated_by_name_and_in_its_envelope(tmp_path: Path) -> None:
    handler, ctx = wrapped(tmp_path, "base_handler")
    with warnings.catch_warnings():  # its way of loading TorchScript is deprecated, its yaml stays open
        warnings.simplefilter("ignore")
        handler.initialize(ctx)
        ctx.metrics = MetricsCacheYamlImpl(config_file_path=str(shipped("handlers/metrics.yaml")))
    ctx.metrics.initialize_cache()
    envelope = JSONEnvelope(handler.handle)  # as with service_envelope=json
    x = inputs(6, seed=14)
    with torch.inference_mode():
        wanted = temperature_artifact().probs(network()(torch.from_numpy(x)).numpy())
    for rows in (slice(0, 1), slice(0, 6)):
        ctx.request_processor = [RequestProcessor({})]
        (reply,) = envelope.handle([{"body": {"instances": x[rows].tolist()}}], ctx)
        np.testing.assert_allclose(np.exp(json.loads(reply)["predictions"]), wanted[rows], atol=1e-6)
        # Of several rows none is the request's own prediction, so none has a receipt.
        assert ("x-calib-receipt" in ctx.get_response_headers(0)) == (rows.stop == 1)


@pytest.mark.skipif(importlib.util.find_spec("captum") is not None, reason="what it needs is here")
@pytest.mark.parametrize("handler", ["image_classifier", "text_classifier"])
def test_a_handler_whose_packages_are_missing_says_which(tmp_path: Path, handler: str) -> None:
    wrapper, ctx = wrapped(tmp_path, handler)
    with pytest.raises(ModelError, match=f"'{handler}' needs the package '(captum|torchvision)'"):
        wrapper.initialize(ctx)
