"""Claim: a Reporter in a server's process takes next to nothing of its throughput, or of its slowest replies.

    python benchmarks/reporter_servers.py [--seconds 4] [--rounds 9] [--connections 16] [--quick]

The examples of FastAPI and LitServe, each with a model that takes 1 ms (a sleep), run in three forms:
``plain`` as its users write it, ``calibrated`` with the artifact alone, ``reported`` with receipts and with
predictions that a running ``calib-serve watch`` counts. All run at once and are asked in turns, by
connections that each send the next request at the reply to the last. Ratios are of the same round, and
their medians count; ``same/same`` is the ratio of two turns of one form in one round: what differs there is
noise. ``cpu_us`` is processor time of the server's processes a request, which other programs disturb least.
The watch, the servers and the clients share this machine's cores.
Writes benchmarks/results/reporter_servers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import peers
import psutil

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.core.process import interruptible

EXAMPLES = peers.ROOT / "examples" / "servers"
FEATURES, CLASSES = 16, 10
KEYS = ("a_second", "p50_ms", "p99_ms", "cpu_us")
FORMS = ("plain", "calibrated", "reported")
BODIES = {"fastapi": [[0.5] * FEATURES], "litserve": {"x": [0.5] * FEATURES}}


def program(server: str, form: str, port: int, watch: int) -> str:
    """The example with a model of 1 ms; ``calibrated`` is the one with a Reporter without its Reporter."""
    text = (EXAMPLES / server / ("plain.py" if form == "plain" else "calibrated.py")).read_text()
    changes = {
        r"^import numpy as np$": "import time\n\nimport numpy as np",
        r"^( +)(logits =.*)$": r"\1time.sleep(0.001)\n\1\2",
        "workers_per_device=2": "workers_per_device=1",
        "port=8000": f'port={port}, log_level="warning"',
        "http://127.0.0.1:9300": f"http://127.0.0.1:{watch}",
    }
    if form == "calibrated":
        changes |= {
            "import Reporter": "import Artifact",
            r"Reporter\(.*\)": 'Artifact.load("artifact")',
            r"reporter\.artifact\.": "reporter.",
            r"on_shutdown=.*?\]": "",
            r"(self\.)?reporter\.served\(probs\)": '[""] * len(probs)',
        }
    for old, new in changes.items():
        text = re.sub(old, new, text, flags=re.MULTILINE)
    assert text.count("time.sleep(0.001)") == 1
    return text


def command(server: str, path: Path, port: int) -> list[str]:
    if server == "fastapi":
        options = ["--port", str(port), "--no-access-log", "--log-level", "warning"]
        return [sys.executable, "-m", "uvicorn", f"{path.stem}:app", *options]
    return [str(Path(sys.prefix) / "servers" / server / "bin" / "python"), path.name]


@contextmanager
def running(words: list[str], folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in ``folder``, once ``url`` answers."""
    environ = {**os.environ, "PYTHONPATH": str(peers.ROOT), "CALIB_SERVE_KEYRING": "keyring.json"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not answers(url):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{words} did not start:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # as Ctrl-C: LitServe leaves its workers behind at SIGTERM
        process.wait(120)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


async def ask(port: int, request: bytes, until: float, took: list[float]) -> None:
    """One connection: a request at each reply to the last; seconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        took.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


def cpu_seconds(pid: int) -> float:
    """Of a program and of what it started and still runs."""
    one = psutil.Process(pid)
    times = [each.cpu_times() for each in (one, *one.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def turn(server: str, pid: int, port: int, options: argparse.Namespace) -> dict[str, float]:
    """Requests a second, percentiles of their milliseconds, and the share of a core that asking took."""
    body = json.dumps(BODIES[server]).encode()
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    took: list[float] = []

    async def all_connections() -> None:
        until = time.perf_counter() + options.seconds
        await asyncio.gather(*(ask(port, request, until, took) for _ in range(options.connections)))

    began, own, before = time.perf_counter(), time.process_time(), cpu_seconds(pid)
    asyncio.run(all_connections())
    seconds, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
    p50, p99 = np.percentile(took, [50, 99]) * 1e3
    return {
        "requests": len(took),
        "a_second": len(took) / seconds,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "cpu_us": cpu / len(took) * 1e6,
        "asking": (time.process_time() - own) / seconds,
    }


def ratio(rounds: list[dict[str, Any]], key: str, over: str, under: str) -> dict[str, float]:
    found = [one[over][key] / one[under][key] for one in rounds]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def measure(server: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All forms of one server, asked in turns."""
    watch, *ports = free_ports(1 + len(FORMS))
    watching = [
        sys.executable,
        "-c",
        "from calib_serve.app import main; main()",
        "watch",
        "digits:1=artifact",
    ]
    watching += ["--keyring", "keyring.json", "--port", str(watch)]
    with ExitStack() as stack:
        stack.enter_context(interruptible())  # a server that is started here ends by SIGINT as well
        watcher = stack.enter_context(running(watching, folder, f"http://127.0.0.1:{watch}/healthz"))
        at = {}
        for form, port in zip(FORMS, ports, strict=True):
            path = folder / f"{server}_{form}.py"
            path.write_text(program(server, form, port, watch))
            health = f"http://127.0.0.1:{port}/{'health' if server == 'litserve' else 'openapi.json'}"
            process = stack.enter_context(running(command(server, path, port), folder, health))
            at[form] = (process.pid, port)
        rounds: list[dict[str, Any]] = []
        asked, before = 0, cpu_seconds(watcher.pid)
        for number in range(options.rounds + 1):
            order = np.random.default_rng(number).permutation([*FORMS, "reported again"])
            one = {form: turn(server, *at[form.removesuffix(" again")], options) for form in order}
            asked += sum(one[form]["requests"] for form in ("reported", "reported again"))
            if number:  # the first warms up
                rounds.append(one)
        counted = wait_for_count(watch, asked)
        watching_cpu = (cpu_seconds(watcher.pid) - before) / asked * 1e6
    return {
        "rounds": rounds,
        "asked": asked,
        "counted": counted,
        "watch_cpu_us": watching_cpu,
        **{
            key: {
                "reported/calibrated": ratio(rounds, key, "reported", "calibrated"),
                "reported/plain": ratio(rounds, key, "reported", "plain"),
                "same/same": ratio(rounds, key, "reported again", "reported"),
            }
            for key in KEYS
        },
        "asking_most": max(turned["asking"] for one in rounds for turned in one.values()),
    }


def wait_for_count(watch: int, asked: int) -> int:
    """What the watch has counted, once that is all or a minute is over."""
    end = time.monotonic() + 60
    while True:
        text = httpx.get(f"http://127.0.0.1:{watch}/metrics", timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith("calib_predictions_total{")]
        counted = int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))
        if counted >= asked or time.monotonic() > end:
            return counted
        time.sleep(0.5)


def prepare(folder: Path) -> None:
    rng = np.random.default_rng(7)
    np.savez(folder / "weights.npz", W=rng.normal(size=(FEATURES, CLASSES)), b=rng.normal(size=CLASSES))
    artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=CLASSES)
    artifact.save(folder / "artifact")
    Keyring.new().save(folder / "keyring.json")


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--connections", type=int, default=16)
    options = peers.arguments(parser, seconds=1, rounds=2)
    servers: dict[str, Any] = {}
    absent: dict[str, str] = {}
    if not (Path(sys.prefix) / "servers" / "litserve").is_dir():
        absent["litserve"] = "its environment is missing: run scripts/server_environments.sh litserve"
        print(f"litserve: {absent['litserve']}", flush=True)
    for server in (server for server in BODIES if server not in absent):
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder))
            servers[server] = found = measure(server, options, Path(folder))
        for key in KEYS:
            told = ", ".join(f"{name} {value['median']:.3f}" for name, value in found[key].items())
            print(f"{server:9} {key:9} {told}")
        print(f"{server:9} counted {found['counted']} of {found['asked']}", end=", ")
        print(f"watch {found['watch_cpu_us']:.0f} us of CPU each", flush=True)
    peers.save("reporter_servers", {"absent": absent, "servers": servers}, options)


if __name__ == "__main__":
    main()
