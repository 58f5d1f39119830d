"""Recipes for labels: each block runs as it stands, on a real PostgreSQL, broker and web server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from collecting import predict, until, value
from kafka_brokers import Brokers
from processes import free_port, started
from real_servers import Server

from calib_serve.artifact import Artifact, LogitMap

pytestmark = [pytest.mark.server, pytest.mark.nightly]

PAGE = Path(__file__).parents[2] / "docs" / "labels.md"
OF_RECIPES = ("psql", "done/", "kafka://", "@app.post")
NAMES = ("cat", "dog", "bird")


@pytest.fixture
def watch(tmp_path: Path) -> Any:
    """A watch of three classes with names."""
    facts = {"method": "temperature", "classes": 3, "class_names": NAMES}
    Artifact((LogitMap.temperature(1.5),), **facts).save(tmp_path / "a")
    with Server(tmp_path, models=[f"digits:1.0={tmp_path / 'a'}"]) as server:
        yield server


def test_each_recipe_brings_its_labels_home(
    watch: Server,
    postgres_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "docs"))
    from doc_blocks import blocks

    sql, folder, kafka, webhook = (b for b in blocks(PAGE) if any(words in b.text for words in OF_RECIPES))
    brokers, port = Brokers(), free_port()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "calib-serve"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m calib_serve "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DATABASE", postgres_database)

    def shell(text: str) -> list[str]:
        """A block as it has to be typed here: addresses are other ones, all else is what the page says."""
        url = f" --url {watch.url}/v1/labels"
        text = text.replace("kafka-1:9092", brokers.servers).replace(" --column id=", f"{url} --column id=")
        return ["bash", "-c", f"set -eo pipefail; {text}"]

    def counted() -> float:
        return value(watch.url, "calib_feedback_total")

    predict(watch, 12)

    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("create table orders (order_id text, outcome text)")
        rows = [("order-0", "cat"), ("order-1", "dog"), ("order-2", "bird"), ("order-3", None)]
        connection.cursor().executemany("insert into orders values (%s, %s)", rows)
    done = subprocess.run(shell(sql.text), check=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.strip(), counted()) == ("3 counted", 3)
    done = subprocess.run(shell(sql.text), check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "0 counted; refused: 3 duplicate"

    for name in ("labels", "done"):
        (tmp_path / name).mkdir()
    (tmp_path / "labels" / "a.csv").write_text("order_id,outcome\norder-4,dog\norder-5,dog\n")
    subprocess.run(shell(folder.text), check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / "done" / "a.csv").exists()
    assert counted() == 5

    brokers.put(
        "outcomes", [{"order_id": "order-6", "outcome": "dog"}, [{"order_id": "order-7", "outcome": "x"}]]
    )
    with started(shell(f"exec {kafka.text}"), cwd=tmp_path) as collector:
        until(lambda: counted() == 6)
        (letter,) = brokers.read("outcomes-dead", 1)
        assert letter["dead"]["reason"] == "bad_label"
        collector.terminate()
        assert collector.wait(30) == 1

    (tmp_path / "webhook.py").write_text(webhook.text.replace("127.0.0.1:9300", f"127.0.0.1:{watch.port}"))
    serve = [sys.executable, "-m", "uvicorn", "webhook:app", "--port", str(port), "--log-level", "warning"]
    with started(serve, cwd=tmp_path):
        until(lambda: answers(port))

        def event(order: str, status: str) -> int:
            body = {"order": {"id": order, "status": status}}
            return httpx.post(f"http://127.0.0.1:{port}/outcomes", json=body, timeout=30).status_code

        assert [event("order-8", "dog"), event("order-8", "dog"), event("none", "dog")] == [200, 200, 409]
    assert counted() == 7
    assert json.loads((tmp_path / "refused.jsonl").read_text() or "[]") == []


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/openapi.json", timeout=1).status_code == 200
    except httpx.TransportError:
        return False
