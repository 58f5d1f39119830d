"""A classifier behind PyTriton: Triton answers, and the model runs in this process."""

import signal

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from calib_serve import Reporter

weights = dict(np.load("weights.npz"))
reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")
signal.signal(signal.SIGTERM, signal.default_int_handler)  # serve() then ends as at Ctrl-C


@batch
def infer(x):
    """One prediction a row."""
    logits = x @ weights["W"] + weights["b"]
    probs = reporter.artifact.of_logits(logits)
    return {
        "predicted": probs.argmax(axis=1, keepdims=True),
        "confidence": probs.max(axis=1, keepdims=True),
        "receipt": np.char.encode([[receipt or ""] for receipt in reporter.served(probs)]),
    }


with Triton(config=TritonConfig(http_port=8000, grpc_port=8001, metrics_port=8002)) as triton:
    triton.bind(
        model_name="digits",
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(16,))],
        outputs=[
            Tensor(name="predicted", dtype=np.int64, shape=(1,)),
            Tensor(name="confidence", dtype=np.float64, shape=(1,)),
            Tensor(name="receipt", dtype=np.bytes_, shape=(1,)),
        ],
        config=ModelConfig(max_batch_size=64),
    )
    triton.serve()
