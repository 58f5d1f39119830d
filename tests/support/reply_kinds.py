"""Handlers that part rows and replies, or show little of them, each with what a client reads in its reply.

Every handler's scores pass ``inference``; requests are JSON with "x", and what a kind asks for beside it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

K, WIDTH = 5, 8
NAMES = ("cat", "dog", "emu", "fox", "gnu")
WEIGHTS = 2.0 * np.random.default_rng(11).normal(size=(WIDTH, K))

HEAD = f"""
import gzip
import json
import struct
import threading

import numpy as np
from calib_serve.torchserve import calibrated

NAMES = {NAMES!r}
W = np.array({WEIGHTS.round(6).tolist()!r})


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def read(data):
    rows = [row.get("data") or row.get("body") for row in data]
    return [json.loads(row) if isinstance(row, (bytes, bytearray)) else row for row in rows]


def named(p):
    return {{"class": NAMES[int(p.argmax())], "score": float(p.max())}}


class Mine:
    def initialize(self, context):
        self.state = {{}}

    def inference(self, x):
        return np.asarray(x, float) @ W

    def handle(self, data, context):
        rows = read(data)
        return [self.reply(p, row) for p, row in zip(softmax(self.inference([r["x"] for r in rows])), rows)]

    def reply(self, p, row):
        return named(p)

"""

Seen = list[tuple[Any, Any]]
"""What a client sees: the class and the confidence of each part of a reply, None where it sees none."""


def by_name(reply: Any) -> Seen:
    return [(NAMES.index(reply["class"]), reply.get("score"))]


def by_parts(reply: Any) -> Seen:
    return [seen for one in reply for seen in by_name(one)]


def by_text(reply: Any) -> Seen:
    found = re.search(rf"({'|'.join(NAMES)})\D+(\d+(?:\.\d+)?) ?%", reply)
    assert found is not None
    return [(NAMES.index(found[1]), float(found[2]) / 100)]


@dataclass(frozen=True)
class Kind:
    """A handler's body, and how its reply is read.

    ``beside``: what a request holds beside "x", by its number. ``digits``: to which a confidence is shown.
    ``receipts``: whether some replies, all or none must have one. ``declared``: it says whose its rows are.
    """

    body: str
    seen: Callable[[Any], Seen] = by_name
    beside: Callable[[int], dict[str, Any]] = field(default=lambda i: {})
    digits: float = 1e-4
    receipts: str = "all"
    declared: bool = False
    multilabel: bool = False


BUCKETS = """
    def handle(self, data, context):
        rows = read(data)
        order = sorted(range(len(rows)), key=lambda i: rows[i]["n"] > 3)
        p = softmax(self.inference([rows[i]["x"] for i in order]))
        back = [None] * len(rows)
        for place, i in enumerate(order):
            back[i] = %s
        return back
"""
FACES = """
    def handle(self, data, context):
        rows = read(data)
        owner = [i for i, r in enumerate(rows) for _ in range(r["n"])]
        x = [np.add(rows[i]["x"], 0.5 * k) for i, r in enumerate(rows) for k in range(r["n"])]
        found = [[] for _ in rows]
        if x:
            %s
            for p, i in zip(scores, owner):
                found[i].append(named(p))
        return found
"""
CASCADE = """
    def handle(self, data, context):
        x = np.array([r["x"] for r in read(data)])
        p = %s
        for i, q in enumerate(np.sort(p, 1)):
            if q[-1] - q[-2] < 0.1:
                p[i] = softmax(3 * x[i:i + 1] @ W[:, ::-1])[0]
        return [named(q) for q in p]
"""

KINDS: dict[str, Kind] = {
    "a class and its score": Kind(""),
    "batches by length": Kind(
        BUCKETS % "named(p[place])", beside=lambda i: {"n": 1 + (i % 3) * 2}, receipts="some"
    ),
    "batches by length, labels alone": Kind(
        BUCKETS % '{"class": NAMES[int(p[place].argmax())]}',
        beside=lambda i: {"n": 1 + (i % 3) * 2},
        receipts="some",
    ),
    "two faces in one picture and none in another": Kind(
        FACES % "scores = softmax(self.inference(x))", by_parts, lambda i: {"n": i % 3}, receipts="some"
    ),
    "faces, declared": Kind(
        FACES % "scores = softmax(calibrated(self.inference(x), rows=owner))",
        by_parts,
        lambda i: {"n": i % 3},
        receipts="some",
        declared=True,
    ),
    "a cascade": Kind(CASCADE % "softmax(self.inference(x))", receipts="some"),
    "a cascade, declared": Kind(
        """
    def handle(self, data, context):
        x = np.array([r["x"] for r in read(data)])
        z = self.inference(x)
        q = np.sort(softmax(z), 1)
        hard = q[:, -1] - q[:, -2] < 0.1
        p = softmax(calibrated(z, rows=[None if h else i for i, h in enumerate(hard)]))
        p[hard] = softmax(3 * x[hard] @ W[:, ::-1])
        return [named(q) for q in p]
""",
        receipts="some",
        declared=True,
    ),
    "a filter by request": Kind(
        """
    def reply(self, p, row):
        keep = np.isin(np.arange(len(p)), row.get("allowed", range(5)))
        p *= keep
        p /= p.sum()
        return named(p)
""",
        beside=lambda i: {"allowed": [0, 1, 2]} if i % 2 else {},
        receipts="some",
    ),
    "a threshold of its own": Kind(
        """
    def reply(self, p, row):
        k = 2 if p[2] > 0.2 else int(p.argmax())
        return {"class": NAMES[k], "score": float(p[k])}
""",
        receipts="some",
    ),
    "a label by costs": Kind(
        """
    def reply(self, p, row):
        return {"class": NAMES[int((p * [1, 3, 1, 1, 1]).argmax())]}
""",
        receipts="some",
    ),
    "smoothed over frames": Kind(
        """
    def reply(self, p, row):
        p = self.state[row["camera"]] = (p + self.state.get(row["camera"], p)) / 2
        return named(p)
""",
        beside=lambda i: {"camera": i % 2},
        receipts="some",
    ),
    "the mean of three views": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        views = [[np.multiply(r["x"], s) for s in (1.0, 0.9, 1.1)] for r in rows]
        return [named(softmax(self.inference(v)).mean(0)) for v in views]
""",
        receipts="none",
    ),
    "the mean of three views, declared": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        views = [[np.multiply(r["x"], s) for s in (1.0, 0.9, 1.1)] for r in rows]
        p = np.stack([softmax(self.inference(v)).mean(0) for v in views])
        z = calibrated(np.log(p), rows=range(len(rows)))
        return [named(q) for q in softmax(z)]
""",
        declared=True,
    ),
    "sorted by confidence": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        found = [self.reply(p, r) for p, r in zip(softmax(self.inference([r["x"] for r in rows])), rows)]
        return sorted(found, key=lambda one: -one["score"])
""",
        receipts="some",
    ),
    "a cache by input": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        new = {str(r["x"]): r["x"] for r in rows if str(r["x"]) not in self.state}
        if new:
            self.state.update(zip(new, map(named, softmax(self.inference([*new.values()])))))
        return [self.state[str(r["x"])] for r in rows]
""",
        beside=lambda i: {"twin": i % 4 == 3},
        receipts="some",
    ),
    "threads of its own": Kind(
        """
    def handle(self, data, context):
        rows, found = read(data), {}
        def run(i):
            found[i] = named(softmax(self.inference([rows[i]["x"]]))[0])
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(rows))]
        for thread in threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[i] for i in range(len(rows))]
""",
        receipts="some",
    ),
    "the likeliest three": Kind(
        """
    def reply(self, p, row):
        return {NAMES[k]: float(p[k]) for k in np.argsort(-p)[:3]}
""",
        lambda reply: [(NAMES.index(next(iter(reply))), max(reply.values()))],
    ),
    "a text in percent": Kind(
        """
    def reply(self, p, row):
        return "%s: %.1f %%" % (NAMES[int(p.argmax())], 100 * p.max())
""",
        by_text,
        digits=1e-3,
    ),
    "a page of HTML": Kind(
        """
    def reply(self, p, row):
        return "<html><b>%s</b> <i>%d %%</i></html>" % (NAMES[int(p.argmax())], round(100 * p.max()))
""",
        by_text,
        digits=1e-2,
    ),
    "all scores, a label, its score and name, input by input": Kind(
        """
    def handle(self, data, context):
        found = [softmax(self.inference([r["x"]]))[0] for r in read(data)]
        return [{"scores": p.tolist(), "label": int(p.argmax()), "score": float(p.max()),
                 "class": NAMES[int(p.argmax())]} for p in found]
""",
    ),
    "names with numbers in them": Kind(
        """
    def reply(self, p, row):
        return {"label": "LABEL_%d" % p.argmax(), "says": "type 2, class %d" % p.argmax()}
""",
        lambda reply: [(int(reply["label"].removeprefix("LABEL_")), None)],
    ),
    "a label alone": Kind(
        """
    def reply(self, p, row):
        return NAMES[int(p.argmax())]
""",
        lambda reply: [(NAMES.index(reply), None)],
    ),
    "numbers alone": Kind(
        """
    def reply(self, p, row):
        return p.tolist()
""",
        lambda reply: [(int(np.argmax(reply)), max(reply))],
    ),
    "bytes of a message": Kind(
        """
    def reply(self, p, row):
        return struct.pack("<Bd", int(p.argmax()), p.max())
""",
        lambda reply: [(reply[0], None)],
        receipts="none",
    ),
    "compressed bytes": Kind(
        """
    def reply(self, p, row):
        return gzip.compress(json.dumps(named(p)).encode(), mtime=0)
""",
        lambda reply: by_name(json.loads(gzip.decompress(reply))),
        receipts="none",
    ),
    "compressed bytes, declared": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        z = calibrated(self.inference([r["x"] for r in rows]), rows=range(len(rows)))
        return [gzip.compress(json.dumps(named(p)).encode(), mtime=0) for p in softmax(z)]
""",
        lambda reply: by_name(json.loads(gzip.decompress(reply))),
        declared=True,
    ),
    "declared in reverse": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        z = calibrated(self.inference([r["x"] for r in rows]), rows=range(len(rows))[::-1])
        return [named(p) for p in softmax(z)]
""",
        receipts="some",
        declared=True,
    ),
    "declared of too many": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        z = calibrated(self.inference([r["x"] for r in rows]), rows=range(1, len(rows) + 1))
        return [named(p) for p in softmax(z)]
""",
        receipts="none",
        declared=True,
    ),
    "instances of KServe v1": Kind(
        """
    def handle(self, data, context):
        rows = [r["instances"] for r in read(data)]
        p = iter(softmax(self.inference([one["x"] for r in rows for one in r])))
        return [{"predictions": [named(next(p)) for _ in r]} for r in rows]
""",
        lambda reply: by_parts(reply["predictions"]),
        beside=lambda i: {"instances": 1 + i % 3},
    ),
    "labels above a threshold": Kind(
        """
    def handle(self, data, context):
        rows = read(data)
        p = 1 / (1 + np.exp(-self.inference([r["x"] for r in rows])))
        return [{n: float(v) for n, v in zip(NAMES, q)} for q in p]
""",
        lambda reply: [(None, reply)],
        multilabel=True,
    ),
}  # fmt: skip


def handler_source(kind: Kind) -> str:
    """The handler's file."""
    return HEAD + kind.body
