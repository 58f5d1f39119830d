"""The handler in this process, inside TorchServe's own context: what models and subclasses may do to it."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deciding import IN_SEGMENTS, acts_by_hand
from live_server import CLASSES, WIDTH, exported, inputs, network, temperature_artifact

from calib_serve import Artifact, Keyring
from calib_serve.artifact import SourceMaps
from calib_serve.core.errors import ModelError
from calib_serve.receipts import group_number
from calib_serve.receipts.environment import LABEL_BUDGET
from calib_serve.scores import softmax
from calib_serve.torchserve import pack, pack_around
from calib_serve.torchserve.archive._archive import read_archive, write_archive
from calib_serve.torchserve.classifier import CalibratedClassifier
from calib_serve.torchserve.wrapped import CalibratedWrapper

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.context import Context, RequestProcessor


pytestmark = pytest.mark.usefixtures("sent")


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
    model = exported(tmp_path / "net.pt2", options.pop("net", None))
    artifact = options.pop("artifact", temperature_artifact())
    path = pack(model, artifact, tmp_path, name="digits", **options, unproven=True)
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


def test_a_reply_says_act_by_the_contract_and_the_segment_as_its_receipt_will_count(tmp_path: Path) -> None:
    fitted = replace(temperature_artifact(), contract=IN_SEGMENTS)
    handler, ctx = started(tmp_path, artifact=fitted, abstain_below=0.3)
    x, ring = 3 * inputs(30, seed=3), Keyring.load(tmp_path / "keyring.json")  # larger, and more is sure
    said = set()
    for segment in ("", "nord", "süd"):
        ctx.request_processor = [RequestProcessor({})]
        body = {"instances": x.tolist(), **({"parameters": {"segment": segment}} if segment else {})}
        (text,) = handler.handle([{"body": body}], ctx)
        for reply in json.loads(text)["predictions"]:
            receipt = ring.verify(reply["receipt"])
            assert receipt.segment == segment
            (by_hand,) = acts_by_hand(np.array([reply["probabilities"]]), segment)
            assert (
                reply["act"]
                is by_hand
                is fitted.contract.acts_on(receipt.confidence, receipt.predicted, receipt.segment)
            )
            said.add((segment, reply["act"]))
    assert len(said) == 6, "both answers in every segment"


class Sure(torch.nn.Module):
    """Returns probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.net(x), 1)


@pytest.mark.parametrize(("net", "outputs"), [(Sure, "logits"), (network, "probabilities")])
def test_a_model_that_returns_another_kind_of_scores_than_the_archive_says_does_not_load(
    net: Any, outputs: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"the model returns .*, and the archive says .* --outputs"):
        started(tmp_path, net=net(), outputs=outputs)


class Moody(torch.nn.Module):
    """Raises where an input's first number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x[:, 0] <= 100).all())
        return self.net(x)


def test_an_input_that_the_model_raises_on_is_alone_in_failing(tmp_path: Path) -> None:
    handler, ctx = started(tmp_path, net=Moody())
    xs = inputs(5).tolist()
    xs[2][0] = 200.0
    outcomes = ask(handler, ctx, *xs)
    assert [status for status, _ in outcomes] == [200, 200, 500, 200, 200]
    assert outcomes[2][1]["message"] == "the model failed on this input"


@pytest.mark.parametrize("name", ["preprocess", "postprocess"])
def test_a_subclass_that_would_not_be_asked_does_not_load(tmp_path: Path, name: str) -> None:
    own = type("Own", (CalibratedClassifier,), {name: lambda self, given: given})
    with pytest.raises(ModelError, match=f"{name} is not asked here.*--from"):
        started(tmp_path, own())


def test_a_wrong_number_of_classes_is_found_when_the_model_loads(tmp_path: Path) -> None:
    net = torch.nn.Linear(WIDTH, CLASSES + 1).eval()
    with pytest.raises(ModelError, match="returns 11 classes, the artifact is for 10"):
        started(tmp_path, net=net)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a GPU here")
def test_a_worker_with_a_gpu_that_torch_cannot_use_says_so(tmp_path: Path) -> None:
    model = exported(tmp_path / "net.pt2")
    path = pack(model, temperature_artifact(), tmp_path, name="digits", unproven=True)
    with pytest.raises(ModelError, match="no CUDA"):
        CalibratedClassifier().initialize(context(path, tmp_path / "unpacked", gpu=0))


def test_a_model_file_that_was_exchanged_does_not_load(tmp_path: Path) -> None:
    path = pack(
        exported(tmp_path / "net.pt2"), temperature_artifact(), tmp_path, name="digits", unproven=True
    )
    ctx = context(path, tmp_path / "unpacked")
    exported(tmp_path / "unpacked" / "model.pt2", torch.nn.Linear(WIDTH, CLASSES))
    with pytest.raises(ModelError, match="not the file that was packed"):
        CalibratedClassifier().initialize(ctx)


def test_when_monitoring_breaks_the_predictions_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    handler, ctx = started(tmp_path)
    before = ask(handler, ctx, *inputs(8).tolist())

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Keyring, "signer", broken)
    monkeypatch.setattr(handler._observer._counts, "put", broken)
    after = ask(handler, ctx, *inputs(8).tolist())
    for (_, was), (status, now) in zip(before, after, strict=True):
        assert status == 200
        assert was.pop("receipt")
        assert was == now
    handler._observer.flush()
    text = "".join(sent)
    assert "calib_monitor_errors_total.Count:8.0|#stage:receipt" in text
    assert re.search(r"calib_monitor_errors_total.Count:[1-9][\d.]*\|#stage:record", text)


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


SKIPPING = """
import torch


class Skips:
    def initialize(self, ctx):
        self.net = torch.nn.Linear(16, 10)

    def inference(self, rows):
        return self.net(rows)

    def handle(self, data, ctx):
        rows = [torch.tensor(row["body"]) for row in data]
        asked = [row for row in rows if row.sum() > 0]
        answers = iter(self.inference(torch.stack(asked)).tolist())
        return [next(answers) if row.sum() > 0 else [0.1] * 10 for row in rows]
"""


def test_requests_of_a_batch_that_went_by_are_counted_though_others_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    (tmp_path / "skipping.py").write_text(SKIPPING)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {"skipping.py": tmp_path / "skipping.py"}
    old = write_archive(tmp_path / "old.mar", files, name="digits", version="1", handler="skipping.py")
    path = pack_around(old, temperature_artifact(), tmp_path / "store", untried=True, unproven=True)
    handler, ctx = CalibratedWrapper(), context(path, tmp_path / "unpacked")
    handler.initialize(ctx)
    ctx.request_processor = [RequestProcessor({}) for _ in range(3)]
    replies = handler.handle([{"body": [sign] * 16} for sign in (1.0, -1.0, 1.0)], ctx)
    assert [len(reply) for reply in replies] == [10, 10, 10]
    handler._observer.flush()
    said = "".join(sent)
    assert "calib_uncalibrated_total.Count:1.0|" in said
    assert "calib_unmatched_total.Count:3.0|#model:digits,version:1-calibrated,reason:rows|" in said
    assert "x-calib-receipt" not in ctx.get_response_headers(0), "whose row it is is not known"


def test_maps_by_source_go_by_the_segment_and_unknown_ones_are_counted(
    tmp_path: Path, sent: list[str]
) -> None:
    scales = np.array([1.0, 0.5, 2.0])
    maps, facts = SourceMaps("site", ("north", "south"), scales), temperature_artifact().model
    artifact = Artifact((maps,), method="temperature", classes=CLASSES, model=facts)
    handler, ctx = started(tmp_path, artifact=artifact)
    x, sites = inputs(4), ["south", "north", "Mars", ""]
    z = handler._run(np.asarray(x, "f4")).astype("f8")
    wanted = softmax(z * scales[[2, 1, 0, 0], None]).max(axis=1)
    ctx.request_processor = [RequestProcessor({"x-calib-segment": site}) for site in sites]
    replies = handler.handle([{"body": json.dumps(row.tolist()).encode()} for row in np.asarray(x)], ctx)
    assert [json.loads(one)["confidence"] for one in replies] == pytest.approx(wanted, abs=1e-6)
    body = {"instances": np.asarray(x).tolist(), "parameters": {"segment": sites}}
    (_, found) = ask(handler, ctx, json.dumps(body).encode())[0]
    assert [one["confidence"] for one in found["predictions"]] == pytest.approx(wanted, abs=1e-6)
    handler._observer.flush()
    handler._observer._sink.flush()
    assert re.search(r"calib_monitor_errors_total\b.*stage:source", "".join(sent))
    with pytest.raises(ModelError, match="a handler's seam does not know"):
        replace(handler.options, kind="wrapped").check_artifact(artifact)
