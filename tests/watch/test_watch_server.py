"""The real process: started, killed at the worst moment, restarted, and stopped."""

import csv
import json
import signal
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.receipts import Keyring
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.sender import send_label_file

pytestmark = pytest.mark.server

CALIB_SERVE = (sys.executable, "-c", "from calib_serve.cli import main; main()")


def predictions(count, confidence=0.9):
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": confidence}
    return {"items": [one] * count}


def get_receipts(server, count):
    answer = httpx.post(f"{server.url}/v1/predictions", json=predictions(count), timeout=60).json()
    return [one["receipt"] for one in answer["items"]]


def counted(server):
    ledger = SqliteLedger(server.folder / "ledger.db")
    n = ledger.sums()["digits", "1.0"].feedback.n
    ledger.close()
    return n


def test_label_sends_a_file_and_repeats_safely(make_server, tmp_path):
    server = make_server("--token-file", str(write_tokens(tmp_path)))
    auth = {"authorization": "Bearer 0123456789abcdef"}
    answer = httpx.post(f"{server.url}/v1/predictions", json=predictions(250), headers=auth, timeout=60)
    receipts = [one["receipt"] for one in answer.json()["items"]]
    path = tmp_path / "labels.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["receipt", "label"])
        rows.writerows((r, 1) for r in receipts)
    arguments = [
        "label", str(path), "--url", f"{server.url}/v1/labels", "--token-file", str(tmp_path / "tokens"),
        "--batch", "100", "--json",
    ]  # fmt: skip
    first, again = (CliRunner().invoke(cli, arguments) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output
    assert json.loads(first.stdout) == {"accepted": 250, "refused": {}}
    assert json.loads(again.stdout) == {"accepted": 0, "refused": {"duplicate": 250}}
    assert counted(server) == 250


def test_a_token_file_that_is_missing_or_empty_is_one_line_of_ours(tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("receipt,label\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "empty").chmod(0o600)
    for name, says in (("none", "cannot read the token"), ("empty", "holds no token")):
        command = [*CALIB_SERVE, "label", str(labels), "--token-file", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("calib-serve: ")
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


def test_progress_is_told_as_what_is_done_of_all(make_server, tmp_path):
    server = make_server()
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["receipt,label", *(f"{r},1" for r in get_receipts(server, 25))]))
    told = []
    sent = send_label_file(
        path, f"{server.url}/v1/labels", batch=10, progress=lambda done, total: told.append((done, total))
    )
    assert (sent.accepted, sent.refused) == (25, {})
    assert told == [(0, 25), (10, 25), (20, 25), (25, 25)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_also_where_the_shell_had_it_ignore_sigint(make_server, how):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for what is started with &: it is inherited
    try:
        server = make_server()
    finally:
        signal.signal(signal.SIGINT, before)
    labels = [{"receipt": r, "label": 1} for r in get_receipts(server, 3)]
    httpx.post(f"{server.url}/v1/labels", json=labels, timeout=30)
    assert server.stop(how) == 0
    assert counted(server) == 3


def write_tokens(folder):
    path = folder / "tokens"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digits=3"], "NAME:VERSION=ARTIFACT"),
        (["digits:1=3", "--host", "0.0.0.0"], "can be reached by others"),
        (["digits:1=3", "--arl", "0"], "arl is a number of labels"),
        (["digits:1=/nowhere"], "/nowhere"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_opened(tmp_path, arguments, says):
    Keyring.new().save(tmp_path / "keys.json")
    options = ["--keyring", str(tmp_path / "keys.json"), "--ledger", str(tmp_path / "l.db")]
    result = CliRunner().invoke(cli, ["watch", *arguments, *options])
    assert says in str(result.exception)
    assert not (tmp_path / "l.db").exists()


def test_tokens_that_others_may_read_are_refused(tmp_path):
    Keyring.new().save(tmp_path / "keys.json")
    path = write_tokens(tmp_path)
    path.chmod(0o644)
    options = ["--keyring", str(tmp_path / "keys.json"), "--ledger", str(tmp_path / "l.db")]
    result = CliRunner().invoke(cli, ["watch", "d:1=3", "--token-file", str(path), *options])
    assert "chmod 600" in str(result.exception)


def test_two_replicas_on_one_redis_count_a_label_once_and_publish_their_own_share(
    make_server, empty_redis, tmp_path
):
    replicas = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        if replicas:
            (folder / "keys.json").write_bytes((tmp_path / "a" / "keys.json").read_bytes())
            (folder / "keys.json").chmod(0o600)
        replicas.append(make_server("--ledger", empty_redis, "--writer", name, folder=folder))
    labels = [{"receipt": r, "label": 1} for r in get_receipts(replicas[0], 30)]
    answers = [
        httpx.post(f"{replica.url}/v1/labels", json=part, timeout=60).json()["accepted"]
        for replica, part in ((replicas[0], labels[:20]), (replicas[1], labels), (replicas[0], labels))
    ]
    assert answers == [20, 10, 0]
    shares = []
    for replica in replicas:
        lines = httpx.get(f"{replica.url}/metrics", timeout=60).text.splitlines()
        shares.append(sum(float(x.split()[-1]) for x in lines if x.startswith("calib_feedback_total{")))
    assert shares == [20, 10]
