"""What the gateway adds before a server of the Open Inference Protocol: time, and processor time.

A Triton Python-backend model that takes 1 ms without work, one instance. Rounds alternate between asking it
directly and through the gateway, which calibrates, signs, and counts in a ledger of its own, so that whatever
else the machine does falls on both. The load comes from one more process, over REST (JSON, binary) and gRPC,
by 1 and by 32 connections. Then the gateway's own limit: requests a second of its processor time. Prints a
table and writes benchmarks/results/gateway.json.

    python benchmarks/gateway.py [--rounds 7] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import peers
import psutil
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(peers.ROOT / "tests" / "support"))
from gateways import X, artifact, gateway, repository
from triton_server import triton_on

MODEL_SECONDS = 0.001
ROW = X[:1]
Ask = Callable[[], Awaitable[None]]


def json_request(binary: bool) -> bytes:
    """A request as it is on the wire."""
    sent: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(ROW.shape)}
    sent |= {"parameters": {"binary_data_size": ROW.nbytes}} if binary else {"data": ROW.ravel().tolist()}
    wanted = {"name": "logits", "parameters": {"binary_data": binary}}
    head = json.dumps({"inputs": [sent], "outputs": [wanted]}).encode()
    body = head + (ROW.tobytes() if binary else b"")
    lines = ["POST /v2/models/digits/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"Inference-Header-Content-Length: {len(head)}"] if binary else []
    return "\r\n".join([*lines, "", ""]).encode() + body


async def rest(address: str, sent: bytes) -> Ask:
    """One connection of HTTP/1.1, as cheap as can be."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def ask() -> None:
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))

    return ask


async def over_grpc(address: str) -> Ask:
    """One connection of gRPC."""
    sent = service_pb2.ModelInferRequest(model_name="digits", raw_input_contents=[ROW.tobytes()])
    sent.inputs.add(name="x", datatype="FP32", shape=ROW.shape)
    sent.outputs.add(name="logits")
    raw = sent.SerializeToString()
    channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    async def ask() -> None:
        await call(raw)

    return ask


async def load(form: str, address: str, connections: int, seconds: float) -> list[float]:
    """Seconds of each request that was answered in the time."""
    opened = [
        await (over_grpc(address) if form == "grpc" else rest(address, json_request(form == "binary")))
        for _ in range(connections)
    ]
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def client(ask: Ask) -> None:
        while (began := time.perf_counter()) < until:
            await ask()
            took.append(time.perf_counter() - began)

    for ask in opened:
        await ask()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(ask) for ask in opened))
    return took


def loaded(told: tuple[str, str, int, float]) -> list[float]:
    return asyncio.run(load(*told))


def compare(
    pool: Any, form: str, connections: int, where: dict[str, str], process: psutil.Process, args: Any
) -> dict[str, Any]:
    """Direct and through the gateway, in turns."""
    found: dict[str, list[list[float]]] = {name: [] for name in where}
    spent = requests = 0.0
    for _ in range(args.rounds):
        for name, address in where.items():
            before = process.cpu_times()
            found[name].append(pool.apply(loaded, ((form, address, connections, args.seconds),)))
            if name == "gateway":
                after = process.cpu_times()
                spent += after.user + after.system - before.user - before.system
                requests += len(found[name][-1])
    p50 = {name: [1e3 * statistics.median(took) for took in rounds] for name, rounds in found.items()}
    p99 = {name: [1e3 * float(np.quantile(took, 0.99)) for took in rounds] for name, rounds in found.items()}
    rate = {name: [len(took) / args.seconds for took in rounds] for name, rounds in found.items()}
    each = [a - b for a, b in zip(p50["gateway"], p50["direct"], strict=True)]
    ratios = [a / b for a, b in zip(rate["gateway"], rate["direct"], strict=True)]
    return {
        "form": form,
        "connections": connections,
        "direct_per_s": statistics.median(rate["direct"]),
        "gateway_per_s": statistics.median(rate["gateway"]),
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratios": ratios,
        "direct_p50_ms": statistics.median(p50["direct"]),
        "gateway_p50_ms": statistics.median(p50["gateway"]),
        "added_p50_ms": statistics.median(each),
        "direct_p99_ms": statistics.median(p99["direct"]),
        "gateway_p99_ms": statistics.median(p99["gateway"]),
        "requests_a_cpu_second": requests / spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = peers.arguments(parser, rounds=2, seconds=1.0)
    rows = []
    with tempfile.TemporaryDirectory() as scratch, multiprocessing.get_context("spawn").Pool(1) as pool:
        folder = Path(scratch)
        repository(folder / "models", "digits", seconds=MODEL_SECONDS)
        artifact().save(folder / "artifact")
        with triton_on(folder / "models", folder / "server") as triton:
            http = triton.http.removeprefix("http://")
            port = next(a for a in map(str, triton.process.args) if a.startswith("--grpc-port="))
            direct = {"json": http, "binary": http, "grpc": f"127.0.0.1:{port.partition('=')[2]}"}
            with gateway(
                folder,
                triton.http,
                "--output",
                "logits",
                models=(f"digits={folder / 'artifact'}",),
                grpc=direct["grpc"],
            ) as running:
                process = psutil.Process(running.process.pid)
                own = running.http.removeprefix("http://")
                through = {"json": own, "binary": own, "grpc": running.grpc}
                for form, address in direct.items():
                    for connections in (1, 32):
                        where = {"direct": address, "gateway": through[form]}
                        row = compare(pool, form, connections, where, process, args)
                        rows.append(row)
                        print(
                            f"{form:6} {connections:3} connections: {row['direct_per_s']:6.0f}/s direct, "
                            f"{row['gateway_per_s']:6.0f}/s through, ratio {row['throughput_ratio']:.3f}; "
                            f"p50 {row['direct_p50_ms']:.2f} + {row['added_p50_ms']:.2f} ms; "
                            f"{row['requests_a_cpu_second']:.0f} requests a CPU second",
                            flush=True,
                        )
                uncalibrated = running.counted("calib_uncalibrated_total")
    result = {
        "rounds": args.rounds,
        "seconds": args.seconds,
        "model_ms": 1e3 * MODEL_SECONDS,
        "uncalibrated": uncalibrated,
        "rows": rows,
    }
    peers.save("gateway", result, args)


if __name__ == "__main__":
    main()
