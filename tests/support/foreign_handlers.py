"""TorchServe archives as people make them: other handlers, other forms of what a model returns.

Each is packed by torch-model-archiver. The models are small and random; the handlers are written as in
TorchServe's examples, or are TorchServe's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from live_server import CLASSES, WIDTH, network
from PIL import Image
from scripted import scripted

from calib_serve import Artifact
from calib_serve.artifact import LogitMap

NET = f"""
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear({WIDTH}, 32), torch.nn.ReLU(), torch.nn.Linear(32, %(out)d)
        )

    def forward(self, x):
        z = self.layers(x)
        return %(returns)s
"""
HEAD = '''
import json
import os

import numpy as np
import torch
from ts.torch_handler.base_handler import BaseHandler


def rows(data):
    payloads = [row.get("data") or row.get("body") for row in data]
    payloads = [json.loads(p) if isinstance(p, (bytes, bytearray)) else p for p in payloads]
    return torch.tensor([p["x"] if isinstance(p, dict) else p for p in payloads])


class Named(BaseHandler):
    """Numbers in, names with probabilities out."""

    def preprocess(self, data):
        return rows(data)

    def postprocess(self, outputs):
        return [{"class %d" % k: v for k, v in enumerate(p)} for p in torch.softmax(outputs, 1).tolist()]


'''


@dataclass(frozen=True)
class Foreign:
    """One archive: its handler's source or a name of TorchServe's, its model, and what should come of it.

    ``shows``: the reply holds the confidence.
    """

    handler: str
    returns: str = "z"
    out: int = CLASSES
    model: str = "eager"
    shows: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    config: str = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 50\n"


def own(body: str, base: str = "BaseHandler") -> str:
    """A handler file with one class, whose body is indented here."""
    text = HEAD.split("class Named", maxsplit=1)[0] + f"class Mine({base}):\n"
    preprocess = "    def preprocess(self, data):\n        return rows(data)\n\n"
    return (
        text + preprocess + "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
    )


SOFTMAX = """
def postprocess(self, outputs):
    return [{"class %d" % k: v for k, v in enumerate(p)} for p in torch.softmax(outputs, 1).tolist()]
"""
AS_IT_IS = "def postprocess(self, outputs):\n    return outputs.tolist()"

FOREIGN: dict[str, Foreign] = {
    "plain": Foreign(HEAD),
    "torchscript": Foreign(HEAD, model="torchscript"),
    "onnx_list": Foreign(own("""
def inference(self, data):
    return self.model.run(None, {"x": data.numpy()})

def postprocess(self, outputs):
    p = np.exp(outputs[0] - outputs[0].max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True)).tolist()
"""), model="onnx"),
    "tuple": Foreign(own(SOFTMAX.replace("(outputs, 1)", "(outputs[0], 1)")), returns="(z, x)"),
    "dict": Foreign(
        own(SOFTMAX.replace("(outputs, 1)", '(outputs["logits"], 1)')), returns='{"logits": z, "features": x}'
    ),
    "two_of_k": Foreign(
        own(SOFTMAX.replace("(outputs, 1)", '(outputs["main"], 1)')),
        returns='{"main": z, "aux": z * 2}',
        shows=True,
    ),
    "softmaxed": Foreign(own(AS_IT_IS), returns="torch.softmax(z, 1)"),
    "log_softmaxed_ids": Foreign(
        own("def postprocess(self, outputs):\n    return outputs.argmax(1).tolist()"),
        returns="torch.log_softmax(z, 1)",
        shows=False,
    ),
    "ids_at_inference": Foreign(own("""
def inference(self, data):
    return self.model(data).argmax(1)

def postprocess(self, outputs):
    return [str(k) for k in outputs.tolist()]
"""), shows=False),
    "rows": Foreign(own("""
def inference(self, data):
    return [row for row in self.model(data)]

def postprocess(self, outputs):
    return [torch.softmax(row, 0).tolist() for row in outputs]
""")),
    "half": Foreign(own("""
def inference(self, data):
    return self.model(data).bfloat16()

def postprocess(self, outputs):
    return torch.softmax(outputs.float(), 1).tolist()
""")),
    "one_logit": Foreign(
        own("def postprocess(self, outputs):\n    return torch.sigmoid(outputs[:, 0]).tolist()"), out=1
    ),
    "own_handle": Foreign(own("""
def handle(self, data, context):
    with torch.no_grad():
        outputs = self.model(rows(data))
    return torch.softmax(outputs, 1).tolist()
""")),
    "forward": Foreign(own("""
def handle(self, data, context):
    with torch.no_grad():
        outputs = self.model.forward(rows(data))
    return torch.softmax(outputs, 1).tolist()
""")),
    "without_base": Foreign(own("""
def initialize(self, context):
    folder = context.system_properties["model_dir"]
    from net import Net
    self.classifier = Net()
    self.classifier.load_state_dict(torch.load(os.path.join(folder, "weights.pt")))

def handle(self, data, context):
    with torch.no_grad():
        return torch.softmax(self.classifier(rows(data)), 1).tolist()
""", base="object")),
    "function": Foreign(HEAD.split("class Named", maxsplit=1)[0] + """
network = None

def handle(data, context):
    global network
    if data is None:
        from net import Net
        network = Net()
        folder = context.system_properties["model_dir"]
        network.load_state_dict(torch.load(os.path.join(folder, "weights.pt")))
        return None
    with torch.no_grad():
        return torch.softmax(network(rows(data)), 1).tolist()
"""),
    "service": Foreign(HEAD.split("class Named", maxsplit=1)[0] + """
class Service:
    net = None

    def initialize(self, context):
        from net import Net
        self.net = Net()
        folder = context.system_properties["model_dir"]
        self.net.load_state_dict(torch.load(os.path.join(folder, "weights.pt")))

    def answer(self, data):
        with torch.no_grad():
            return torch.softmax(self.net(rows(data)), 1).tolist()

_service = Service()

def handle(data, context):
    if _service.net is None:
        _service.initialize(context)
    return None if data is None else _service.answer(data)
"""),
    "average_in_a_method": Foreign(own("""
def initialize(self, context):
    super().initialize(context)
    self.second = self.model.layers

def average(self, scores):
    return sum(scores) / len(scores)

def handle(self, data, context):
    with torch.no_grad():
        x = rows(data)
        return torch.softmax(self.average([self.model(x), self.second(x)]), 1).tolist()
"""), options={"seam": "average"}),
    "micro_batching": Foreign(own("""
def __init__(self):
    super().__init__()
    self.handle = MicroBatching(self, micro_batch_size=2, parallelism={"inference": 2, "postprocess": 2})
""" + SOFTMAX).replace(
        "import torch\n", "import torch\nfrom ts.handler_utils.micro_batching import MicroBatching\n", 1
    )),
    "base_handler": Foreign("base_handler", model="torchscript", shows=False),
    "kserve_v2": Foreign(own("""
def preprocess(self, data):
    return torch.tensor([row["data"] for row in data])

def postprocess(self, outputs):
    return torch.softmax(outputs, 1).tolist()
"""), model="torchscript"),
    "image_classifier": Foreign("image_classifier", model="pictures"),
}  # fmt: skip


def artifact(foreign: Foreign, t: float = 2.0) -> Artifact:
    """A temperature for it."""
    classes = 2 if foreign.out == 1 else CLASSES
    shape = None if foreign.model in ("pictures", "text") else [WIDTH]
    return Artifact(
        (LogitMap.temperature(t),), method="temperature", classes=classes, model={"input_shape": shape}
    )


def archive(name: str, folder: Path, foreign: Foreign | None = None) -> Path:
    """``folder/name.mar`` as torch-model-archiver writes it; ``foreign`` if not one of ``FOREIGN``."""
    foreign, work = foreign or FOREIGN[name], folder / f"{name}_parts"
    work.mkdir(parents=True)
    parts = _MODELS[foreign.model](foreign, work)
    if "\n" in foreign.handler:
        (work / f"{name}_handler.py").write_text(foreign.handler)
    handler = f"{name}_handler.py" if "\n" in foreign.handler else foreign.handler
    (work / "model-config.yaml").write_text(foreign.config)
    command = [sys.executable, "-W", "ignore", "-m", "model_archiver.model_packaging", "--model-name", name]
    command += ["--version", "1.0", "--handler", handler, "--export-path", str(folder)]
    command += ["--config-file", "model-config.yaml", *parts]
    subprocess.run(command, cwd=work, check=True, capture_output=True)
    return folder / f"{name}.mar"


def trial(name: str, folder: Path) -> dict[str, Any]:
    """The options of ``pack_around`` for an archive that ``archive`` wrote into ``folder``."""
    foreign, pictures = FOREIGN[name], folder / f"{name}_parts" / "probes"
    return {**foreign.options, **({"probe_data": pictures} if foreign.model == "pictures" else {})}


def probabilities(foreign: Foreign, x: np.ndarray, t: float = 2.0) -> np.ndarray:
    """What the artifact makes of the network's logits for inputs (n, WIDTH)."""
    with torch.inference_mode():
        return artifact(foreign, t).of_logits(weights(foreign.out)(torch.from_numpy(x)).numpy())


def weights(out: int = CLASSES) -> torch.nn.Module:
    """The layers of every network here."""
    if out == CLASSES:
        return network()
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, out)).eval()


def _eager(foreign: Foreign, work: Path) -> list[str]:
    (work / "net.py").write_text(NET % {"out": foreign.out, "returns": foreign.returns})
    state = {f"layers.{key}": value for key, value in weights(foreign.out).state_dict().items()}
    torch.save(state, work / "weights.pt")
    return ["--model-file", "net.py", "--serialized-file", "weights.pt"]


def _torchscript(foreign: Foreign, work: Path) -> list[str]:
    scripted(work / "net.pt", weights(foreign.out))
    return ["--serialized-file", "net.pt"]


def _onnx(foreign: Foreign, work: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            weights(foreign.out),
            (torch.zeros(2, WIDTH),),
            str(work / "net.onnx"),
            input_names=["x"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            external_data=False,
            verbose=False,
        )
    return ["--serialized-file", "net.onnx"]


def _pictures(foreign: Foreign, work: Path) -> list[str]:
    torch.manual_seed(5)
    pool = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, stride=8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
    )
    scripted(work / "net.pt", torch.nn.Sequential(pool, torch.nn.Linear(32, CLASSES)).eval())
    (work / "probes" / "any").mkdir(parents=True)
    for k in range(3):  # of other brightness each, as noise alone looks alike to a pool
        noise = np.random.default_rng(k).integers(0, 256 - 80 * k, (256, 256, 3), np.uint8)
        Image.fromarray(noise).save(work / "probes" / "any" / f"{k}.png")
    (work / "index_to_name.json").write_text(json.dumps({str(k): f"thing {k}" for k in range(CLASSES)}))
    return ["--serialized-file", "net.pt", "--extra-files", "index_to_name.json"]


_MODELS = {
    "eager": _eager,
    "torchscript": _torchscript,
    "onnx": _onnx,
    "pictures": _pictures,
}
