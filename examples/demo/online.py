"""The online half of the demo: a real TorchServe, real labels, and its counters."""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from digits import Split
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from calib_serve.core.bins import Bins
from calib_serve.core.errors import ServerError
from calib_serve.receipts import LabelledSamples, read_samples
from calib_serve.torchserve import Batching, Ports, Server, ensure_keyring, pack, pack_feedback

MODEL = "digits"
FEEDBACK = "calibration_feedback"
_PATIENCE = 120.0  # seconds until counters must have arrived


def fresh_folder(folder: Path) -> Path:
    """Make the server's folder, with a new keyring and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)  # an earlier run's counts would be continued
    ensure_keyring(folder)
    return folder


def server(
    model: Path, artifact: Path, *, version: str, store: Path, folder: Path, ports: Ports | None
) -> Server:
    """Pack both archives into ``store`` and make, not start, the server that runs in ``folder``."""
    pack(
        model,
        artifact,
        store,
        name=MODEL,
        version=version,
        input_shape=(1, 8, 8),
        batching=Batching(workers=2, batch_size=8),
    )
    # Its labels come at once: there is no delay to learn.
    pack_feedback(store, archives=[store / f"{MODEL}.mar"], name=FEEDBACK, maturity="0")
    return Server(
        store,
        [f"{MODEL}.mar", f"{FEEDBACK}.mar"],
        folder=folder,
        ports=ports,
        samples=folder / "samples",
        sample_rate=1.0,
        sample_seconds=1.0,
    )


def sampled(server: Server, *, version: str, predictions: int, latest: int) -> LabelledSamples:
    """The ``latest`` labelled samples of ``predictions``, once the server has written all of them."""
    end = time.monotonic() + _PATIENCE
    while True:
        kept = read_samples(server.folder / "samples", model=MODEL, version=version, most=latest)
        written = min(kept.predictions, kept.labels_seen)
        if written >= predictions:
            return kept
        if time.monotonic() > end:
            raise ServerError(f"{predictions} samples should be kept, {written} are")
        time.sleep(0.2)


@dataclass(frozen=True)
class Answers:
    """The server's replies to ``n`` images, in order."""

    replies: Sequence[Mapping[str, Any]]
    labels: NDArray[np.int64]
    workers: Mapping[str, int]

    @property
    def items(self) -> list[dict[str, Any]]:
        """Pair each receipt with its true label, as the feedback endpoint takes them."""
        pairs = zip(self.replies, self.labels.tolist(), strict=True)
        return [{"receipt": reply["receipt"], "label": label} for reply, label in pairs]

    @property
    def bins(self) -> Bins:
        """The client's own bins of these predictions."""
        predicted = np.array([reply["predicted"] for reply in self.replies])
        return Bins.tally([reply["confidence"] for reply in self.replies], predicted == self.labels)


def predict(server: Server, split: Split, *, connections: int = 8) -> Answers:
    """Send every image over HTTP, several at a time."""
    with server.client() as client, ThreadPoolExecutor(connections) as pool:
        replies = list(pool.map(lambda image: _predict(client, image), split.images))
    workers = Counter(reply.headers["x-calib-worker"] for reply in replies)
    return Answers([reply.json() for reply in replies], split.labels, workers)


def _predict(client: httpx.Client, image: NDArray[np.float32]) -> httpx.Response:
    reply = client.post(f"/predictions/{MODEL}", json=image.tolist())
    if reply.status_code != 200:
        raise ServerError(f"a prediction was answered with {reply.status_code}: {reply.text[:200]}")
    return reply


def send_labels(server: Server, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Send labels; returns the outcome of each, in order."""
    outcomes: list[dict[str, Any]] = []
    with server.client() as client:
        for start in range(0, len(items), 250):  # labels per request
            reply = client.post(f"/predictions/{FEEDBACK}", json=items[start : start + 250])
            if reply.status_code != 200:
                raise ServerError(f"labels were answered with {reply.status_code}: {reply.text[:200]}")
            outcomes += reply.json()["outcomes"]
    return outcomes


def refusals(server: Server, answers: Answers) -> dict[str, dict[str, Any]]:
    """Send a forged receipt, a repeated one, and invalid labels; return the server's outcomes."""
    good = answers.items[0]
    token = str(good["receipt"])
    middle = len(token) // 2
    forged = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    attempts = {
        "forged receipt": {**good, "receipt": forged},
        "replayed receipt": good,
        "bad label": {**answers.items[1], "label": 10},
        "no receipt": {"label": 3},
    }
    return dict(zip(attempts, send_labels(server, list(attempts.values())), strict=True))


@dataclass(frozen=True)
class Counters:
    """One scrape of the metrics endpoint: family, then its labels, then the value."""

    samples: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]

    @classmethod
    def scrape(cls, server: Server) -> Counters:
        """Scrape the server as Prometheus would."""
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(server.scrape()):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return cls(samples)

    @classmethod
    def after(cls, server: Server, labels: int) -> Counters:
        """Wait for the scrape in which ``labels`` labels have arrived."""
        return cls.until(server, "calib_feedback_total", labels)

    @classmethod
    def until(cls, server: Server, name: str, total: int) -> Counters:
        """Wait for the scrape in which a family adds up to ``total``; counters are flushed once a second."""
        return cls._once(server, lambda now: now.total(name) >= total, f"{name} should be {total}")

    @classmethod
    def holding(cls, server: Server, bins: Bins) -> Counters:
        """Wait for the scrape in which every feedback counter holds ``bins``.

        TorchServe takes counters line by line, so a scrape may hold some of a flush.
        """
        return cls._once(server, lambda now: _same(now.feedback(), bins), f"the counters should hold {bins}")

    @classmethod
    def _once(cls, server: Server, reached: Callable[[Counters], bool], should: str) -> Counters:
        end = time.monotonic() + _PATIENCE
        while not reached(now := cls.scrape(server)):
            if time.monotonic() > end:
                raise ServerError(
                    f"{should} after {_PATIENCE:.0f} s, and the feedback counters hold {now.feedback()}; "
                    f"see {server.log_file}"
                )
            time.sleep(0.2)
        return now

    def total(self, name: str) -> float:
        """The sum over all labels of one family."""
        return sum(self.samples.get(name, {}).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """One family's values by one of its labels."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels)[label]
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def feedback(self) -> Bins:
        """The bins that the labels of the last day fill."""
        names = ("feedback", "feedback_confidence", "feedback_correct")
        columns: dict[str, dict[int, float]] = {name: defaultdict(float) for name in names}
        for labels, value in self.samples.get("calib_window_sums", {}).items():
            of = dict(labels)
            if of["window"] == "24h" and of["sum"] in columns:
                columns[of["sum"]][int(of["bin"])] += value
        order = sorted(set().union(*columns.values()))
        return Bins(*(np.array([column[place] for place in order]) for column in columns.values()))


def _same(counted: Bins, expected: Bins) -> bool:
    whole = counted.n == expected.n and np.array_equal(counted.correct, expected.correct)
    return whole and np.allclose(counted.confidence, expected.confidence, rtol=0, atol=1e-6 * expected.n)
