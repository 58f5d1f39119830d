"""A receipt is for what the client saw: kinds of handlers that part rows and replies, batch by batch."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reply_kinds import KINDS, WEIGHTS, WIDTH, Kind, handler_source
from sizes import sized

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.torchserve import declared, pack_around
from calib_serve.torchserve.archive._archive import read_archive, write_archive
from calib_serve.torchserve.declared import DECLARED
from calib_serve.torchserve.mar_options import SHOWN
from calib_serve.torchserve.shown import chosen_rows, read_shown
from calib_serve.torchserve.wrapped import CalibratedWrapper

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.context import Context, RequestProcessor

FEW = (
    "a class and its score",
    "batches by length",
    "faces, declared",
    "a label by costs",
    "declared in reverse",
)
pytestmark = pytest.mark.usefixtures("sent")

RUN = sized(ci=FEW, nightly=tuple(KINDS))
BATCHES = sized(ci=40, nightly=200)


def artifact_of(kind: Kind) -> Artifact:
    outputs = "label_logits" if kind.multilabel else "logits"
    model = {"input_shape": [WIDTH], "outputs": outputs}
    return Artifact((LogitMap.temperature(2.0),), method="temperature", classes=5, model=model)


def tried(handler: Any, kind: Kind) -> dict[str, Any]:
    """What the replies of an uncalibrated handler show, as a trial reads it."""
    asked = []
    for i, p in enumerate(chosen_rows(5, of_labels=kind.multilabel)):
        z = np.log(p / (1 - p)) if kind.multilabel else np.log(p)
        if kind.declared:
            declared._around[:] = [lambda call, args, kwargs, z=z: z[None]]
        else:
            handler.inference = lambda x, z=z: np.repeat(z[None], len(x), 0)
        (reply,) = handler.handle([{"body": request(kind, 0, i, np.full(WIDTH, float(i)))}], None)
        asked.append((json.loads(json.dumps(reply, default=str)), p))
    declared._around.clear()
    return read_shown(asked).as_dict()


def request(kind: Kind, i: int, place: int, x: np.ndarray) -> dict[str, Any]:
    beside = kind.beside(i)
    if "n" in beside and not i:
        beside = {"n": 1}
    if "instances" in beside:
        return {"instances": [{"x": (x + 0.5 * k).tolist()} for k in range(beside["instances"])]}
    if "camera" in beside and not i:
        beside = {"camera": 100 + place}
    return {"x": x.tolist(), **beside}


def served(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CalibratedWrapper, Any]:
    kind = KINDS[name]
    module = f"kind_{[*KINDS].index(name)}"
    (tmp_path / f"{module}.py").write_text(handler_source(kind))
    monkeypatch.syspath_prepend(str(tmp_path))
    old = write_archive(
        tmp_path / "old.mar",
        {f"{module}.py": tmp_path / f"{module}.py"},
        name="kind",
        version="1",
        handler=f"{module}.py",
    )
    path = pack_around(old, artifact_of(kind), tmp_path / "store", untried=True, unproven=True)
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    plain = __import__(module).Mine()
    plain.initialize(None)
    (folder / SHOWN).write_text(json.dumps(tried(plain, kind)))
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    config = dict(read_archive(path).config)
    if kind.declared:
        config["calib_serve"]["seam"] = DECLARED
    ctx = Context("kind", str(folder), manifest, 8, None, "0.12", model_yaml_config=config)
    wrapper = CalibratedWrapper()
    wrapper.initialize(ctx)
    return wrapper, ctx


def batches(kind: Kind) -> Iterator[list[tuple[dict[str, Any], np.ndarray]]]:
    """Batches of requests, each with the inputs that its rows are of."""
    rng, i, last = np.random.default_rng(2), 0, np.zeros(WIDTH)
    for _ in range(BATCHES):
        batch = []
        for place in range(int(rng.integers(1, 7))):
            i += 1
            x = last if kind.beside(i).get("twin") else rng.normal(size=WIDTH).round(4)
            last = x
            body = request(kind, i, place, x)
            n = body.get("n", len(body.get("instances", [0])))
            batch.append((body, x + 0.5 * np.arange(n)[:, None]))
        yield batch


def seen_by_client(kind: Kind, reply: Any) -> list[tuple[Any, Any]]:
    return kind.seen(reply["prediction"] if isinstance(reply, dict) and "prediction" in reply else reply)


@pytest.mark.parametrize("name", RUN)
def test_no_receipt_contradicts_its_reply(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    kind, ring = KINDS[name], Keyring.load(tmp_path / "keyring.json")
    wrapper, ctx = served(name, tmp_path, monkeypatch)
    replied = with_receipt = 0
    for batch in batches(kind):
        ctx.request_processor = [RequestProcessor({}) for _ in batch]
        replies = wrapper.handle([{"body": body} for body, _ in batch], ctx)
        for index, (reply, (_, x)) in enumerate(zip(replies, batch, strict=True)):
            headers = ctx.get_response_headers(index)
            replied += 1
            if "x-calib-receipt" not in headers:
                assert "x-calib-confidence" not in headers
                continue
            with_receipt += 1
            receipts = [ring.verify(one) for one in headers["x-calib-receipt"].split(", ")]
            if kind.multilabel:
                shown = kind.seen(reply)[0][1]
                labels = [int(one) for one in headers["x-calib-label"].split(", ")]
                for one, k in zip(receipts, labels, strict=True):
                    p = [*shown.values()][k]
                    assert one.confidence == pytest.approx(max(p, 1 - p), abs=1e-6)
                continue
            seen = seen_by_client(kind, reply)
            own = artifact_of(kind).of_logits(x @ WEIGHTS.round(6)).max(1)
            assert len(seen) == len(receipts)
            for receipt, (predicted, confidence) in zip(receipts, seen, strict=True):
                assert receipt.predicted == predicted
                if confidence is not None:
                    assert receipt.confidence == pytest.approx(confidence, abs=kind.digits)
                if "views" not in name:
                    assert np.abs(own - receipt.confidence).min() < 1e-6, "of a row of its own"
    share = 1 - with_receipt / replied
    print(f"\n{name}: without receipt {share:.2f}")
    wanted = {"all": share == 0, "none": share == 1, "some": 0 < share < 1}
    assert wanted[kind.receipts], share
    wrapper._observer.flush()
    assert "calib_unmatched_total" in "".join(sent)
