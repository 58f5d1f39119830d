"""What a week in production brings, to real processes: as much is lost as the page says, and that says so."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from collecting import until, value
from engines import restarting_postgres
from processes import started
from prometheus_client import CollectorRegistry, generate_latest
from promises import Promise, promised, promises
from real_prometheus import prometheus
from real_servers import Server
from real_watch import make_watch, talk_to
from sizes import sized

from calib_serve import Keyring, Reporter
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import ServedPrediction

pytestmark = pytest.mark.server

P = [0.1, 0.8, 0.1]
SCALE = sized(100, 1)  # of traffic with ids, which is sent one by one: ten minutes are 3,000 predictions here


def run(*words: object, code: int = 0) -> str:
    """What a command prints; it ends with this code."""
    command = [sys.executable, "-m", "calib_serve", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout + done.stderr


class App:
    """A server's reporter, and the metrics that it exposes."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.registry = CollectorRegistry()
        options = {"model": "digits", "version": "1.0", "keyring": server.folder / "keys.json"} | options
        self.reporter = Reporter(3, watch=server.url, registry=self.registry, **options)

    @property
    def metrics(self) -> str:
        return generate_latest(self.registry).decode()


@contextmanager
def app(server: Server, **options: Any) -> Iterator[App]:
    found = App(server, **options)
    try:
        yield found
    finally:
        found.reporter.close()


def metrics(server: Server) -> str:
    return httpx.get(f"{server.url}/metrics", timeout=60).text


def counted(server: Server, what: str = "predictions") -> int:
    return int(value(server.url, f"calib_{what}_total"))


def says(promise: Promise, server: Server) -> None:
    """What the row names can be read at the watch; its checks are made each second here."""
    until(lambda: promise.is_said_by(metrics(server)), what=f"the watch does not say that {promise.what}")


def labels_file(path: Path, receipts: list[Any]) -> Path:
    path.write_text("receipt,label\n" + "".join(f"{one},1\n" for one in receipts))
    return path


def one_label(receipts: list[Any]) -> list[dict[str, Any]]:
    return [{"receipt": receipts[0], "label": 1}]


def label(path: Path, server: Server, code: int = 0) -> str:
    return run("label", path, "--url", f"{server.url}/v1/labels", code=code)


@pytest.fixture
def down(tmp_path: Path) -> Server:
    """A watch that is not running, and the keys of its apps."""
    return Server(tmp_path)


# --- the watch, and what it stands on -------------------------------------------------------------


def test_the_watch_is_away_for_ten_minutes(down: Server) -> None:
    promise = promised("the watch is away for ten minutes")
    with app(down) as one:
        for _ in range(promise.whole // 1000):
            one.reporter.served([P] * 1000)
        assert one.reporter.flush() == promise.whole
        assert promise.is_said_by(one.metrics)
        with down:
            until(lambda: one.reporter.flush() == 0)
            assert promise.whole - counted(down) == promise.lost


@pytest.mark.parametrize(
    ("what", "spool"),
    [
        ("the same, each prediction with an id, and `spool=`", "spool"),
        ("the same, with ids and without `spool=`", None),
    ],
)
def test_it_is_away_while_predictions_come_with_ids(
    down: Server, what: str, spool: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise = promised(what)
    monkeypatch.setattr("calib_serve.receipts.outbox._BYTES", (32 << 20) // SCALE)
    whole, options = promise.whole // SCALE, {"spool": None if spool is None else down.folder / spool}
    with app(down, most=100_000 // SCALE, **options) as one:
        for at in range(0, whole, 250):  # half a second of them, as often as it looks whether it can send
            one.reporter.served([P] * 250, id=[f"order-{at + i}" for i in range(250)])
            one.reporter.flush()
        assert promise.is_said_by(one.metrics)
        with down:
            until(lambda: one.reporter.flush() == 0)
            assert (whole - counted(down)) * SCALE == promise.lost
            first = {"items": [{"id": "order-0", "label": 1}]}
            assert httpx.post(f"{down.url}/v1/labels", json=first, timeout=60).json()["accepted"] == 1


SERVING = """
import sys, time
from calib_serve import Reporter
url, keys, spool = sys.argv[1:]
reporter = Reporter(3, model="digits", version="1.0", keyring=keys, watch=url, spool=spool)
n = 0
while True:  # 500 a second at most, and no burst where the machine was busy
    for n in range(n + 1, n + 6):
        reporter.served([0.1, 0.8, 0.1], **({"id": f"order-{n}"} if n % 2 else {}))
    print(n, flush=True)
    time.sleep(0.01)
"""


def test_a_worker_is_killed_meanwhile(down: Server) -> None:
    promise = promised("a worker is killed meanwhile, with `spool=`")
    command = [
        sys.executable,
        "-c",
        SERVING,
        down.url,
        str(down.folder / "keys.json"),
        str(down.folder / "s"),
    ]
    with started(command, stdout=subprocess.PIPE, text=True) as worker:
        served = 0
        while served < 500 * 4:
            served = int(worker.stdout.readline())
        worker.kill()
        served = max([served, *map(int, re.findall(r"(\d+)\n", worker.stdout.read()))])
    with down, app(down, spool=down.folder / "s") as one:
        until(lambda: one.reporter.flush() == 0)
        assert served + 500 * 0.02 - counted(down) >= 0
        assert served - counted(down) <= promise.lost < served


def test_the_database_is_away_for_a_while(tmp_path: Path) -> None:
    promise = promised("the database is away for a while")
    half = promise.whole // 2
    with restarting_postgres() as database:
        server = Server(tmp_path, checks_often=True)
        server.command[server.command.index("--ledger") + 1] = database.url.replace(
            "postgres:", "postgresql:"
        )
        with server, app(server) as one:
            receipts = one.reporter.served([P] * half)
            assert one.reporter.flush() == 0
            database.stop()
            path = labels_file(tmp_path / "l.csv", receipts)
            words = [sys.executable, "-m", "calib_serve", "label", path, "--url", f"{server.url}/v1/labels"]
            with started([*map(str, words)], stdout=subprocess.PIPE, text=True) as sender:
                says(promise, server)
                refused = httpx.post(f"{server.url}/v1/labels", json=one_label(receipts), timeout=60)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert "calib_feedback_total{" not in metrics(server), "a gap, and not zeros"
                database.start()
                assert sender.communicate(timeout=300)[0].strip() == f"{half} counted"
            found = counted(server) + counted(server, "feedback")
            assert promise.whole - found == promise.lost


def test_an_older_backup_is_put_back(tmp_path: Path) -> None:
    promise = promised("an older backup of the ledger is put back")
    server, ledger = Server(tmp_path, checks_often=True), tmp_path / "ledger.db"
    with server, app(server) as one:
        receipts = one.reporter.served([P] * promise.whole)
        before = promise.whole - promise.lost
        assert label(labels_file(tmp_path / "a.csv", receipts[:before]), server) == f"{before} counted\n"
        run("ledger", "backup", ledger, tmp_path / "backup")
        rest = labels_file(tmp_path / "b.csv", receipts[before:])
        label(rest, server)
        one.reporter.flush()
        server.stop(signal.SIGKILL)
        for path in tmp_path.glob("ledger.db*"):
            path.unlink()
        shutil.copy(tmp_path / "backup", ledger)
        run("ledger", "restored", ledger)
        server.start()
        assert "forgotten" in label(rest, server, code=1)
        assert promise.whole - counted(server, "feedback") == promise.lost
        says(promise, server)


def test_prometheus_is_away(tmp_path: Path) -> None:
    promise = promised("Prometheus is away")
    half = promise.whole // 2
    with Server(tmp_path, "--maturity", "0") as server:
        server.label(half)
        targets: list[Any] = [(f"127.0.0.1:{server.port}", {})]
        (tmp_path / "p").mkdir()
        with prometheus(tmp_path / "p", targets) as there:
            there.wait(f"sum(calib_feedback_total) == {half}")
        server.label(half)  # the day that it is away is a few seconds here
        with prometheus(tmp_path / "p", targets) as there:
            there.wait(f"sum(calib_feedback_total) == {promise.whole - promise.lost}")
            assert there.risen("calib_feedback_total") >= half, "the gap is in windows that are longer"
        assert "calib_window_ece{" in metrics(server)


# --- versions and names ---------------------------------------------------------------------------


def test_the_next_version_is_deployed_before_the_watch_knows_it(tmp_path: Path) -> None:
    promise = promised("the app's next version is deployed before the watch knows it")
    half = promise.whole // 2
    server = Server(tmp_path, checks_often=True)
    with server, app(server, version="2.0") as one:
        path = labels_file(tmp_path / "l.csv", one.reporter.served([P] * half))
        assert one.reporter.flush() == 0
        assert label(path, server).startswith(f"0 counted; {half} wait for their model version")
        says(promise, server)
        server.stop()
        server.command.insert(server.command.index("digits:1.0=3"), "digits:2.0=3")
        server.start()
        until(lambda: counted(server) + counted(server, "feedback") == promise.whole - promise.lost)
        assert label(path, server) == f"0 counted; refused: {half} duplicate\n"


def test_nobody_names_it_for_a_day(tmp_path: Path) -> None:
    promise = promised("nobody names it for a day")
    half, now = promise.whole // 2, [time.time()]
    with make_watch(tmp_path, clock=lambda: now[0]) as watch, talk_to(watch) as client:
        receipts = watch.predictions([ServedPrediction("m", "2", 1, 0.9)] * half)
        watch.labels([{"receipt": one, "label": 1} for one in receipts])
        now[0] += 1.01 * DAY
        watch.held.give_up()
        watch.register_version(("m", "2"), {"classes": 3})
        sums = watch.ledger.sums().get(("m", "2"))
        found = 0 if sums is None else int(sums.predictions.sum() + sums.labels.sum())
        assert promise.whole - found == promise.lost
        assert promise.is_said_by(client.get("/metrics").text)


# --- keys, tokens and clocks ----------------------------------------------------------------------


def test_the_keyring_is_lost(tmp_path: Path) -> None:
    found, made = (
        promised("the keyring's file is lost, and its copy put back"),
        promised("the keyring is lost, and a new one made"),
    )
    server, keys = Server(tmp_path, checks_often=True), tmp_path / "keys.json"
    with server, app(server) as one:
        receipts = one.reporter.served([P] * (found.whole + made.whole))
        keys.rename(tmp_path / "copy")
        says(found, server)
        label(labels_file(tmp_path / "a.csv", receipts[: found.whole // 2]), server)
        server.stop()
        with started(server.command, stderr=subprocess.PIPE, text=True) as without:
            told = without.communicate(timeout=60)[1]
        assert without.returncode != 0
        assert told.index("put its copy back") < told.index("keys new"), "what loses labels comes last"
        (tmp_path / "copy").rename(keys)
        server.start()
        label(labels_file(tmp_path / "b.csv", receipts[found.whole // 2 : found.whole]), server)
        assert found.whole - counted(server, "feedback") == found.lost
        server.stop()
        keys.unlink()
        run("keys", "new", keys)
        server.start()
        label(labels_file(tmp_path / "c.csv", receipts[found.whole :]), server, code=1)
        assert made.whole - (counted(server, "feedback") - found.whole) == made.lost
        says(made, server)


def test_a_key_leaks(tmp_path: Path) -> None:
    promise = promised("a key leaks")
    server, keys = Server(tmp_path, checks_often=True), tmp_path / "keys.json"
    with server, app(server) as one:
        receipts = one.reporter.served([P] * promise.whole)
        one.reporter.flush()
        thief = Keyring.load(keys)
        run("keys", "rotate", keys)
        run("keys", "retire", keys, "--key", thief.active, "--early")
        time.sleep(1)  # for so long the watch may know the key still
        facts = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}
        until(lambda: one.reporter.served(P)[0] is not None)
        label(labels_file(tmp_path / "l.csv", receipts), server, code=1)
        assert promise.whole - counted(server, "feedback") == promise.lost
        label(labels_file(tmp_path / "forged.csv", [thief.sign(**facts)]), server, code=1)
        assert counted(server, "feedback") == 0
        says(promise, server)


def test_a_token_is_not_valid_any_more(tmp_path: Path) -> None:
    promise = promised("the app's token is not valid any more")
    tokens = tmp_path / "tokens"

    def write(*lines: str) -> None:
        tokens.write_text("".join(f"{line}\n" for line in lines))
        tokens.chmod(0o600)

    ours, other = "app predict,label a-token-of-this-app", "ops scrape another-token-of-ops"
    write(ours, other)
    client = httpx.Client(headers={"Authorization": "Bearer another-token-of-ops"}, timeout=60)
    with Server(tmp_path, "--token-file", str(tokens)) as server, client:

        def total() -> int:
            lines = client.get(f"{server.url}/metrics").text.splitlines()
            return int(sum(float(x.split()[-1]) for x in lines if x.startswith("calib_predictions_total{")))

        with app(server, token="a-token-of-this-app") as one:
            write(other)
            time.sleep(1.5)  # it looks at the file once a second
            one.reporter.served([P] * promise.whole)
            assert one.reporter.flush() == promise.whole
            assert promise.is_said_by(one.metrics)
            write(ours, other)
            until(lambda: one.reporter.flush() == 0)
            assert promise.whole - total() == promise.lost


def test_a_clock_is_ahead(tmp_path: Path) -> None:
    promise, now = promised("an app's clock is an hour ahead"), [time.time()]
    with make_watch(tmp_path, clock=lambda: now[0]) as watch, talk_to(watch) as client:
        ring = watch.keyring
        receipt = ring.current().sign(model="m", version="1", predicted=1, confidence=0.9, time=now[0] + 3600)
        item = {"items": [{"receipt": receipt, "label": 1}] * promise.whole}
        assert client.post("/v1/labels", json=item).json()["refused"] == promise.whole
        watch.checks.run()
        assert promise.is_said_by(client.get("/metrics").text)
        now[0] += 3600
        assert promise.whole - client.post("/v1/labels", json=item).json()["accepted"] == promise.lost


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.unit
def test_every_row_of_the_page_is_held_to_what_a_test_saw() -> None:
    texts = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    tested = re.findall(r'"([^"\n]+)"', "\n".join(texts))
    assert set(promises()) <= set(tested)
    assert len(promises()) >= 17
