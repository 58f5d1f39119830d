"""What the series and rules cost a real Prometheus, for deployment.py: memory, disk and processor."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from calib_serve.receipts.series import SERIES, SUMS, WORKERS, Series
from calib_serve.web import monitoring_files

BINS = 15
EVERY = 15  # seconds between scrapes
_COUNTS = ("predictions", "feedback", "feedback_weight", "feedback_correct")
_OF_EACH = ("calib_predictions_", "calib_invalid_", "calib_uncalibrated_")
_LEDGER = 'ledger="5eef",edition="1"'
_FAMILIES = [one for one in (*SERIES, *WORKERS) if {"model", "version"} <= set(one.labels)]


def rows(versions: int, replicas: int = 1) -> list[tuple[str, str, float]]:
    """(family, series, its rise in a scrape): replicas count predictions, a watch labels."""
    draw = random.Random(0)
    return [
        (
            one.name,
            f'{one.name}{{model="model-{v}",version="1",instance="{i}"'
            + "".join(f',{label}="{value}"' for label, value in more)
            + ("}" if one.name.startswith(_OF_EACH) else f",{_LEDGER}}}"),
            draw.uniform(1, 40) if one.kind == "counter" else 0.0,
        )
        for one in _FAMILIES
        for v in range(versions)
        for i in range(replicas if one.name.startswith(_OF_EACH) else 1)
        for more in _labels(one)
    ]


def _labels(one: Series) -> Iterator[tuple[tuple[str, str], ...]]:
    """The labels by which a version has several series of one name."""
    values = {
        "bin": [str(b) for b in range(BINS)],
        "window": ["24h"] if "bin" in one.labels else ["5m", "1h", "24h"],
        "sum": [each.short for each in SUMS if each.in_windows],
    }
    own = [[(label, value) for value in of] for label, of in values.items() if label in one.labels]
    yield from itertools.product(*own)


def memory(versions: int, scrapes: int, folder: Path) -> dict[str, float]:
    """Resident bytes and series of a Prometheus that scraped so many versions ``scrapes`` times."""
    told = rows(versions)
    with served(told) as target, running(folder, target=target, interval=1) as url:
        until = time.monotonic() + scrapes + 60
        while number(url, "max(count_over_time(up[1h]))") < scrapes:
            assert time.monotonic() < until, "Prometheus does not scrape"
            time.sleep(1)
        return {
            "series": number(url, "max(prometheus_tsdb_head_series)"),
            "bytes": _metric(url, "process_resident_memory_bytes"),
            "exposition_bytes": float(len(_text(told, 1000))),
        }


def disk(versions: int, hours: float, folder: Path) -> float:
    """Bytes a sample, index and all, of ``hours`` at the usual interval."""
    now = int(time.time())
    samples = _backfilled(rows(versions), range(now - int(hours * 3600), now, EVERY), folder)
    return sum(path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file()) / samples


def evaluation(versions: int, replicas: int, folder: Path, *, rounds: int) -> dict[str, Any]:
    """Processor seconds that the rules take for a version, and how many series they record.

    They find the samples that they read: of the last hour all, of a day one for each of their steps.
    """
    now = int(time.time())
    times = {
        *range(now - 86_400, now, 120),
        *range(now - 3600, now, EVERY),
    }
    _backfilled(rows(versions, replicas), sorted(times), folder)
    # What ledgers hold now: more than all that is told of the past.
    fresh = [(name, series, 1e6) for name, series, _ in rows(versions) if _LEDGER in series]
    text = monitoring_files(parts=["rules"])["prometheus/rules.yml"]
    (folder / "rules.yml").write_text(
        text.replace("interval: 4m", "interval: 40s").replace("interval: 30s", "interval: 5s")
    )
    with served(fresh) as target, running(folder, target=target, rules=True) as url:
        while number(url, "count(model_version:calib_labels:24h >= 1e6)") < versions:
            time.sleep(1)
        _evaluations(url, _evaluations(url, 1) + 2)
        cpu, done = _metric(url, "process_cpu_seconds_total"), _evaluations(url, 1)
        more = _evaluations(url, done + rounds) - done
        seconds = (_metric(url, "process_cpu_seconds_total") - cpu) / more / versions
        recorded = number(url, "count({__name__=~'model_version.*', exported_instance=''})") / versions
    return {"recorded_series": recorded, "seconds": seconds}


def _evaluations(url: str, least: float) -> float:
    """How often the numbers were evaluated, once that is at least so often."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        done, missed = (
            _metric(url, rf'prometheus_rule_group_iterations{what}_total{{rule_group="[^"]*calib_numbers"}}')
            for what in ("", "_missed")
        )
        done -= missed
        if done >= least:
            return done
        time.sleep(1)
    raise AssertionError("Prometheus does not evaluate the rules")


def _metric(url: str, name: str) -> float:
    """The only value of one of Prometheus' own metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", answer.read().decode(), re.M)
    return float(found[1]) if found else 0.0


def _backfilled(told: list[tuple[str, str, float]], times: Sequence[int], folder: Path) -> int:
    """Blocks of samples at these times; how many samples."""
    family, whole = "", {f"calib_{one}_total" for one in _COUNTS}
    with (folder / "samples.txt").open("w") as file:
        for name, series, per_scrape in told:
            if name != family:
                kind = "counter" if name.endswith("_total") else "gauge"
                file.write(f"# TYPE {name.removesuffix('_total')} {kind}\n")
                family = name
            value, draw, last = 0.0, random.Random(series), times[0]
            lines = []
            for at in times:
                value += round(per_scrape * draw.random() * (at - last) / EVERY, 0 if name in whole else 4)
                lines.append(f"{series} {value:.12g} {at}\n")
                last = at
            file.writelines(lines)
        file.write("# EOF\n")
    # Blocks as large as Prometheus makes them of older ones.
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=168h", "openmetrics"]
    subprocess.run([*command, "--quiet", "samples.txt", "data"], cwd=folder, check=True)
    (folder / "samples.txt").unlink()
    return len(told) * len(times)


def _text(told: list[tuple[str, str, float]], scrape: int) -> bytes:
    return "".join(f"{series} {scrape * up:.3f}\n" for _, series, up in told).encode()


@contextlib.contextmanager
def served(told: list[tuple[str, str, float]]) -> Iterator[str]:
    """The host of a server whose counters go up at each scrape."""

    class Handler(BaseHTTPRequestHandler):
        scrapes = 0

        def do_GET(self) -> None:
            Handler.scrapes += 1
            body = _text(told, Handler.scrapes)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def running(folder: Path, *, target: str = "", interval: int = EVERY, rules: bool = False) -> Iterator[str]:
    """The address of a Prometheus in ``folder``, with rules.yml of there if told so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    targets = [one for one in (target, f"127.0.0.1:{port}") if one]
    settings = {
        "global": {"scrape_interval": f"{interval}s", "evaluation_interval": "5s"},
        "rule_files": ["rules.yml"] if rules else [],
        "scrape_configs": [{"job_name": "bench", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    program = shutil.which("prometheus")
    assert program, "needs the program prometheus"
    listen = f"--web.listen-address=127.0.0.1:{port}"
    command = [program, "--config.file=prometheus.yml", listen, "--storage.tsdb.path=data"]
    # Nothing is compacted meanwhile.
    command += ["--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _ready(url)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _ready(url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError("Prometheus did not start")


def number(url: str, expression: str) -> float:
    """The only value that an expression finds; 0 where it finds none."""
    asked = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=120) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0
