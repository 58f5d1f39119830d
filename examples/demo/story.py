"""The quickstart's TorchServe project, from its first command to the number that Prometheus gives."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from calib_serve import Artifact
from calib_serve.app.projects import KINDS, first_commands, write_project
from calib_serve.torchserve import find_java

KIND = "torchserve"
_WATCH = (
    "calib-serve watch digits:1=artifact --keyring secrets/keyring.json --token-file secrets/tokens --port 0"
)
_PROMETHEUS = (
    "prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:0"
)
_ABOUT = """The quickstart's project, command by command: a small network is trained, calibrated, packed,
served and watched, in minutes. What must come out is "checked", each ECE (how far confidence is from
accuracy, on average) against numpy alone. The first check that does not hold ends the demo with 1."""
_PATIENCE = 180.0  # seconds for a server to be ready, or for a first scrape
_EXACT = 1e-6  # sums travel as decimal numbers; confidences are the server's float32

# The same number as Prometheus computes it from the sums of a day that the watch publishes.
_ECE = """sum(abs(sum by (bin) (calib_window_sums{window="24h",sum="feedback_confidence"})
- sum by (bin) (calib_window_sums{window="24h",sum="feedback_correct"})))
/ sum(calib_window_sums{window="24h",sum="feedback"})"""

_SCRAPES = """global: {scrape_interval: 1s}
scrape_configs:
  - job_name: calib-serve-watch
    authorization: {credentials_file: secrets/prometheus.token}
    static_configs: [{targets: ["@host"]}]
"""


class CheckFailed(Exception):
    """Something did not come out as it must."""


def check(holds: object, says: str) -> None:
    """Print what was checked; CheckFailed unless it ``holds``."""
    if not holds:
        raise CheckFailed(says)
    print(f"  checked: {says}")


def same(name: str, found: float, pencil: float) -> None:
    """Check a number against the pencil's."""
    check(abs(found - pencil) < _EXACT, f"ECE {name} {found:.9f}, by numpy alone {pencil:.9f}")


def ece(probs: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """By the pencil: the mean distance of confidence from accuracy over 15 bins (lo, hi] (Naeini 2015).

    >>> round(ece(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0])), 9)  # 0.75 said, 0.5 right
    0.25
    """
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    bins = [(confidence > lo) & (confidence <= hi) for lo, hi in pairwise(np.linspace(0, 1, 16))]
    return float(sum(abs(confidence[b].sum() - right[b].sum()) for b in bins) / len(labels))


@dataclass(frozen=True)
class Project:
    """A folder in which commands are typed, as in a terminal."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def write(cls, folder: Path) -> Project:
        """A new project in ``folder``, with its token in the environment."""
        write_project(folder, KIND)
        programs = (Path(sys.executable).parent, find_java().parent)
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        token = (folder / "secrets/app.token").read_text()
        return cls(folder, {**os.environ, "PATH": path, "CALIB_SERVE_TOKEN": token, "PYTHONUNBUFFERED": "1"})

    def type(self, command: str, *, may_refuse: bool = False) -> str:
        """Run a command to its end; return what it printed, CheckFailed unless it ended with 0."""
        print(f"\n$ {command}", flush=True)
        here = {"cwd": self.folder, "env": self.environment}
        done = subprocess.run(shlex.split(command), **here, check=False, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        if done.returncode not in ((0, 1) if may_refuse else (0,)):
            raise CheckFailed(f"{command} ended with {done.returncode}")
        return done.stdout

    @contextmanager
    def running(self, command: str, ready: str) -> Iterator[str]:
        """Start a command, and stop it at the end; yield the address in what it prints when ``ready``."""
        print(f"\n$ {command} &", flush=True)
        log = self.folder / "logs" / f"{'-'.join(command.split()[:2])}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this program alone, which then stops the others
            )
        try:
            until = time.monotonic() + _PATIENCE
            while (found := re.search(ready, log.read_text("utf-8", "replace"), re.S)) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise CheckFailed(f"{command} is not ready: see {log}")
                time.sleep(0.1)
            print(f"ready at {found[1]}")
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            finally:
                process.kill()


def tell(folder: Path) -> None:
    """Fit, pack, serve, label, count and compare; CheckFailed for what does not come out."""
    print(_ABOUT)
    project = Project.write(folder)
    for command in first_commands(KIND):
        project.type(command)
    raw, pencil, labels = by_pencil(folder)
    check(pencil < raw, f"ECE of {labels} test samples {raw:.4f} before calibration, {pencil:.4f} after")

    with project.running(_WATCH, r"watching .* on (http\S+)\n") as url:
        serve = f"{KINDS[KIND].serve} --free-ports"
        with project.running(serve, r"predict +(http://[\d.:]+).*Ctrl-C stops it") as server:
            client = folder / "client.py"
            client.write_text(client.read_text().replace("http://127.0.0.1:8080", server))
            project.type("python client.py")
        with (folder / "labels.csv").open() as file:
            _, *rows = csv.reader(file)
        check(len(rows) == labels, f"{len(rows)} predictions have receipts; the server is stopped now")
        count_once(project, rows, url)
        same("from /metrics", scraped(folder, url), pencil)
        if shutil.which("prometheus") is None:
            print("\nno prometheus on this host: it is not asked")
        else:
            ask_prometheus(project, url, pencil)
    print(f"\nEverything is in {folder}; README.md there goes on with your own model.")


def by_pencil(folder: Path) -> tuple[float, float, int]:
    """ECE of the test samples before and after calibration, without any server, and their number."""
    data = np.load(folder / "data.npz")
    with torch.inference_mode():
        logits = torch.export.load(folder / "model.pt2").module()(torch.from_numpy(data["test_inputs"]))
    before, labels = torch.softmax(logits.double(), dim=1).numpy(), data["test_labels"]
    return ece(before, labels), ece(Artifact.load(folder / "artifact").probs(logits), labels), len(labels)


def count_once(project: Project, rows: list[list[str]], url: str) -> None:
    """Send labels, again, and of a forged receipt: only the first time they count."""
    receipt, label = rows[0]
    # A letter amid the signature: the last one may hold bits that nothing reads.
    forged = receipt[:-10] + ("A" if receipt[-10] != "A" else "B") + receipt[-9:]
    n = len(rows)
    for what, sent, accepted, refused in (
        (f"{n} late labels are counted", rows, n, {}),
        ("a second time none is", rows, 0, {"duplicate": n}),
        ("a forged receipt is refused", [[forged, label]], 0, {"bad_signature": 1}),
    ):
        with (project.folder / "late.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("receipt", "label"), *sent])
        send = f"calib-serve label late.csv --url {url}/v1/labels --json"
        found = json.loads(project.type(send, may_refuse=True))
        check(found == {"accepted": accepted, "held": 0, "refused": refused}, f"{what}: {found}")


def scraped(folder: Path, url: str) -> float:
    """ECE from the sums of a day that the watch publishes."""
    token = (folder / "secrets/prometheus.token").read_text()
    text = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    sums: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text.raise_for_status().text):
        for sample in family.samples:
            if sample.name == "calib_window_sums" and sample.labels["window"] == "24h":
                sums.setdefault(sample.labels["sum"], {})[sample.labels["bin"]] = sample.value
    said, right = sums["feedback_confidence"], sums["feedback_correct"]
    return sum(abs(said[b] - right[b]) for b in said) / sum(sums["feedback"].values())


def ask_prometheus(project: Project, url: str, pencil: float) -> None:
    """Let a real Prometheus scrape the watch, and compute the same number."""
    (project.folder / "prometheus.yml").write_text(_SCRAPES.replace("@host", url.removeprefix("http://")))
    ready = r'Listening on" address=([\d.:]+).*ready to receive web requests'
    with project.running(_PROMETHEUS, ready) as address:
        until, found = time.monotonic() + _PATIENCE, []
        while not found:
            if time.monotonic() > until:
                raise CheckFailed("Prometheus has scraped nothing")
            time.sleep(0.2)
            answer = httpx.get(f"http://{address}/api/v1/query", params={"query": _ECE}, trust_env=False)
            found = answer.raise_for_status().json()["data"]["result"]
        same("by a Prometheus query", float(found[0]["value"][1]), pencil)
