"""Requests of every protocol in this process: hostile ones, and behind envelopes as TorchServe loads them."""

from __future__ import annotations

import json
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import CLASSES, exported, inputs, temperature_artifact

from calib_serve.core.errors import ModelError
from calib_serve.torchserve import pack
from calib_serve.torchserve._requests import MOST_ROWS, read_message, read_request

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.context import RequestProcessor
    from ts.model_loader import TsModelLoader
    from ts.torch_handler.request_envelope.base import BaseEnvelope

HTTP = {"Host": "here", "Content-Type": "application/json"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "x-calib-segment", "x-calib-group", "x-calib-id"]) | JSON,
        "datatype": st.sampled_from(["FP32", "INT64", "UINT64", "BYTES", "BOOL"]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "data": st.lists(st.integers() | st.text(max_size=3), max_size=9) | JSON,
    },
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "model_name": JSON,
        "instances": st.lists(JSON | st.fixed_dictionaries({"b64": JSON}), max_size=4) | JSON,
        "inputs": st.lists(TENSOR | JSON, max_size=3) | JSON,
        "parameters": JSON | st.fixed_dictionaries({"segment": JSON, "group": JSON, "id": JSON}),
    },
)


@given(BODY | JSON, st.sampled_from([HTTP, {}, {"x-calib-segment": "a", "data": {"content-type": "b"}}]))
def test_whatever_a_request_holds_it_has_rows_and_tags_or_a_reason(
    body: Any, headers: dict[str, Any]
) -> None:
    for sent in (body, json.dumps(body), json.dumps(body).encode()):
        request = read_request(read_message({"body": sent}, headers), shape=(3,))
        assert len(request.payloads) == len(request.tags)
        assert bool(request.refused) != bool(request.payloads)
        assert all(isinstance(text, str) for tag in request.tags for text in tag)


def test_more_rows_than_a_batch_should_hold_are_refused() -> None:
    body = {"instances": [[0.0]] * (MOST_ROWS + 1)}
    assert f"1 to {MOST_ROWS}" in read_request(read_message({"body": body}, HTTP), shape=(1,)).refused


X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.0] * 3}
OVER_GRPC = {"id": "", "model_name": "m"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": [X, {**X, "name": "y"}]}, "takes one input tensor, got 'x', 'y'"),
        ({**OVER_GRPC, "inputs": []}, "takes one input tensor, got none"),
        ({"inputs": [X, X]}, "two input tensors 'x'"),
        ({"inputs": [{**X, "data": "AAAA"}]}, "'x' holds no data; .* does not read binary tensors"),
        ({**OVER_GRPC, "inputs": [{**X, "data": []}]}, "does not pass on raw_input_contents"),
        ({"inputs": [X], "parameters": [1]}, '"parameters" must be an object'),
        ({"instances": [[0.0], {"b64": "?"}]}, "instance 1: .* is not base64"),
        ({"instances": [{"x": {"b64": 7}}]}, "instance 0: .* is not base64"),
        ({"instances": []}, "send 1 to 1000 instances a request, got 0"),
        ({"instances": [[0.0]], "parameters": {"segment": [True]}}, "segment must be a text or whole"),
    ],
)
def test_a_request_that_cannot_be_read_says_why(body: Any, says: str) -> None:
    headers = {} if "model_name" in body else HTTP
    assert re.search(says, read_request(read_message({"body": body}, headers), shape=(3,)).refused)


def test_instances_hold_their_payload_by_name_as_bytes_or_as_they_are() -> None:
    given = [{"data": [1]}, {"body": "a"}, {"b64": "YWI="}, {"x": {"b64": "YWI="}, "y": 2}, [3]]
    payloads = read_request(read_message({"body": {"instances": given}}, HTTP), shape=(1,)).payloads
    assert payloads == [[1], "a", b"ab", {"x": b"ab", "y": 2}, [3]]


def test_large_unsigned_numbers_come_from_java_as_negative_ones() -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "UINT32", "data": [-1, 7]}
    body = {"id": "", "model_name": "m", "inputs": [tensor]}
    assert read_request(read_message({"body": body}, {}), shape=(2,)).payloads == [[2**32 - 1, 7]]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]) -> Iterator[Path]:
    """A packed classifier, unpacked."""
    path = pack(
        exported(tmp_path / "net.pt2"), temperature_artifact(), tmp_path, name="digits", unproven=True
    )
    with zipfile.ZipFile(path) as file:
        file.extractall(tmp_path / "unpacked")
    monkeypatch.syspath_prepend(str(tmp_path / "unpacked"))
    yield tmp_path / "unpacked"
    sys.modules.pop("calibrated_classifier", None)


def loaded(folder: Path, envelope: str | None) -> Any:
    """The service that TorchServe makes of an archive."""
    with warnings.catch_warnings():  # its yaml stays open
        warnings.simplefilter("ignore")
        return TsModelLoader().load("digits", str(folder), "calibrated_classifier.py", None, 2, envelope)


def answered(service: Any, *bodies: Any) -> list[tuple[int, Any]]:
    service.context.request_processor = [RequestProcessor(dict(HTTP)) for _ in bodies]
    replies = service._entry_point([{"body": body} for body in bodies], service.context)
    return [(service.context.get_response_status(i)[0], json.loads(one)) for i, one in enumerate(replies)]


def v2(x: np.ndarray, **more: Any) -> dict[str, Any]:
    one = {"name": "x", "shape": list(x.shape), "datatype": "FP64", "data": x.tolist()}
    return {"inputs": [one], **more}


def test_rows_are_named_by_parameters_and_tensors_as_by_headers() -> None:
    x = np.zeros((2, 3))
    named = {"name": "x-calib-id", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    for body, ids in (
        (v2(x, parameters={"id": "a"}), ["a:0", "a:1"]),
        (v2(x[:1], parameters={"id": "a"}), ["a"]),
        (v2(x, parameters={"id": ["a", 7]}), ["a", "7"]),
        ({"instances": x.tolist(), "parameters": {"id": "a"}}, ["a:0", "a:1"]),
        ({"inputs": [*v2(x)["inputs"], named]}, ["a", "b"]),
    ):
        request = read_request(read_message({"body": body}, HTTP), shape=(3,))
        assert [tag.id for tag in request.tags] == ids
    wrong = read_request(read_message({"body": v2(x, parameters={"id": ["a"]})}, HTTP), shape=(3,))
    assert "id must be" in wrong.refused


@pytest.mark.parametrize("envelope", [None, "body", "json", "kserve", "kservev2"])
def test_requests_of_all_protocols_share_a_batch(archive: Path, envelope: str | None) -> None:
    service, x = loaded(archive, envelope), inputs(3)
    wrong = {"instances": [x[0].tolist(), "no"]}
    answers = answered(service, x[0].tolist(), {"instances": x.tolist()}, v2(x), v2(x[1]), wrong)
    assert [status for status, _ in answers] == [200, 200, 200, 200, 400]
    plain, v1, all_rows, one = (reply for _, reply in answers[:4])
    assert [row["predicted"] for row in v1["predictions"]] == all_rows["outputs"][0]["data"]
    assert plain["predicted"] == v1["predictions"][0]["predicted"]
    shapes = {output["name"]: output["shape"] for output in one["outputs"]}
    assert shapes["probabilities"] == [1, CLASSES]
    assert shapes["receipt"] == [1]


def test_an_instance_that_the_model_fails_on_fails_its_request_uncounted(archive: Path) -> None:
    service, served = loaded(archive, None), []
    handler = service._entry_point.__self__
    run, told = handler._run, handler._observer.served
    handler._run = lambda batch: np.where(batch[:, :1] > 100, np.nan, run(batch))
    handler._observer.served = lambda pairs, **more: (
        served.append((len(pairs), more["invalid"])) or told(pairs, **more)
    )
    x = inputs(3)
    x[1, 0] = 200
    first, second = answered(service, {"instances": x.tolist()}, {"instances": inputs(2).tolist()})
    assert first == (500, {"error": "instance 1: the model's output for this input is NaN or infinite"})
    assert second[0] == 200
    assert served == [(2, 1)]


def test_an_envelope_of_somebody_s_own_is_refused_at_the_load_and_left_as_it_is(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BaseEnvelope.__init__
    theirs = ModuleType("ts.torch_handler.request_envelope.theirs")
    theirs.Theirs = type("Theirs", (BaseEnvelope,), {"__module__": theirs.__name__})
    theirs.Theirs.__abstractmethods__ = frozenset()
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    with pytest.raises(ModelError, match="not of theirs"):
        loaded(archive, "theirs")
    assert BaseEnvelope.__init__ is made


def test_a_handler_with_an_init_of_its_own_has_no_envelope_before_it_either(archive: Path) -> None:
    entry = archive / "calibrated_classifier.py"
    entry.write_text(entry.read_text() + "\n    def __init__(self):\n        self.mine = 1\n")
    ((status, reply),) = answered(loaded(archive, "kserve"), inputs(1)[0].tolist())
    assert status == 200, "KServe's envelope would not read it"
    assert "receipt" in reply
