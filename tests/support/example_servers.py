"""Examples of other model servers, run as their pages say, with a real ``calib-serve watch`` beside them.

An example is copied into a folder of its own, with the files that its page asks for. The ports that it names
become free ones, as in a reader's terminal.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from live_server import total, until
from processes import end, free_ports
from real_servers import Server

from calib_serve import Artifact
from calib_serve.artifact import LogitMap

EXAMPLES = Path(__file__).parents[2] / "examples" / "servers"
FEATURES, CLASSES = 16, 10
WATCH_PORT = 9300
_NUMBER = re.compile(r"(?<![\d.])(\d{4})(?!\d)")


def weights(seed: int = 7) -> dict[str, np.ndarray]:
    """``W`` (16, 10) and ``b`` (10,) of a linear classifier."""
    rng = np.random.default_rng(seed)
    return {"W": rng.normal(size=(FEATURES, CLASSES)), "b": rng.normal(size=CLASSES)}


def rows(n: int, seed: int = 0) -> np.ndarray:
    """(n, 16) float32."""
    return np.random.default_rng(seed).normal(size=(n, FEATURES)).astype(np.float32)


def artifact() -> Artifact:
    """A temperature for that classifier."""
    return Artifact((LogitMap.temperature(2.0),), method="temperature", classes=CLASSES)


def expected(x: np.ndarray) -> np.ndarray:
    """Calibrated probabilities (n, 10) of the rows ``x``."""
    model = weights()
    return artifact().of_logits(np.asarray(x, float) @ model["W"] + model["b"])


@dataclass
class Site:
    """A folder with an example and its files; a watch, started or not; the ports that stand for theirs."""

    folder: Path
    watch: Server
    ports: dict[int, int]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    before: str = ""  # the watch's metrics, from which it is counted

    def mark(self) -> Site:
        """Itself, which counts from now on."""
        self.before = self._metrics()
        return self

    def url(self, port: int, path: str = "") -> str:
        """Where what the example calls ``port`` listens."""
        return f"http://127.0.0.1:{self.ports[port]}/{path}"

    def here(self, text: str) -> str:
        """A text of the example with the ports of this site."""
        return _NUMBER.sub(lambda found: str(self.ports.get(int(found[1]), found[1])), text)

    def counted(self, name: str, **labels: str) -> float:
        """What was added to the sum of a family of the watch's metrics."""
        return total(self._metrics(), name, **labels) - total(self.before, name, **labels)

    def _metrics(self) -> str:
        return httpx.get(f"{self.watch.url}/metrics", timeout=30).text

    def until_counted(self, n: float, *, name: str = "calib_predictions_total", seconds: float = 60) -> None:
        """Waits until a family of the watch comes to ``n``; fails where it comes to something else."""
        with suppress(AssertionError):
            until(lambda: self.counted(name) >= n, seconds=seconds)
        counted = self.counted(name)
        assert counted == n, f"{counted} of {n} are counted in {name}"

    def keys(self) -> dict[str, str]:
        """The variable that names the keyring, which the watch has, too."""
        return {"CALIB_SERVE_KEYRING": str(self.folder / "keyring.json")}

    def environ(self) -> dict[str, str]:
        """What an example runs with that lives in this Python's environment."""
        return {**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1]), **self.keys()}

    def log(self) -> str:
        """What the servers of this site have written."""
        return "\n".join(path.read_text("utf-8", "replace") for path in sorted(self.folder.glob("*.log")))

    @contextmanager
    def serving(
        self,
        command: Sequence[str | Path],
        ready: Callable[[], bool],
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """``command`` in the folder, ready; ended afterwards with all that it started."""
        typed = [self.here(str(word)) for word in command]
        with (self.folder / f"server{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                typed,
                cwd=self.folder,
                env={**(environ or os.environ)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        try:
            until(lambda: process.poll() is not None or ready(), seconds=180)
            assert process.poll() is None, self.log()
            yield process
        finally:
            end(process)


def answers(url: str) -> Callable[[], bool]:
    """Whether ``url`` answers 200."""

    def ready() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(url, timeout=5).status_code == 200
        return False

    return ready


def site_of(name: str, folder: Path, *ports: int) -> Site:
    """A site of the example ``name``, whose files name these ports; nothing is started."""
    free = dict(zip((WATCH_PORT, *ports), free_ports(1 + len(ports)), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    artifact().save(folder / "artifact")
    np.savez(folder / "weights.npz", **weights())
    watch = Server(
        folder, "--maturity", "0", models=(f"digits:1={folder / 'artifact'}",), port=free[WATCH_PORT]
    )
    (folder / "keyring.json").symlink_to(folder / "keys.json")
    site = Site(folder, watch, free)
    for path in (EXAMPLES / name).glob("*.py"):
        (folder / path.name).write_text(site.here(path.read_text()))
    return site
