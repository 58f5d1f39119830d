"""Options of the commands that serve and send: what is refused before a start."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import calib_serve

from calib_serve.app._serving import door
from calib_serve.core.options.servers import WebOptions
from calib_serve.integrations.collect import Sent
from calib_serve.receipts import Keyring, LiveKeyring

TOPIC, DEAD = "kafka://h:1/t?group=g", "kafka://h:1/dead"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Keyring.new().save("keyring.json")
    return tmp_path


def refused(*words: object) -> str:
    """What is said of a wrong use, before a ledger is made."""
    done = calib_serve(*words)
    assert done.exit_code == 2, done.output
    assert not list(Path().glob("*.db"))
    return done.stderr


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--arl", "1"), "--arl is a number of labels"),
        (("--arl", "many"), "many"),
        (("--block", "1.5"), "--block is a whole number"),
        (("--allowed-host", "a"), "--allowed-hosts"),
        (("--tolerance", "0.5"), "--tolerance must be in [0, 0.5)"),
        (("--sample-rate", "0"), "--sample-rate must be above 0"),
        (("--sample-rate", "0.5"), "--sample-rate is of samples"),
        (("--sample-days", "7"), "--sample-days is of samples"),
        (("--ttl-days", "inf"), "--ttl-days must be above 0 and finite"),
        (("--tls-cert", "cert.pem"), "tls_key"),
        (("--maturity", "soon"), "such as 6h"),
        (("--label-budget", "2"), "2"),
        (("--segments", ","), "--segments are a number, or names"),
        (("--host", "0.0.0.0"), "--token-file"),
    ],
)
def test_a_wrong_option_of_the_watch_is_refused_by_its_name(
    option: tuple[str, str], says: str, here: Path
) -> None:
    assert says in refused("watch", "m:1=3", *option)


def test_a_model_is_named_once_with_its_classes(here: Path) -> None:
    assert "NAME:VERSION=CLASSES, got 'a" in refused("watch", "a")
    assert "m:1 is given twice" in refused("watch", "m:1=3", "m:1=4")
    for text in ("m:1", "m:1=", ":1=3", "m:=3"):
        assert f"NAME:VERSION=CLASSES, got '{text}'" in refused("watch", text)


@pytest.mark.parametrize("guarded", [False, True])
def test_the_door_of_a_server_reads_its_tokens_and_keys(guarded: bool, here: Path) -> None:
    Path("tokens").write_text("lab label a-token-of-the-lab-team\n")
    Path("tokens").chmod(0o600)
    listen = WebOptions(token_file=Path("tokens") if guarded else None, allowed_hosts=["a.example"])
    with door(listen, "keyring.json") as opened:
        assert (opened.tokens is not None) == guarded
        assert "a.example" in opened.hosts
        assert isinstance(opened.keyring, LiveKeyring)


def test_a_topic_is_collected_with_its_own_settings(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = pytest.importorskip("calib_serve.integrations.collect.kafka")
    made = []

    class Collector:
        def __init__(self, address, dead_letter, options, *, token, kafka) -> None:
            made.append((address, dead_letter, options.wait, options.url, token(), kafka))

        def run(self) -> Sent:
            return Sent(accepted=3)

        def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(kafka, "Collector", Collector)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    Path("k").write_text("ssl.ca.location=ca.pem\n")
    Path("k").chmod(0o600)
    words = ("label", TOPIC, "--dead-letter", DEAD, "--wait", "1m", "--url", "http://h/v1/labels")
    for more, wanted in (((), None), (("--kafka-config", "k"), {"ssl.ca.location": "ca.pem"})):
        done = calib_serve(*words, *more)
        assert (done.exit_code, done.stdout) == (0, "3 counted\n"), done.output
        assert f"collecting labels from {TOPIC}" in done.stderr
        assert made[-2:] == [(TOPIC, DEAD, "1m", "http://h/v1/labels", "", wanted), "closed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("l.csv", "--dead-letter", "dead"), "--dead-letter is for a topic"),
        (("l.csv", "--kafka-config", "k"), "--kafka-config is for a topic"),
        (("l.csv", "--wait", "1m"), "--wait is for a topic"),
        ((TOPIC,), "--dead-letter must say"),
        ((TOPIC, "--dead-letter", "dead"), "a topic is kafka://"),
        ((TOPIC, "--dead-letter", DEAD, "--refused", "r"), "--refused is for a file"),
        ((TOPIC, "--dead-letter", DEAD, "--wait", "auto"), "--wait is a number with s, m, h or d"),
        (
            ("l.csv", "--column", "order=id"),
            "is NAME=COLUMN, once for each of id, receipt, label",
        ),
        (("l.csv", "--column", "id=a", "--column", "id=b"), "--column is NAME=COLUMN"),
        (("gone.csv",), "gone.csv"),
    ],
)
def test_labels_of_a_file_and_of_a_topic_take_their_own_options(
    words: tuple[str, ...], says: str, here: Path
) -> None:
    Path("l.csv").write_text("id,label\na,1\n")
    assert says in refused("label", *words)


def test_a_promotion_that_goes_back_asks_no_labels(here: Path) -> None:
    assert "--unproven is not for --back" in refused("refit", "promote", "--back", "digits", "--unproven")
