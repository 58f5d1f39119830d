"""What a batch costs inside a worker, from TorchServe's rows to the bytes on its socket, without a server.

``serving.py`` runs it in a process of its own for each archive: a worker's standard output is the
server's metrics channel.

    python benchmarks/inside_worker.py ARCHIVE.mar BODY.json BATCH RESULT.json
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

from calib_serve.core.files import shipped
from calib_serve.torchserve.archive._archive import read_archive

warnings.simplefilter("ignore")  # TorchServe's own

from ts.context import Context, RequestProcessor  # noqa: E402
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl  # noqa: E402
from ts.protocol.otf_message_handler import create_predict_response  # noqa: E402
from ts.utils.util import list_classes_from_module  # noqa: E402

SECONDS = 2.0


def loaded(archive: Path, folder: Path) -> tuple[Any, Context]:
    """The archive's handler, initialized as a worker does it."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    read = read_archive(archive)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    context = Context(read.name, str(folder), manifest, 8, None, "0.12", model_yaml_config=dict(read.config))
    context.metrics = MetricsCacheYamlImpl(config_file_path=str(shipped("handlers/metrics.yaml")))
    context.metrics.initialize_cache()
    context.metrics.model_name = read.name
    sys.path.insert(0, str(folder))
    module = importlib.import_module(Path(manifest["model"]["handler"]).stem)
    handler = list_classes_from_module(module)[0]()
    handler.initialize(context)
    return handler, context


def measure(archive: str, body: str, batch: str, result: str) -> None:
    rows = [{"body": json.loads(Path(body).read_text())} for _ in range(int(batch))]
    ids = {i: f"{i:036}" for i in range(len(rows))}  # as long as the server's
    with tempfile.TemporaryDirectory() as folder:
        handler, context = loaded(Path(archive), Path(folder))
        best, end = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            context.request_processor = [RequestProcessor({}) for _ in rows]
            context.request_ids = context.metrics.request_ids = ids
            start = time.perf_counter()
            replies = handler.handle(rows, context)
            sent = create_predict_response(replies, ids, "Prediction success", 200, context=context)
            best = min(best, time.perf_counter() - start)
    Path(result).write_text(json.dumps({"us": 1e6 * best, "bytes": len(sent) / len(rows)}))


if __name__ == "__main__":
    measure(*sys.argv[1:])
