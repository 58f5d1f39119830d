"""SIGKILL at every moment: what lies on disk is the old or the new, whole; what was acknowledged stays."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from injection import Fault, bytes_to_try, killed_everywhere, under
from ledgers import accept, make_label
from sizes import sized
from small_models import archive, linear_onnx, temperature

from calib_serve import Artifact, Keyring
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.onnx._files import read
from calib_serve.ledger import Ledger
from calib_serve.torchserve import artifact_of
from calib_serve.torchserve.archive._archive import read_archive

pytestmark = pytest.mark.server

OLD, NEW = 1.5, 2.5


def save_artifact(folder: Path, t: float) -> None:
    temperature(t).save(folder / "artifact")


def rotate_keys(folder: Path, t: float) -> None:
    ring = Keyring.new() if t == OLD else Keyring.load(folder / "keys.json").rotated()
    ring.save(folder / "keys.json")


def pack_archive(folder: Path, t: float) -> None:
    archive(folder, t=t)


def fuse_graph(folder: Path, t: float) -> None:
    fuse_onnx(
        linear_onnx(folder / "raw.onnx"), temperature(t), folder / "fused.onnx", samples=1, unproven=True
    )


def artifact_state(folder: Path) -> object:
    return Artifact.load(folder / "artifact").fingerprint


def keys_state(folder: Path) -> object:
    return len(Keyring.load(folder / "keys.json").keys)


def archive_state(folder: Path) -> object:
    return artifact_of(read_archive(folder / "digits.mar")).fingerprint


def graph_state(folder: Path) -> object:
    import onnx

    path = folder / "fused.onnx"
    read(path)  # whole, by onnx's own checker
    return {p.key: p.value for p in onnx.load(path).metadata_props}["calib_serve.fingerprint"]


WRITERS = [
    pytest.param(save_artifact, artifact_state, id="artifact"),
    pytest.param(rotate_keys, keys_state, id="keyring"),
    # Written by the same function as a keyring.
    pytest.param(pack_archive, archive_state, id="mar", marks=pytest.mark.nightly),
    pytest.param(fuse_graph, graph_state, id="onnx", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("write", "state"), WRITERS)
def test_what_is_replaced_is_the_old_or_the_new_at_every_operation(
    write: Callable[[Path, float], None], state: Callable[[Path], object], tmp_path: Path
) -> None:
    now, before, seen = tmp_path / "now", tmp_path / "before", set()
    before.mkdir()
    write(before, OLD)
    old = state(before)
    shutil.copytree(before, now)
    for _, ended in killed_everywhere(write, now, NEW):
        seen.add(state(now))
        if ended.signal:
            shutil.rmtree(now)
            shutil.copytree(before, now)
    assert old in seen
    assert len(seen) == 2


# --- the ledger -------------------------------------------------------------------------------


def count_labels(path: str, told: str, batches: int) -> None:
    ledger = Ledger(path)
    with Path(told).open("wb") as file:
        for at in range(0, 10 * batches, 10):
            accept(ledger, [make_label(i) for i in range(at, at + 10)])
            os.pwrite(file.fileno(), str(at + 10).encode(), 0)
    ledger.close()


def test_a_ledger_whose_writer_dies_at_any_byte_holds_what_was_acknowledged(tmp_path: Path) -> None:
    batches, died = 8, 0
    for n in bytes_to_try(200_000, sized(8, 100)):  # the journal of so many batches is shorter
        path, told = tmp_path / f"{n}.db", tmp_path / f"{n}.told"
        ended = under(Fault(kill_at_byte=max(n, 8)), count_labels, str(path), str(told), batches)
        died += bool(ended.signal)
        acknowledged = int(told.read_text() or 0) if told.exists() else 0
        ledger = Ledger(path)
        sums = ledger.sums().get(("m", "1"))
        counted = 0 if sums is None else int(sums.feedback.n)
        assert acknowledged <= counted <= acknowledged + 10
        again = accept(ledger, [make_label(i) for i in range(10 * batches)])
        assert again.count(True) == 10 * batches - counted
        ledger.close()
    assert died > sized(3, 30)


# --- the watch server -------------------------------------------------------------------------


def predictions(count: int, confidence: float = 0.9) -> dict[str, object]:
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": confidence}
    return {"items": [one] * count}


@pytest.mark.server
@pytest.mark.parametrize("after", sized([8], [1, 8, 30, 60]))
def test_killed_between_ledger_and_acknowledgement_no_label_is_lost_or_doubled(
    make_server, after: int
) -> None:
    server = make_server()
    answer = httpx.post(f"{server.url}/v1/predictions", json=predictions(2000), timeout=60).json()
    labels = [{"receipt": one["receipt"], "label": 1} for one in answer["items"]]
    acknowledged, stop = [], threading.Event()

    def send() -> None:
        for at in range(0, len(labels), 20):
            try:
                answer = httpx.post(f"{server.url}/v1/labels", json=labels[at : at + 20], timeout=60)
            except httpx.TransportError:
                return
            acknowledged.append(answer.json()["accepted"])
            if len(acknowledged) == after:
                stop.set()

    def counted() -> int:
        ledger = Ledger(server.folder / "ledger.db")
        n = ledger.sums()["digits", "1.0"].feedback.n
        ledger.close()
        return int(n)

    sender = threading.Thread(target=send)
    sender.start()
    assert stop.wait(60)
    server.stop(signal.SIGKILL)
    sender.join()
    before = counted()
    assert sum(acknowledged) <= before < 2000
    server.start()
    again = httpx.post(f"{server.url}/v1/labels", json=labels, timeout=60).json()
    assert again["accepted"] == 2000 - before
    assert again["refused"] == before
    assert counted() == 2000
    assert server.stop() == 0
