"""A program that serves, labels and publishes in every way, to see which series come out with which values.

    python publishers.py FOLDER LEDGER

Its standard output is TorchServe's metrics channel, as a worker's is; FOLDER/watch.txt is the exposition of
``calib-serve watch``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

MODEL, VERSION, CONFIDENCES = "pets", "1", (0.9, 0.95, 0.5)


def torchserve(folder: Path, ledger: str) -> None:
    """A worker that serves, and the feedback worker that takes its labels, all wrong: an alarm."""
    from ts.context import Context, RequestProcessor

    from calib_serve.artifact import Artifact, LogitMap
    from calib_serve.core.bins import Bins
    from calib_serve.receipts import Keyring
    from calib_serve.torchserve._observer import observe
    from calib_serve.torchserve.feedback import CalibrationFeedback
    from calib_serve.torchserve.mar_options import ModelOptions

    Keyring.new().save(folder / "keys.json")
    (folder / "models.json").write_text(json.dumps([{"name": MODEL, "version": VERSION, "classes": 3}]))
    os.environ["CALIB_SERVE_KEYRING"] = str(folder / "keys.json")
    os.environ["CALIB_SERVE_MODELS"] = str(folder / "models.json")
    os.environ["CALIB_SERVE_LEDGER"] = ledger
    reference = Bins.tally([0.9, 0.5], [1, 0])
    artifact = Artifact((LogitMap.temperature(1.0),), method="temperature", classes=3, reference=reference)
    observer = observe(ModelOptions("onnx", "m.onnx", ""), artifact, model=MODEL, version=VERSION)
    receipts = []
    for i, c in enumerate(CONFIDENCES * 20):
        time.sleep(0.002)  # the detector takes them in the order of their times
        receipts += observer.served([(1, c)], invalid=int(i == 0))
    observer.flush()

    feedback = CalibrationFeedback()
    config = {"calib_serve": {"arl": 200, "maturity": "0"}}
    manifest = {"model": {"modelName": "feedback", "modelVersion": "1.0"}}
    context = Context("feedback", str(folder), manifest, 1, None, "0.12", model_yaml_config=config)
    feedback.initialize(context)
    context.request_processor = [RequestProcessor({})]
    items = [{"receipt": receipt, "label": 0} for receipt in receipts]
    (answer,) = feedback.handle([{"body": json.dumps(items)}], context)
    assert json.loads(answer)["accepted"] == len(receipts)
    feedback._watch.feed.tick()
    feedback._flush()


def watch(folder: Path) -> None:
    """A watch that serves and labels with a segment."""
    from prometheus_client import CollectorRegistry, generate_latest

    from calib_serve.artifact import Clause, Contract
    from calib_serve.core.bins import Bins
    from calib_serve.ledger import Ledger
    from calib_serve.monitor.versions import Watched
    from calib_serve.monitor.watch import Watch
    from calib_serve.receipts import Keyring, Shadow
    from calib_serve.receipts.batch import ServedPrediction
    from calib_serve.receipts.classes import Classes
    from calib_serve.web.exporter import export

    ledger = Ledger(folder / "watch.db")
    contract = Contract((Clause(0.9, above=0.5),))
    watched = Watched(Classes(3), Bins.tally(CONFIDENCES * 100, [1, 1, 0] * 100), contract)
    models = {(MODEL, VERSION): watched, (MODEL, "2"): Watched(Classes(3))}
    models[MODEL, "3"] = Watched(Classes(3), contract=contract)
    watch = Watch(Keyring.new(), ledger, models=models, maturity=0.0)
    shadow = Shadow(1, 0.99, b"\x0a\x1b\x2c\x3d")
    served = [ServedPrediction(MODEL, VERSION, 1, c, "north", shadow=shadow) for c in CONFIDENCES * 100]
    receipts = watch.predictions(served)  # as many as a verdict needs
    for source, some in (("ours", receipts[:150]), ("theirs", receipts[150:])):
        watch.labels([{"receipt": one, "label": 1, "segment": "north"} for one in some], source=source)
    # Another version, as there is no evidence right after an alarm.
    (one,) = watch.predictions([ServedPrediction(MODEL, "2", 1, 0.9)])
    watch.labels([{"receipt": one, "label": 1}])
    # A third has spent the budget of its promise, so that it is known when it runs out.
    wrong = watch.predictions([ServedPrediction(MODEL, "3", 1, 0.9)] * 50)
    watch.labels([{"receipt": one, "label": 0} for one in wrong])
    watch.feed.tick()
    registry = CollectorRegistry()
    export(watch, registry)
    (folder / "watch.txt").write_bytes(generate_latest(registry))
    ledger.close()


if __name__ == "__main__":
    torchserve(Path(sys.argv[1]), sys.argv[2])
    watch(Path(sys.argv[1]))
