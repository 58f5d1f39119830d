"""What the user has stays: config.properties, metrics file, log settings; and slow or broken models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import calib_serve
from live_server import Running, exported, foreign, inputs, samples, temperature_artifact, total, until
from processes import free_ports

from calib_serve.core.errors import ServerError
from calib_serve.receipts import Keyring
from calib_serve.torchserve import pack, pack_feedback
from calib_serve.torchserve.metrics_file import metrics_file, undeclared
from calib_serve.torchserve.promotion import Host
from calib_serve.torchserve.properties import Ports, parse_properties
from calib_serve.torchserve.server import Server

METERED = """
from ts.metrics.metric_type_enum import MetricTypes


def handle(data, context):
    if data is None:
        return None
    items = context.metrics.get_metric("items", metric_type=MetricTypes.COUNTER)
    items.add_or_update(value=len(data), dimension_values=["small"])
    return ["fine"] * len(data)
"""
MINE = """\
model_metrics:
  counter:
  - {name: items, unit: Count, dimensions: [Size]}
"""
LOGGING = """
<Configuration>
  <Appenders><File name="mine" fileName="mine.log"><PatternLayout pattern="%m%n"/></File></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="mine"/></Root></Loggers>
</Configuration>
"""
BROKEN = "raise RuntimeError('no licence for this host')"
SLOW = """
import time

def handle(data, context):
    if data is None:
        time.sleep(6)
        return None
    return ["at last"] * len(data)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    pack(exported(store / "net.pt2"), temperature_artifact(), store, name="digits", unproven=True)
    foreign(store, "metered", METERED)
    foreign(store, "broken", BROKEN)
    foreign(store, "slow", SLOW, "minWorkers: 1\nmaxWorkers: 1\nstartupTimeout: 60\n")
    foreign(store, "slower", SLOW)
    return store


@pytest.fixture(scope="module")
def running(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A user's own configuration, in a folder that is not the current one."""
    mine = tmp_path_factory.mktemp("mine")
    own = metrics_file().replace("model_metrics:\n  counter:\n", MINE)
    (mine / "metrics.yaml").write_text(own.replace("dimensions: [", "dimensions: [Size, ", 1))
    (mine / "log4j2.xml").write_text(LOGGING)
    lines = {
        **Ports(*free_ports(5)).as_properties(),
        "disable_token_authorization": "true",
        "metrics_config": str(mine / "metrics.yaml"),
        "vmargs": f"-Xmx512m -Dlog4j.configurationFile={mine / 'log4j2.xml'}",
        "default_workers_per_model": "1",
        "load_models": "all",
        "metrics_mode": "log",
    }
    config = mine / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    server = Server(store, ["digits.mar", "metered.mar"], folder=mine / "run", properties=config)
    with server, server.client() as http:
        yield Running(server, http, Keyring.new())


@pytest.mark.server
def test_tokens_may_be_off(running: Running) -> None:
    assert not running.server.has_tokens
    assert running.predict(inputs(1)[0].tolist()).status_code == 200
    assert len(running.server.workers("metered")) == 1
    with pytest.raises(ServerError, match="no tokens"):
        _ = running.server.tokens


@pytest.mark.server
def test_a_handler_with_metrics_of_its_own_keeps_them_and_predictions_are_counted(running: Running) -> None:
    for _ in range(3):
        assert running.http.post("/predictions/metered", json={}).text == "fine"
    until(lambda: total(running.server.scrape(), "items", Size="small") == 3)
    assert running.predict(inputs(1)[0].tolist()).status_code == 200
    assert total(running.settled(), "calib_predictions_total") == len(running.served)
    assert samples(running.server.scrape(), "Requests2XX")


@pytest.mark.server
def test_models_that_fail_are_told_and_the_others_serve(store: Path, tmp_path: Path) -> None:
    names, settings = ["digits.mar", "broken.mar"], {"default_workers_per_model": "1"}
    server = Server(
        store, names, folder=tmp_path / "run", settings={**Ports(*free_ports(5)).as_properties(), **settings}
    )
    with pytest.raises(ServerError, match="no licence for this host"):
        server.start()
    names += ["slow.mar", "slower.mar"]
    settings["default_startup_timeout"] = "4"
    server = Server(
        store, names, folder=tmp_path / "run", settings={**Ports(*free_ports(5)).as_properties(), **settings}
    )
    try:
        server.start(allow_failures=True)
        assert set(server.failures) == {"broken", "slower"}
        assert "no licence" in server.failures["broken"]
        assert "no licence" not in server.failures["slower"]
        assert server.served == ["digits", "slow"]
        with server.client() as http:
            assert http.post("/predictions/slow", json={}).text == "at last"
    finally:
        server.stop()


def configured(store: Path, folder: Path, *lines: str) -> Server:
    folder.mkdir(exist_ok=True)
    config = folder / "config.properties"
    config.write_text("\n".join(lines))
    return Server(store, ["digits.mar"], folder=folder / "run", properties=config)


def properties(server: Server) -> dict[str, str]:
    return parse_properties(server._configuration.text)


def test_what_is_not_said_is_torchserve_s_and_what_must_differ_is_laid_over_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = configured(store, tmp_path)
    assert (server.inference, server.grpc) == ("http://127.0.0.1:8080", "127.0.0.1:7070")
    assert not server.notes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TS_DISABLE_TOKEN_AUTHORIZATION", "true")
    lines = ("enable_envvars_config=true", "keystore=a.p12", "model_snapshot={}", "job_queue_size=6")
    server = configured(store, tmp_path, *lines)
    found = properties(server)
    assert found["keystore"] == str(tmp_path / "a.p12"), "TorchServe itself runs in another folder"
    assert (found["job_queue_size"], found["enable_envvars_config"]) == ("6", "false")
    assert "model_snapshot" not in found
    assert server.has_tokens, "no variable of the environment changes what is written"
    assert {note.partition(":")[0] for note in server.notes} == {"enable_envvars_config", "model_snapshot"}


def test_a_metrics_file_that_lacks_our_series_is_refused(store: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("model_metrics: {counter: [{name: items, unit: Count, dimensions: [Size]}]}")
    assert len(undeclared(mine)) > 10
    with pytest.raises(ServerError, match=r"lacks \d+ of the series .*metrics_file"):
        configured(store, tmp_path, f"metrics_config={mine}")
    mine.write_text(metrics_file())
    assert undeclared(mine) == []
    for text in ("[", "ts_metrics: 3\nmodel_metrics: 4", "a: &a [*a]\nmodel_metrics: {counter: *a}"):
        mine.write_text(text)
        with pytest.raises(ServerError, match="no metrics file"):
            undeclared(mine)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("enable_metrics_api=false", "nobody could read what is counted"),
        ("metrics_address=unix:/tmp/m.sock", "metrics_address=unix:.* needs an address http://HOST:PORT"),
    ],
)
def test_settings_by_which_nothing_would_be_counted_are_refused(
    store: Path, tmp_path: Path, line: str, says: str
) -> None:
    with pytest.raises(ServerError, match=says):
        configured(store, tmp_path, line)


def test_variables_of_the_host_reach_the_workers_or_it_is_said_what_takes_their_place(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MODELS", "models"), ("SAMPLES", "mine"), ("SOURCE", "lab"), ("LEDGER", "")):
        monkeypatch.setenv(f"CALIB_SERVE_{name}", value)
    monkeypatch.chdir(tmp_path)
    server = Server(store, ["digits.mar"], folder=tmp_path, samples=tmp_path / "samples")
    given = server._configuration.environment
    assert given["CALIB_SERVE_MODELS"] == str(tmp_path / "models"), "workers run in other folders"
    assert given["CALIB_SERVE_LEDGER"] == str(tmp_path / "ledger.sqlite"), "an empty variable names nothing"
    assert [note.partition(":")[0] for note in server.notes] == ["CALIB_SERVE_SAMPLES"]
    with pytest.raises(ServerError, match=r"hides CALIB_SERVE_SOURCE, CALIB_SERVE_SOURCE_HEADER"):
        configured(store, tmp_path / "own", "blacklist_env_vars=.*SOURCE.*")


def test_a_password_in_a_variable_that_is_replaced_is_not_repeated(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIB_SERVE_LEDGER", "postgresql://me:a-secret@host/labels")
    server = Server(store, ["digits.mar"], folder=tmp_path, ledger=tmp_path / "own.db")
    assert [note.partition(":")[0] for note in server.notes] == ["CALIB_SERVE_LEDGER"]
    assert "a-secret" not in str(server.notes)


def test_a_relative_ledger_of_the_environment_is_one_file_for_all_workers(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for said in ("l.db", "sqlite:///l.db"):
        monkeypatch.setenv("CALIB_SERVE_LEDGER", said)
        server = Server(store, ["digits.mar"], folder=tmp_path)
        assert server._configuration.environment["CALIB_SERVE_LEDGER"] == str(tmp_path / "l.db")
        assert not server.notes


def test_a_promotion_asks_the_ledger_and_lists_the_models_of_the_server_it_is_for(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.sqlite").touch()  # of an earlier server
    monkeypatch.setenv("CALIB_SERVE_MODELS", str(tmp_path / "mine.json"))
    for address in ("postgresql://db/labels", str(tmp_path / "other.db")):
        Server(store, ["digits.mar"], folder=tmp_path, ledger=address)._configuration.write()
        monkeypatch.delenv("CALIB_SERVE_MODELS", raising=False)
        host = Host.of(tmp_path)
        assert host.ledger == address
        if address.startswith("postgresql:"):
            assert host.models_file == tmp_path / "mine.json"
    monkeypatch.setenv("CALIB_SERVE_LEDGER", "l.db")
    with pytest.raises(
        ServerError, match=r"CALIB_SERVE_LEDGER is .*other\.db for the server .* another here"
    ):
        _ = host.ledger
    (tmp_path / "environment.json").unlink()  # TorchServe was started without us
    assert host.ledger == "l.db"


def noted(monkeypatch: pytest.MonkeyPatch, *words: object) -> list[str]:
    """What ``calib-serve serve`` notes before it starts anything."""

    def start(*_: object, **__: object) -> None:
        raise ServerError("not started")

    monkeypatch.setattr(Server, "start", start)
    done = calib_serve("serve", *words)
    assert done.stderr == "calib-serve: not started\n"
    return [line.removeprefix("note: ") for line in done.stdout.splitlines()]


def test_a_list_of_models_of_the_feedback_archive_that_is_not_asked_is_said(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "store"
    shutil.copytree(store, own)
    asked = ("--store", own, "--folder", tmp_path / "run", "digits.mar", "calibration_feedback.mar")
    pack_feedback(own)
    assert [line for line in noted(monkeypatch, *asked) if "unproven" not in line] == []
    pack_feedback(own, archives=[own / "digits.mar"])
    assert [line for line in noted(monkeypatch, *asked) if "every calibrated archive" in line]
    monkeypatch.setenv("CALIB_SERVE_MODELS", "mine.json")
    assert [line for line in noted(monkeypatch, *asked) if "mine.json, not of those packed" in line]
