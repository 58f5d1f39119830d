"""The trial of a handler, in this process: where its scores pass, of which kind, and what proves it.

Each handler is a module as people write them, around one linear network whose weights are known.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calib_serve.core.errors import ModelError
from calib_serve.scores import sigmoid, softmax
from calib_serve.torchserve.seam import _finding, _trial_worker
from calib_serve.torchserve.seam._requests import Request, made_up
from calib_serve.torchserve.seam._trial_worker import answer, collect

with warnings.catch_warnings():  # it leaves the file of its version open
    warnings.simplefilter("ignore", ResourceWarning)
    import ts.context  # noqa: F401

D, K = 6, 5
W = np.round(np.random.default_rng(3).normal(size=(D, K)), 3)

HEAD = f"""
import io
import json
import threading
import numpy as np
import torch

W = torch.tensor({W.tolist()})

def rows(data):
    found = [row.get("data") or row.get("body") for row in data]
    return torch.tensor([one["instances"][0] if isinstance(one, dict) else one for one in found])

class Net(torch.nn.Module):
    def forward(self, x):
        z = x @ W
        return {{returns}}

def named(p):
    return [{{{{"class %d" % k: v for k, v in enumerate(row)}}}} for row in p.tolist()]

"""
CLASS = """
class Mine:
    def initialize(self, context):
        self.model = Net()
        self.mapping, self.kind, self.lower = {"0": "ash"}, Net, str.lower

    def handle(self, data, context):
        return self.reply(self.model(rows(data)))

    def reply(self, z):
        return named(torch.softmax(z, 1))
"""

_numbers = itertools.count()


def look(folder: Path, *, samples: Any = (), batch_size: int = 1, **known: Any) -> dict[str, Any]:
    """A trial; ``shape`` of made up inputs, and what is ``known``. As its process writes it."""
    shape = known.pop("shape", [D])
    told = {"known": known, "samples": samples, "shape": shape, "batch_size": batch_size}
    found = _finding.look(folder, **told, progress=str(folder / "done"))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def handler(body: str, returns: str = "z") -> str:
    """A handler's module; ``body``: methods that stand over those of ``CLASS``, or the rest of a module."""
    return HEAD.format(returns=returns) + (CLASS if body.startswith(("    ", "\n    ")) else "") + body


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an archive's folder of a handler's source, as TorchServe unpacks it."""

    def make(source: str, function: str = "") -> Path:
        name = f"handler_{next(_numbers)}"
        (tmp_path / "MAR-INF").mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(source)
        model = {"handler": f"{name}.py{function}", "modelName": "trees", "configFile": "config.yaml"}
        (tmp_path / "config.yaml").write_text("handler: {bound: 3}")
        (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
        return tmp_path

    monkeypatch.syspath_prepend(tmp_path)
    yield make
    for name in [name for name in sys.modules if name.startswith("handler_")]:
        del sys.modules[name]


FUNCTION = """
network = None

def handle(data, context):
    global network
    if data is None:
        network = Net()
        return None
    return named(torch.softmax(network(rows(data)), 1))
"""
SERVICE = """
class Service:
    def start(self):
        self.net = Net()

    def answer(self, data):
        return named(torch.softmax(self.net(rows(data)), 1))

_service = Service()

def handle(data, context):
    if data is None:
        return _service.start()
    return _service.answer(data)
"""
SESSION = """
    def initialize(self, context):
        class Taken:
            shape = ["N", 6]

        class Session:
            def get_inputs(self):
                return [Taken()]

            def run(self, names, given):
                return [(given["x"] @ W).numpy()]

        self.session, self.kind = Session(), Session

    def handle(self, data, context):
        (z,) = self.session.run(None, {"x": rows(data)})
        return self.reply(torch.tensor(z))
"""
ESTIMATOR = """
    def initialize(self, context):
        class Trees:
            def predict_proba(self, x):
                return torch.softmax(x @ W, 1).numpy()

        self.trees = Trees()

    def handle(self, data, context):
        return self.trees.predict_proba(rows(data)).tolist()
"""
INSIDE = """
    def initialize(self, context):
        class Pipe:
            pass

        self.pipe = Pipe()
        self.pipe.net = Net()

    def handle(self, data, context):
        return self.reply(self.pipe.net(rows(data)))
"""
AVERAGE = """
    def initialize(self, context):
        self.model, self.second = Net(), Net()
        self.second.register_forward_hook(lambda module, given, made: made.flip(1) / 2)

    def average(self, one, two):
        return (one + two) / 2

    def handle(self, data, context):
        x = rows(data)
        return self.reply(self.average(self.model(x), self.second(x)))
"""
INFERENCE = """
    def inference(self, x):
        return self.model(x)

    def handle(self, data, context):
        return self.reply(self.inference(rows(data)))
"""
AGAIN = """
    def inference(self, x):
        if len(x) > 1:
            return torch.cat([self.inference(row[None]) for row in x])
        return self.model(x)

    def handle(self, data, context):
        return self.reply(self.inference(rows(data)))
"""
KEPT = """
    def __init__(self):
        self.call = self.inference

    def inference(self, x):
        return self.model(x)

    def handle(self, data, context):
        return self.reply(self.call(rows(data)))
"""
OWN = """
    def initialize(self, context):
        self.model = Net()
        self.inference = lambda x: self.model(x) / 2

    def inference(self, x):
        raise NotImplementedError

    def handle(self, data, context):
        return self.reply(self.inference(rows(data)))
"""
BEHIND = """
    def initialize(self, context):
        self.early, self.model = Net(), torch.nn.Identity()

    def handle(self, data, context):
        return self.reply(self.model(self.early(rows(data))))
"""
THREADS = """
    def handle(self, data, context):
        x, found = rows(data), {}
        def work(i):
            found[i] = self.model(x[i : i + 1])
        for i in reversed(range(len(x))):
            one = threading.Thread(target=work, args=(i,))
            one.start()
            one.join()
        return self.reply(torch.cat([found[i] for i in range(len(x))]))
"""
FORWARD = """
    def handle(self, data, context):
        return self.reply(self.model.forward(rows(data)))
"""
LABELS = """
    def reply(self, z):
        return [{"labels": [k for k, p in enumerate(row) if p > 0.5]} for row in torch.sigmoid(z)]
"""
SIGMOID = """
    def reply(self, z):
        return torch.sigmoid(z).tolist()
"""
AS_IT_IS = """
    def reply(self, z):
        return z.tolist()
"""
ONE = """
    def reply(self, z):
        return torch.sigmoid(z)[:, 0].tolist()
"""

FOUND: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a network": (CLASS, "z", {"place": "model"}),
    "inference": (INFERENCE, "z", {"place": "inference"}),
    "inference that calls itself": (AGAIN, "z", {"place": "inference"}),
    "inference that is kept before it is wrapped": (KEPT, "z", {"place": "inference"}),
    "inference of the instance's own": (OWN, "2 * z", {"place": "inference", "class_names": None}),
    "a network behind another": (BEHIND, "z", {"place": "model", "class_names": None}),
    "a function": (FUNCTION, "z", {"place": "network", "class_names": None}),
    "a service": (SERVICE, "z", {"place": "_service.net", "class_names": None}),
    "a session": (SESSION, "z", {"place": "session", "output": "0", "class_names": None}),
    "an estimator": (
        ESTIMATOR, "z", {"place": "trees.predict_proba", "kind": "probabilities", "class_names": None},
    ),
    "inside of an object": (INSIDE, "z", {"place": "pipe.net", "class_names": None}),
    "forward": (FORWARD, "z", {"place": "model.forward"}),
    "threads": (THREADS, "z", {"place": "model", "in_order": False}),
    "one of two outputs": (
        "    def reply(self, z):\n        return named(torch.softmax(z['main'], 1))\n",
        "{'aux': 2 * z, 'main': z}",
        {"output": "main"},
    ),
    "probabilities": (AS_IT_IS, "torch.softmax(z, 1)", {"kind": "probabilities"}),
    "log-probabilities": (
        "    def reply(self, z):\n        return z.exp().tolist()\n",
        "torch.log_softmax(z, 1)",
        {"kind": "log_probs"},
    ),
    "logits of labels": (SIGMOID, "z", {"kind": "label_logits"}),
    "probabilities of labels": (AS_IT_IS, "torch.sigmoid(z)", {"kind": "label_probabilities"}),
    "probabilities of labels, in place": (AS_IT_IS, "z.sigmoid_()", {"kind": "label_probabilities"}),
    "a list of one mapping": (
        "    def reply(self, z):\n        return named(torch.softmax(z[0]['scores'], 1))\n",
        "[{'scores': z}]",
        {"output": "0.scores"},
    ),
    "one logit": (ONE, "z[:, :1]", {"kind": "logit", "columns": 1}),
    "one probability": (
        "    def reply(self, z):\n        return z[:, 0].tolist()\n",
        "torch.sigmoid(z[:, :1])",
        {"kind": "probability", "columns": 1},
    ),
    "a tensor that is changed in place": (
        "    def reply(self, z):\n        return named(z.copy_(torch.softmax(z, 1)))\n",
        "z",
        {"place": "model"},
    ),
    "an array that is changed in place": (
        SESSION.replace("return self.reply(torch.tensor(z))", "z[:] = torch.softmax(torch.tensor(z), 1)\n")
        + "        return named(z)\n",
        "z",
        {"place": "session", "output": "0", "class_names": None},
    ),
    "a list of rows": (
        "    def reply(self, z):\n        return named(torch.softmax(torch.stack(z), 1))\n",
        "list(z)",
        {"output": ""},
    ),
    "an output that loses its rows where there is one": (
        "    def reply(self, z):\n        return named(torch.softmax(z[0].reshape(-1, 5), 1))\n",
        "[z.squeeze(0)]",
        {"output": "0"},
    ),
    "a mapping a row": (
        "    def reply(self, z):\n"
        "        return named(torch.softmax(torch.stack([one['scores'] for one in z]), 1))\n",
        "[{'scores': row} for row in z]",
        {"output": "*.scores"},
    ),
}  # fmt: skip
MADE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "probabilities": softmax,
    "log_probs": lambda z: np.log(softmax(z)),
    "logit": lambda z: z[:, :1],
    "probability": lambda z: sigmoid(z[:, :1]),
    "label_probabilities": sigmoid,
}
"""What each kind of scores is of the network's logits (n, K)."""


def tried(found: dict[str, Any]) -> np.ndarray:
    """The inputs (n, D) of the requests of a trial."""
    requests = [Request.from_dict(one) for one in found["requests"]]
    bodies = [json.loads(one.body) for one in requests]
    return np.array([one["instances"][0] if isinstance(one, dict) else one for one in bodies])


@pytest.mark.parametrize("name", FOUND)
def test_the_place_and_the_kind_are_found_and_samples_sent_through_it_leave_their_scores(
    name: str, unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    body, returns, wanted = FOUND[name]
    folder, progress = unpacked(handler(body, returns)), str(tmp_path / "done")
    found = look(folder, batch_size=3)
    told = {"kind": "logits", "columns": K, "output": "", "in_order": True, "form": 0}
    told |= {"class_names": {"0": "ash"}, "bare": False, "alone_because": ""}
    assert {key: found[key] for key in told | wanted} == told | wanted
    assert found["handler"] in ("Mine", *sys.modules)
    x = tried(found)
    assert x.shape == (4, D)
    scores = MADE.get(found["kind"], lambda z: (z + z[:, ::-1] / 2) / 2 if "average" in name else z)
    np.testing.assert_allclose(found["rows"], scores(x @ W), atol=1e-5)
    np.testing.assert_allclose(found["batched"], [scores(x[:3] @ W), scores(x[2::-1] @ W)], atol=1e-5)
    asked = answer(folder, batches=[[one] for one in found["requests"]], bare=False, progress=progress)
    assert asked == [{"replies": [reply], "headers": [{}]} for reply in found["replies"]]

    more = np.random.default_rng(1).normal(size=(7, D))
    np.save(tmp_path / "x.npy", more)
    told = {"out": str(tmp_path / "z.npy"), "progress": progress, "batch_size": 1 if name == "threads" else 3}
    collect(folder, seam=found, rows=str(tmp_path / "x.npy"), **told)
    assert (tmp_path / "done").read_text() == "7 7"
    z, of = np.load(tmp_path / "z.npy"), more @ W
    of = (of + of[:, ::-1] / 2) / 2 if "average" in name else of
    if found["columns"] == 1:
        np.testing.assert_allclose(z[:, 1] - z[:, 0], of[:, 0], atol=1e-4)
    elif "label" in found["kind"]:
        np.testing.assert_allclose(sigmoid(z), sigmoid(of), atol=1e-5)
    else:
        np.testing.assert_allclose(softmax(z), softmax(of), atol=1e-5)


LATE = """
    def initialize(self, context):
        pass

    def handle(self, data, context):
        self.model = Net()
        return self.reply(self.model(rows(data)))
"""
TWO = """
    def initialize(self, context):
        self.model, self.quality = Net(), Net()
        self.quality.register_forward_hook(lambda module, given, made: made.flip(1)[:, :3] / 2)

    def handle(self, data, context):
        x = rows(data)
        p, q = torch.softmax(self.model(x), 1), torch.softmax(self.quality(x), 1)
        return [{"class": int(a.argmax()), "quality": int(b.argmax())} for a, b in zip(p, q)]
"""
HIDDEN = """
    def initialize(self, context):
        self.model, layer = Net(), torch.nn.Linear(6, 5)
        self.others = [torch.nn.Sequential(layer)]

    def handle(self, data, context):
        x = rows(data)
        p, q = torch.softmax(self.others[0](x), 1).detach(), torch.softmax(self.model(x), 1)
        return [{"class": float(a.max()), "quality": float(b.max())} for a, b in zip(p, q)]
"""
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "two networks, each shown": (TWO, "z", {}, "the scores at model and of those at quality; .*--s"),
    "a network beside and one request": (
        HIDDEN, "z", {"samples": [[one.as_dict() for one in made_up([D])]]},
        "another network answers, too .*--probe-data",
    ),
    "labels alone": (LABELS, "z", {}, "shows nothing of what passes here .*calibrated.scores, rows="),
    "scores as they are": (
        AS_IT_IS, "z", {}, "may be logits or label_logits, by all .* say which with --outputs logits or ",
    ),
    "one number as it is": (
        "    def reply(self, z):\n        return z[:, 0].tolist()\n", "z[:, :1].abs() / 50", {},
        "may be logit or probability, by all .*--outputs",
    ),
    "no request": (CLASS, "z", {"shape": None}, "no request to try the handler with; .*--probe FILE"),
    "class ids": (AS_IT_IS, "z.argmax(1)", {}, "at model nor .*: it returns Tensor .1,. of class ids or ot"),
    "a network that comes late": (LATE, "z", {}, "at model nor .*: it is loaded with the first req"),
    "another number of classes": (CLASS, "z", {"classes": 4}, "returns 5 classes, the artifact is for 4"),
    "another kind of scores": (
        CLASS, "z", {"outputs": "probabilities"},
        "probabilities are expected at the seam 'model'; its values are logits: say --outputs logits",
    ),
    "no such place": (CLASS, "z", {"seam": "net"}, "has no 'net' .Mine has no 'net'.; found: model"),
    "no such output": (CLASS, "z", {"output": "logits"}, "Tensor .1, 5. .*where its logits was expected"),
    "no place at all": (LATE, "z", {"seam": "model"}, "Mine has no 'model'.; found: none"),
    "no place for others": (CLASS, "z", {"seam": "mapping"}, "mapping is dict: no network, session or func"),
    "no inference": (CLASS, "z", {"seam": "inference"}, "this handler has no inference"),
    "parts of a reply": (
        "    def handle(self, data, context):\n        context.cl_socket.sendall(b'..')\n",
        "z", {}, "did not answer the request.*streams parts of its replies",
    ),
    "what does not load": (
        "    def initialize(self, context):\n        raise OSError('no weights')\n",
        "z", {}, r"does not load: OSError: no weights .handler_\d+.py, line \d+.",
    ),
    "no answer": (
        "    def reply(self, z):\n        return 'all'\n", "z", {}, "replied with str, where Torch",
    ),
    "an answer too many": (
        "    def reply(self, z):\n        return [0, 1]\n", "z", {}, "gave 2 replies to 1 requests",
    ),
    "an error's status": (
        "    def handle(self, data, context):\n        context.set_response_status(503, 'busy', 0)\n"
        "        return ['later']\n",
        "z", {}, r"application/json \(body alone\): it answered 503: later",
    ),
    "two classes": ("", "", {}, "must define a function handle, or one class with initialize.*defines A, B"),
    "no handle": ("", "", {}, "one class with initialize and handle; it defines Mine"),
    "a package that is missing": ("import no_such_package", "z", {}, "needs the package 'no_such_package'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_handler_that_cannot_be_calibrated_is_refused_with_a_reason(
    name: str, unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    body, returns, options, why = REFUSED[name]
    source = handler(body, returns)
    if name == "no handle":
        source = "class Mine:\n    def initialize(self, context): pass\n"
    if name == "two classes":
        source = "".join(
            f"class {one}:\n    def initialize(self, c): pass\n    def handle(self): pass\n" for one in "AB"
        )
    with pytest.raises(ModelError, match=f"(?s){why}"):
        look(unpacked(source), **options)


def test_a_reply_that_is_right_alone_and_not_in_a_batch_is_asked_alone(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    folder = unpacked(
        handler("""
    def handle(self, data, context):
        x = rows(data)
        order = torch.argsort(-x.abs().sum(1))
        p = torch.softmax(self.model(x[order]), 1)
        return named(p[torch.argsort(order)])
""")
    )
    found = look(folder, batch_size=4)
    assert found["batched"] == []
    assert "changes the order of its batch" in found["alone_because"]


def test_a_place_that_is_named_is_taken_among_several(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    for body, seam in ((TWO, "model"), (TWO, "quality"), (HIDDEN, "model"), (AVERAGE, "average")):
        assert look(unpacked(handler(body)), seam=seam)["place"] == seam
    found = look(unpacked(handler(AS_IT_IS)), several=False)
    assert found["kind"] == "logits"
    assert look(unpacked(handler(AS_IT_IS)), outputs="label_logits")["kind"] == "label_logits"
    found = look(unpacked(handler(ONE, "z[:, :1]")), outputs="logits")
    assert (found["kind"], found["columns"]) == ("logits", 1)


def test_the_function_that_the_manifest_names_is_asked(unpacked: Callable[..., Path]) -> None:
    source = handler(FUNCTION.replace("def handle", "def answer"))
    assert look(unpacked(source, ":answer"))["place"] == "network"
    with pytest.raises(ModelError, match=r"the handler .*:handle': .* has no attribute 'handle'"):
        look(unpacked(source, ":handle"))


def test_a_handler_is_asked_in_the_first_form_that_it_answers(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    body = """
    def handle(self, data, context):
        try:
            return self.reply(self.model(torch.tensor([one["instances"][0] for one in data])))
        except Exception:
            return ["not understood"] * len(data)
"""
    found = look(unpacked(handler(body)))
    assert (found["form"], found["bare"], found["place"]) == (2, True, "model")
    np.testing.assert_allclose(found["rows"], tried(found) @ W, atol=1e-5)
    twice = [Request(b"[1]", "application/json").as_dict()] * 2
    assert look(unpacked(handler(body)), samples=[[*twice, found["requests"][0]]])["form"] == 2


def test_requests_that_are_given_are_asked_and_no_other(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    words = """
    def handle(self, data, context):
        texts = [row["data"] if isinstance(row, dict) else row for row in data]
        x = [[len(w) for w in (text.split() + [""] * 6)[:6]] for text in texts]
        return self.reply(self.model(torch.tensor(x, dtype=torch.float32)))
"""
    forms = [
        Request(b"one three fifteen a thousand", "text/plain", name).as_dict() for name in ("body", "data")
    ]
    found = look(unpacked(handler(words)), samples=[forms], batch_size=2)
    assert (found["form"], found["bare"]) == (0, True)
    assert found["requests"] == forms[:1]
    assert "--probe-data" in found["alone_because"], "one request shows nothing of a batch"
    none = [[Request(b"[1]", "application/json").as_dict()] * 2]  # which it fails on
    given = [[Request(f"{'x' * k} yy {'z' * k * k}".encode(), "text/plain").as_dict()] * 2 for k in (1, 2, 5)]
    found = look(unpacked(handler(words)), samples=[forms, *none, *given], batch_size=2)
    assert found["requests"][1:] == [one[0] for one in given]


def test_the_trial_ends_where_the_other_end_of_its_pipe_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, (read, write) = threading.Event(), os.pipe()
    monkeypatch.setattr(_trial_worker.os, "killpg", lambda *_: ended.set())
    watching = threading.Thread(target=_trial_worker._end_with_parent, args=(read,))
    watching.start()
    assert not ended.wait(0.05)
    os.close(write)
    watching.join(10)
    assert ended.is_set()
    os.close(read)


FACES = """
    def handle(self, data, context):
        from calib_serve.torchserve import calibrated
        found = [row.get("data") or row.get("body") for row in data]
        faces = [(i, face) for i, one in enumerate(found) for face in one["faces"]]
        scores = calibrated(self.model(torch.tensor([face for _, face in faces])), rows=[i for i, _ in faces])
        p = torch.softmax(scores, 1)
        return [
            [{"class": int(q.argmax()), "score": float(q.max())} for q, (j, _) in zip(p, faces) if j == i]
            for i in range(len(data))
        ]
"""


def faces(*inputs: np.ndarray) -> Request:
    return Request(json.dumps({"faces": [x.tolist() for x in inputs]}).encode(), "application/json")


def test_rows_that_a_handler_declares_are_followed_and_labels_are_of_requests_with_one(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    folder, progress = unpacked(handler(FACES)), str(tmp_path / "done")
    x = np.random.default_rng(5).normal(size=(6, D)).round(3)
    some = [faces(x[0]), faces(x[1], x[2]), faces(x[3]), faces(), faces(x[4])]
    forms = [[one.as_dict()] for one in some]
    found = look(folder, samples=forms, batch_size=2)
    assert (found["place"], found["kind"]) == ("calibrated", "logits")
    np.testing.assert_allclose(found["rows"], x[[0, 3, 4]] @ W, atol=1e-5)
    assert not found["alone_because"]
    told = {"seam": found, "out": str(tmp_path / "z.npy"), "progress": progress, "batch_size": 3}
    files = [tmp_path / f"{k}.json" for k in range(len(some))]
    for path, one in zip(files, some, strict=True):
        path.write_bytes(one.body)
    collect(folder, files=[str(files[k]) for k in (4, 0, 2)], **told)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), x[[4, 0, 3]] @ W, atol=1e-5)
    for wrong, count in ((1, 2), (3, 0)):
        with pytest.raises(
            ModelError, match=rf"{wrong}.json: it has {count} rows of scores, by the rows that its"
        ):
            collect(folder, files=[str(files[k]) for k in (0, wrong)], **told)


def test_rows_that_are_declared_wrongly_are_refuted(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    body = FACES.replace("rows=[i for i, _ in faces]", "rows=[len(data) - 1 - i for i, _ in faces]")
    x = np.random.default_rng(5).normal(size=(4, D)).round(3)
    forms = [[faces(one).as_dict()] for one in x]
    found = look(unpacked(handler(body)), samples=forms, batch_size=4)
    assert "changes the order of its batch" in found["alone_because"]


FILTER = """
    def handle(self, data, context):
        x = rows(data)
        p = torch.softmax(self.model(x), 1) * torch.where(x[:, :1] > 1, torch.arange(5.0) % 2, torch.ones(5))
        return [{"class": int(q.argmax()), "score": float(q.max() / q.sum())} for q in p]
"""
GROUPED = """
    def handle(self, data, context):
        x = rows(data)
        order = torch.argsort((x[:, 0] > 1).int(), stable=True)
        p = torch.softmax(self.model(x[order]), 1)
        back = torch.empty_like(p)
        back[order] = p
        return [{"class": int(q.argmax()), "score": float(q.max())} for q in back]
"""
CASCADE = """
    def handle(self, data, context):
        x = rows(data)
        p = torch.softmax(self.model(x), 1)
        p = torch.where(x[:, :1] > 1, torch.softmax(x @ W.flip(1), 1), p)
        return [{"class": int(q.argmax()), "score": float(q.max())} for q in p]
"""
SILENT = """
    def reply(self, z):
        p = torch.softmax(z, 1)
        return [{"class": int(q.argmax()), "score": float(q.max())} if q.max() > 0.45 else {} for q in p]
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (FILTER, "shows another (class|number) than its row"),
        (GROUPED, "shows another (class|number) than its row.*another order"),
        (CASCADE, "shows another (class|number) than its row.*another network"),
        (SILENT, "shows nothing of the scores at model, .*leave the sample out"),
    ],
)
def test_a_sample_whose_reply_is_not_of_its_row_is_refused_by_name(
    body: str, why: str, unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    x = np.random.default_rng(2).normal(size=(40, D))
    x[:, 0] = np.minimum(x[:, 0], 0.9)  # the trial's samples are answered as most are
    x[30] = [1.5, *(0.0,) * 5] if body != SILENT else 0.0
    folder, progress = unpacked(handler(body)), str(tmp_path / "done")
    some = [[Request(json.dumps(row.tolist()).encode(), "application/json").as_dict()] for row in x[:8]]
    found = look(folder, samples=some, batch_size=2)
    np.save(tmp_path / "x.npy", x)
    told = {"seam": found, "out": str(tmp_path / "z.npy"), "batch_size": 4, "progress": progress}
    with pytest.raises(ModelError, match=f"(?s)row .*: .*{why}"):
        collect(folder, rows=str(tmp_path / "x.npy"), **told)


PICTURES = """
    def handle(self, data, context):
        from PIL import Image
        x = [np.asarray(Image.open(io.BytesIO(row["body"]))) / 255 for row in data]
        x = [torch.tensor(one[:2, :3].reshape(-1)[:6], dtype=torch.float32) for one in x]
        return self.reply(self.model(torch.stack(x)))
"""


def test_pictures_are_asked_and_samples_are_sent_from_files(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    folder, progress = unpacked(handler(PICTURES)), str(tmp_path / "done")
    given, pictures = [], []
    for seed in range(3):
        pictures.append(
            Image.fromarray(np.random.default_rng(seed).integers(0, 256, (224, 224, 3), np.uint8))
        )
        pictures[-1].save(out := io.BytesIO(), "PNG")
        given.append([Request(out.getvalue(), "image/png").as_dict()])
    found = look(folder, samples=given, batch_size=2)
    assert found["alone_because"] == ""
    x = np.array([np.asarray(one)[:2, :3].reshape(-1)[:D] / 255 for one in pictures])
    np.testing.assert_allclose(found["rows"], x @ W, atol=1e-5)

    files = [tmp_path / f"{n}.png" for n in range(3)]
    for path, one in zip(files, found["requests"], strict=False):
        path.write_bytes(Request.from_dict(one).body)
    told = {"seam": found, "out": str(tmp_path / "z.npy"), "progress": progress, "batch_size": 2}
    collect(folder, files=[str(path) for path in files], **told)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), found["rows"][:3], atol=1e-5)
    files[2].write_bytes(b"no picture")
    with pytest.raises(ModelError, match=r"the handler failed on .*2.png: UnidentifiedImageError"):
        collect(folder, files=[str(path) for path in files], **told)
