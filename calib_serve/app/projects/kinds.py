"""The kinds of quickstart projects, by the server of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

_PYTHON = "python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76"
_USER = "RUN useradd --uid 10001 serving && install -d -m 1777 spool"
_HOME = {"WATCH": "http://watch:9300"}
_FUSE = (
    "calib-serve fuse onnx model.onnx artifact --inputs data.npz -o calibrated.onnx --returns probabilities",
)

_BATCH = '''def receipts(inputs: list) -> list[str]:
    """Those of a batch."""
    return post("http://127.0.0.1:8000/predict", inputs)["receipt"]'''

_ONE_BY_ONE = '''def receipts(inputs: list) -> list[str]:
    """Those of a batch, one request each."""
    url = "http://127.0.0.1:8080/predictions/digits"
    return [post(url, one)["receipt"] for one in inputs]'''

_INFER = '''def receipts(inputs: list) -> list[str]:
    """Those of a batch, by the Open Inference Protocol, 64 rows a request."""
    found = []
    for begin in range(0, len(inputs), 64):
        rows = inputs[begin : begin + 64]
        x = {"name": "x", "datatype": "FP32", "shape": [len(rows), 1, 8, 8], "data": rows}
        body = {"inputs": [x], "outputs": [{"name": "receipt"}]}
        found += post("http://127.0.0.1:8000/v2/models/digits/infer", body)["outputs"][0]["data"]
    return found'''


@dataclass(frozen=True)
class Kind:
    """The server of a project's model; its container is made by ``dockerfile``.

    ``extras`` of this package run every command. ``convert``: the commands that put the calibration into what
    is served; ``serve``: what starts it without a container. ``ports`` by name, of which the first takes
    predictions; ``metrics``: the port that Prometheus scrapes, where the server counts predictions itself.
    ``receipts``: the function of ``client.py`` that predicts.
    """

    title: str
    extras: tuple[str, ...]
    convert: tuple[str, ...]
    serve: str
    dockerfile: str
    ports: dict[str, int]
    ready: str
    receipts: str
    program: str = ""
    metrics: int = 0
    env: dict[str, str] = field(default_factory=dict)


def _python(packages: str, command: str) -> str:
    return f"""FROM {_PYTHON}
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt {packages}
WORKDIR /app
{_USER}
COPY serve.py calibrated.onnx ./
COPY artifact artifact
USER 10001
CMD {command}
"""


KINDS: dict[str, Kind] = {
    "fastapi": Kind(
        title="FastAPI and onnxruntime",
        extras=("torch", "onnx", "watch", "report"),
        convert=_FUSE,
        serve="uvicorn serve:app --port 8000",
        program="serve_fastapi.py.txt",
        dockerfile=_python(
            "'calib-serve[onnx,watch]==@version'",
            '["uvicorn", "serve:app", "--host", "0.0.0.0", "--port", "8000"]',
        ),
        ports={"http": 8000},
        ready="/docs",
        receipts=_BATCH,
        env=_HOME,
    ),
    "torchserve": Kind(
        title="TorchServe",
        extras=("torch", "onnx", "torchserve", "watch", "report"),
        convert=(
            "calib-serve pack --model model.pt2 --artifact artifact --name digits --version 1 "
            "--pictures mean=0 --pictures std=1 -o model_store",
        ),
        serve="calib-serve serve --store model_store --keyring secrets/keyring.json "
        "--option disable_token_authorization=true",
        dockerfile=f"""FROM {_PYTHON}
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt 'calib-serve[torchserve]==@version' \\
    --extra-index-url https://download.pytorch.org/whl/cpu
WORKDIR /app
{_USER}
COPY model_store model_store
USER 10001
ENTRYPOINT ["calib-serve", "serve", "--store=/app/model_store", "--folder=/app/spool", \\
    "--keyring=/app/secrets/keyring.json", "--option=disable_token_authorization=true", \\
    "--option=inference_address=http://0.0.0.0:8080", "--option=metrics_address=http://0.0.0.0:8082"]
""",
        ports={"http": 8080, "metrics": 8082},
        ready="/ping",
        receipts=_ONE_BY_ONE,
        metrics=8082,
    ),
    "triton": Kind(
        title="Triton",
        extras=("torch", "onnx", "watch", "report"),
        convert=(
            "calib-serve fuse triton model.onnx artifact --inputs data.npz -o repository --name digits "
            "--max-batch 64 --device cpu",
        ),
        serve="tritonserver --model-repository=repository",
        dockerfile="""# The step that signs needs the ground alone: no torch, no onnx.
FROM nvcr.io/nvidia/tritonserver:24.08-py3
RUN pip install --no-cache-dir 'calib-serve==@version' prometheus-client 'numpy<2'
COPY repository /models
RUN install -d -m 1777 /app/spool
USER triton-server
CMD ["tritonserver", "--model-repository=/models", "--exit-on-error=true", "--strict-readiness=true"]
""",
        ports={"http": 8000, "metrics": 8002},
        ready="/v2/health/ready",
        receipts=_INFER,
        metrics=8002,
        env={"CALIB_SERVE_KEYRING": "/app/secrets/keyring.json"},
    ),
}
"""By the name that ``--kind`` takes."""
