"""A classifier behind PyTriton: Triton answers, and the model runs in this process."""

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

weights = dict(np.load("weights.npz"))


@batch
def infer(x):
    """One prediction a row."""
    logits = x @ weights["W"] + weights["b"]
    return {
        "predicted": logits.argmax(axis=1, keepdims=True),
    }


with Triton(config=TritonConfig(http_port=8000, grpc_port=8001, metrics_port=8002)) as triton:
    triton.bind(
        model_name="digits",
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(16,))],
        outputs=[
            Tensor(name="predicted", dtype=np.int64, shape=(1,)),
        ],
        config=ModelConfig(max_batch_size=64),
    )
    triton.serve()
