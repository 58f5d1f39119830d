"""TorchServe's feedback: who sent a label is what the host's settings and its proxy say, not the client."""

import json
import warnings

import pytest
from ledgers import revoked
from real_watch import RING

from calib_serve.core.errors import ModelError
from calib_serve.ledger import Ledger
from calib_serve.torchserve.feedback import CalibrationFeedback, source_reader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it leaves a file open
    from ts.context import Context, RequestProcessor

pytestmark = pytest.mark.store

V = ("m", "1")


@pytest.mark.parametrize(
    ("settings", "headers", "source"),
    [
        ({}, {"X-Client": "lab"}, ""),
        ({"SOURCE": "lab"}, {"X-Client": "crowd"}, "lab"),
        ({"SOURCE_HEADER": "x-client"}, {"X-Client": "crowd"}, "crowd"),
        ({"SOURCE_HEADER": "x-client", "SOURCE": "lab"}, {}, "lab"),
        ({"SOURCE_HEADER": "x-client"}, {"x-client": "a b"}, "other"),
        ({"SOURCE_HEADER": "x-client"}, {"x-client": {"content-type": "lab"}}, ""),
    ],
)
def test_the_source_is_the_host_s_or_its_proxy_s(monkeypatch, settings, headers, source):
    for name, value in settings.items():
        monkeypatch.setenv(f"CALIB_SERVE_{name}", value)
    assert source_reader()(headers) == source


def opened(tmp_path, monkeypatch, **settings):
    """The handler of labels of a host with these settings, and its context."""
    RING.save(tmp_path / "keys.json")
    (tmp_path / "models.json").write_text(json.dumps([{"name": "m", "version": "1", "classes": 3}]))
    settings = settings | {
        "KEYRING": tmp_path / "keys.json", "MODELS": tmp_path / "models.json",
        "LEDGER": tmp_path / "l.db", "SOURCE_HEADER": "x-client",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"CALIB_SERVE_{name}", str(value))
    feedback = CalibrationFeedback()
    manifest = {"model": {"modelName": "feedback", "modelVersion": "1.0"}}
    context = Context("feedback", str(tmp_path), manifest, 1, None, "0.12", model_yaml_config={})
    feedback.initialize(context)
    return feedback, context


@pytest.mark.parametrize(("correctors", "taken"), [("", []), ("lab,desk", ["desk"]), ("crowd", ["crowd"])])
def test_labels_are_replaced_by_the_sources_that_the_host_names_alone(
    tmp_path, monkeypatch, correctors, taken
):
    feedback, context = opened(tmp_path, monkeypatch, CORRECTORS=correctors)
    receipt = RING.sign(model="m", version="1", predicted=1, confidence=0.9)

    def send(source, **item):
        context.request_processor = [RequestProcessor({"x-client": source} if source else {})]
        (answer,) = feedback.handle([{"body": json.dumps([{"receipt": receipt} | item])}], context)
        return json.loads(answer)

    assert send("lab", label=1)["accepted"] == 1
    told = {source: send(source, label=0, replaces=True) for source in ("", "crowd", "desk")}
    assert [source for source, answer in told.items() if answer.get("accepted")] == taken
    refused = [json.dumps(answer) for source, answer in told.items() if source not in taken]
    assert all("CALIB_SERVE_CORRECTORS" in answer for answer in refused)
    feedback._watch.close()


def test_labels_of_one_batch_are_counted_and_taken_back_by_the_source_of_their_request(tmp_path, monkeypatch):
    feedback, context = opened(tmp_path, monkeypatch)
    senders = ["lab", "crowd", "lab"]
    context.request_processor = [RequestProcessor({"x-client": name}) for name in senders]
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    # A form's field of the header's name is the client's own.
    rows = [
        {"body": json.dumps([{"receipt": RING.sign(**facts), "label": 1}, *extra]), "x-client": b"admin"}
        for extra in ([], ["wrong"], [{"receipt": RING.sign(**facts), "label": 0}])
    ]
    answers = [json.loads(one) for one in feedback.handle(rows, context)]
    assert [one["accepted"] for one in answers] == [1, 1, 2]
    ledger = Ledger(tmp_path / "l.db")
    assert {key.name: sums.labels.sum() for key, sums in ledger.slices("source").items()} == {
        "lab": 3,
        "crowd": 1,
    }
    assert revoked(ledger, "lab") == {V: 3}
    ledger.close(), feedback._watch.close()


def test_an_option_of_the_archive_that_there_is_not_is_refused(tmp_path):
    manifest = {"model": {"modelName": "feedback", "modelVersion": "1.0"}}
    config = {"calib_serve": {"ttl_day": 7}}
    context = Context("feedback", str(tmp_path), manifest, 1, None, "0.12", model_yaml_config=config)
    with pytest.raises(ModelError, match="ttl_day"):
        CalibrationFeedback().initialize(context)
