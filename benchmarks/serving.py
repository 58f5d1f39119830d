"""What calibration, receipts and monitoring cost in TorchServe: the same model, with and without.

One server, one worker a model; rounds alternate between the two, so that whatever else the machine
does falls on both. "ratio" is calibrated over bare, "cpu ratio" bare over calibrated CPU time a
request, of server and worker together: both are 1 where calibration costs nothing. "in worker" is the
best time of a batch inside the worker, without the server: calibrated, and bare.

The bare handler is what TorchServe's own documentation leads to: BaseHandler, JSON lists to a tensor, and
the softmax as a dict, which TorchServe encodes. It reads the same bytes, runs the same file on one thread
and answers the same probabilities, without the confidence, the model's name and the receipt. Prints a
table and writes benchmarks/results/serving.json.

    python benchmarks/serving.py [--rounds 9] [--seconds 2] [--models linear resnet20]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import peers
import psutil
import torch
from cifar import ResNet

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.receipts.environment import KEYRING
from calib_serve.torchserve import pack
from calib_serve.torchserve.archive._archive import write_archive
from calib_serve.torchserve.properties import Ports
from calib_serve.torchserve.server import Server

BARE = '''
import os
import torch
from ts.torch_handler.base_handler import BaseHandler


class Bare(BaseHandler):
    """What one would write without us: JSON in, softmax out."""

    def initialize(self, ctx):
        super().initialize(ctx)
        torch.set_num_threads(1)

    def preprocess(self, data):
        return torch.tensor([row.get("body") or row.get("data") for row in data])

    def postprocess(self, outputs):
        return [{"probabilities": p} for p in torch.softmax(outputs, 1).tolist()]
'''
SHAPES = {"linear": (16,), "resnet20": (3, 32, 32)}


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return (torch.nn.Linear(16, 10) if name == "linear" else ResNet(3)).eval()


def archives(folder: Path, name: str, batch_size: int) -> list[str]:
    """The same TorchScript file, once bare and once calibrated."""
    shape = SHAPES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(network(name), torch.zeros(1, *shape))
        torch.jit.save(traced, str(folder / f"{name}.pt"))
    artifact = Artifact(
        (LogitMap.temperature(1.5),), method="temperature", classes=10, model={"input_shape": list(shape)}
    )
    model = folder / f"{name}.pt"
    pack(
        model,
        artifact,
        folder,
        name=f"{name}_calibrated_{batch_size}",
        batch_size=batch_size,
        threads=1,
        top=0,
        unproven=True,
    )
    (folder / "bare.py").write_text(BARE)
    config = f"minWorkers: 1\nmaxWorkers: 1\nbatchSize: {batch_size}\nmaxBatchDelay: 5\n".encode()
    bare = f"{name}_bare_{batch_size}"
    files = {"bare.py": folder / "bare.py", "model.pt": model, "model-config.yaml": config}
    write_archive(
        folder / f"{bare}.mar", files, name=bare, version="1.0", handler="bare.py", serialized_file="model.pt"
    )
    return [f"{bare}.mar", f"{name}_calibrated_{batch_size}.mar"]


class Connection:
    """One keep-alive HTTP connection that sends the same bytes again and again."""

    def __init__(self, server: Server, model: str, body: bytes) -> None:
        where = urlsplit(server.inference)
        self.socket = socket.create_connection((where.hostname, where.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST /predictions/{model} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {server.tokens.inference}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body

    def ask(self) -> None:
        self.socket.sendall(self.request)
        reply = self.socket.recv(65536)
        while b"\r\n\r\n" not in reply:
            reply += self.socket.recv(65536)
        head, _, body = reply.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), reply[:300]
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self.socket.recv(65536)


def load(server: Server, model: str, body: bytes, connections: int, seconds: float) -> list[float]:
    """Latencies, seconds, of all requests that ``connections`` clients got answered in ``seconds``."""
    latencies: list[list[float]] = [[] for _ in range(connections)]
    end = time.perf_counter() + seconds

    def run(mine: list[float]) -> None:
        connection = Connection(server, model, body)
        while (start := time.perf_counter()) < end:
            connection.ask()
            mine.append(time.perf_counter() - start)
        connection.socket.close()

    threads = [threading.Thread(target=run, args=(mine,)) for mine in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for mine in latencies for one in mine]


def cpu_seconds(server: Server, model: str) -> float:
    """CPU time that the server and the model's worker have used."""
    pids = [server.pid, *server.workers(model)]
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def compare(server: Server, names: list[str], shape: tuple[int, ...], connections: int, args) -> dict:
    body = json.dumps(np.random.default_rng(0).random(shape).round(4).tolist()).encode()
    rates: dict[str, list[float]] = {name: [] for name in names}
    tails: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        load(server, name, body, connections, 1.0)  # warm
    for turn in range(args.rounds):
        for name in names if turn % 2 else names[::-1]:
            before = cpu_seconds(server, name)
            latencies = load(server, name, body, connections, args.seconds)
            costs[name].append((cpu_seconds(server, name) - before) / len(latencies))
            rates[name].append(len(latencies) / args.seconds)
            tails[name].append(float(np.quantile(latencies, 0.99)))
    bare, ours = names
    paired = [a / b for a, b in zip(rates[ours], rates[bare], strict=True)]
    paired_tail = [a / b for a, b in zip(tails[ours], tails[bare], strict=True)]
    return {
        "bare_per_s": statistics.median(rates[bare]),
        "calibrated_per_s": statistics.median(rates[ours]),
        "throughput_ratio": statistics.median(paired),
        "throughput_ratio_range": [min(paired), max(paired)],
        "bare_p99_ms": 1e3 * statistics.median(tails[bare]),
        "calibrated_p99_ms": 1e3 * statistics.median(tails[ours]),
        # What a saturated machine's throughput comes down to, and other programs disturb less.
        "bare_cpu_us": 1e6 * statistics.median(costs[bare]),
        "calibrated_cpu_us": 1e6 * statistics.median(costs[ours]),
        "cpu_ratio": statistics.median(a / b for a, b in zip(costs[bare], costs[ours], strict=True)),
        "p99_ratio": statistics.median(paired_tail),
        "p99_ratio_range": [min(paired_tail), max(paired_tail)],
    }


def inside(folder: Path, archive: str, shape: tuple[int, ...], batch_size: int) -> dict[str, float]:
    """Microseconds of a batch inside a worker, and the bytes of one reply."""
    body, result = folder / "body.json", folder / "inside.json"
    body.write_text(json.dumps(np.random.default_rng(0).random(shape).round(4).tolist()))
    script = Path(__file__).parent / "inside_worker.py"
    subprocess.run(
        [sys.executable, str(script), str(folder / archive), str(body), str(batch_size), str(result)],
        env={**os.environ, KEYRING: str(folder / "run" / "keyring.json")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--models", nargs="+", default=["linear", "resnet20"], choices=sorted(SHAPES))
    args = peers.arguments(parser, rounds=2, seconds=0.5, models=["linear"])
    rows = []
    print(
        f"{'model':9} {'conn':>4} {'batch':>5} {'bare/s':>8} {'ours/s':>8} "
        f"{'ratio':>6} {'p99 ratio':>9} {'cpu ratio':>9} {'in worker, us':>15}"
    )
    for name in args.models:
        for batch_size in (1, 8):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                files = archives(folder, name, batch_size)
                (folder / "run").mkdir()
                Keyring.new().save(folder / "run" / "keyring.json")
                bare, ours = (inside(folder, file, SHAPES[name], batch_size) for file in files)
                within = {"bare_in_worker": bare, "calibrated_in_worker": ours}
                with Server(
                    folder, files, folder=folder / "run", settings=Ports.free().as_properties()
                ) as server:
                    for connections in (1, 8):
                        names = [file.removesuffix(".mar") for file in files]
                        row = compare(server, names, SHAPES[name], connections, args)
                        rows.append(
                            {"model": name, "connections": connections, "batch": batch_size, **row, **within}
                        )
                        print(
                            f"{name:9} {connections:4} {batch_size:5} {row['bare_per_s']:8.0f} "
                            f"{row['calibrated_per_s']:8.0f} {row['throughput_ratio']:6.3f} "
                            f"{row['p99_ratio']:9.3f} {row['cpu_ratio']:9.3f} "
                            f"{ours['us']:7.0f} {bare['us']:7.0f}",
                            flush=True,
                        )
    result = {
        "goal": {"throughput_ratio": ">= 0.98", "p99_ratio": "<= 1.05"},
        "rounds": args.rounds,
        "seconds": args.seconds,
        "rows": rows,
    }
    peers.save("serving", result, args)


if __name__ == "__main__":
    main()
