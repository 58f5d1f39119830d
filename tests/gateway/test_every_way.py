"""Every way to a calibrated model's scores is calibrated and counted, or refused; whose ids are believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from gateways import ASKED, INFER, METHOD, Answers, Running, gateway, message, post, receipts
from live_server import inputs
from recording_server import Recording
from test_conformance import message as request
from test_conformance import raw
from torchserve import TorchServes, torchserves
from tritonclient.grpc import service_pb2

from calib_serve import Keyring

pytestmark = pytest.mark.server

__all__ = ["torchserves"]

METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE", "OPTIONS", "HEAD", "PROPFIND")
OTHER_WAYS = (
    "/predictions/digits", "/predictions/digits/1.0", "/explanations/digits", "/v1/models/digits:predict",
    "/v1/models/digits:explain", "/v1/models/digits/versions/1:predict", "/v1/models/d%69gits:predict",
    "/v2/models/digits/explain", "/v2/models/digits/generate", "/v2/models/digits/generate_stream",
    "/v2/models/digits/versions/1/generate", "/v2/models/digits/infer_stream", "/models/digits/invoke",
    "/invocations", "/invocations?model_name=digits", "/digits/predict", "/digits/1.0/predict",
    "/wfpredict/digits", "/api/v1.0/predictions", "/v3/chat/completions", "/V2/models/digits/infer",
    "/serving/a/digits/v2/models/digits/infer", "/v2/infer",
)  # fmt: skip


@pytest.mark.parametrize("path", [INFER, *OTHER_WAYS])
def test_a_request_that_could_get_scores_uncalibrated_is_refused_and_reaches_nobody(
    before: Running, server: Recording, path: str
) -> None:
    for method in METHODS:
        if (method, path) == ("POST", INFER):
            continue
        answer = raw(before.http, request(method, path, b"" if method == "HEAD" else b'{"inputs": []}'))
        status = int(answer.split(b" ", 2)[1])
        assert status in (404, 405, 501), (method, answer)
        assert method == "HEAD" or json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (b"\r\nallow: POST" in answer) == (status == 405) == (path == INFER)
    assert not server.requests


PASSES = (
    ("GET", "/v2/models/digits"), ("GET", "/v2/models/digits/versions/1/ready"), ("GET", "/v1/models/digits"),
    ("GET", "/v2/models/digits/stats"), ("GET", "/v2/models/digits/config"), ("GET", "/v1/models"),
    ("POST", "/v2/models/digits/trace/setting"), ("POST", "/v2/repository/index"), ("GET", "/metrics"),
    ("POST", "/v2/repository/models/digits/load"), ("GET", "/v2/health/ready"), ("GET", "/ping"),
    ("GET", "/"),
    ("POST", "/v2/models/other/infer"), ("PUT", "/v2/models/other/infer"), ("POST", "/predictions/other/1"),
    ("POST", "/v1/models/other:predict"), ("POST", "/v2/models/other/generate"), ("GET", "/models/digits"),
    ("POST", "/models/other/invoke"), ("POST", "/explanations/other"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PASSES)
def test_what_asks_no_calibrated_model_passes_as_it_came(
    before: Running, server: Recording, method: str, path: str
) -> None:
    answer = raw(before.http, request(method, path))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"uncalibrated" not in answer
    assert server.requests[0].startswith(f"{method} {path} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    "header",
    [
        "X-HTTP-Method-Override: GET", "X-Method-Override: PUT", "X-Original-URL: /predictions/digits",
        "X-Rewrite-URL: /v2/models/digits/generate", "Seldon-Model: digits",
        "seldon-internal-model: digits_1",
    ],
)  # fmt: skip
def test_a_header_that_names_another_model_or_address_is_refused(
    before: Running, server: Recording, header: str
) -> None:
    for path in ("/v2/models/other/infer", "/v2/models/other"):
        assert b" 400 " in raw(before.http, request("POST", path, b"{}", header))[:13]
    assert not server.requests
    assert post(before, headers={"Seldon-Model": "digits"}).status_code == 200


WAYS = ("/v2/models/digits/infer", "/predictions/digits", "/digits/predict", "/invocations?model_name=digits")


def test_before_torchserve_no_method_and_no_address_gives_scores_as_they_are(
    tmp_path: Path, torchserves: TorchServes
) -> None:
    """It answers each of these by every method with an inference."""
    behind = torchserves.behind()
    x = inputs(1)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    body, headers = json.dumps({"inputs": [tensor]}), dict(behind.http.headers)
    methods, model = ("POST", "PUT", "PATCH", "GET", "DELETE"), "digits:1.0=10"
    ways = [*product(methods, WAYS)]
    for method, path in ways:
        assert "receipt" in behind.http.request(method, path, content=body).text, (method, path)
    options = ("--output", "probabilities", "--scores", "probabilities")
    with gateway(tmp_path, behind.server.inference, *options, models=[model]) as running:

        def ask(method: str, path: str) -> httpx.Response:
            return running.client.request(method, running.http + path, content=body, headers=headers)

        found = {way: ask(*way) for way in ways}
        assert len(receipts(found.pop(("POST", WAYS[0])))) == 1
        assert {one.status_code for one in found.values()} == {404, 405, 501}
        assert ask("GET", "/ping").json()["status"] == "Healthy"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model: str, answering_server: Any) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("".join(f"{one} {one} {token(one)}\n" for one in ("predict", "scrape")))
    (folder / "tokens").chmod(0o600)
    http, over_grpc = answering_server
    options = ("--token-file", str(folder / "tokens"), "--output", "logits")
    with gateway(folder, http.url, *options, models=[model], grpc=over_grpc.address) as found:
        found.client.headers["Authorization"] = f"Bearer {token('scrape')}"
        yield found


def token(name: str) -> str:
    return f"the-token-of-{name}"


TAGS = {"x-calib-id": "order-17", "x-calib-segment": "web", "x-calib-group": "g"}
SENT = (
    ({}, "no_token"),
    ({"x-calib-token": ""}, "no_token"),
    ({"x-calib-token": token("scrape")}, "wrong_token"),
    ({"x-calib-token": "guessed-and-long-enough"}, "wrong_token"),
    ({"X-Calib-Token": token("predict")}, None),
)


@pytest.mark.parametrize(("sent", "reason"), SENT)
def test_ids_and_segments_are_believed_beside_a_token_alone_and_the_rest_is_counted(
    guarded: Running, server: Recording, grpc_answers: Answers, sent: dict[str, str], reason: str | None
) -> None:
    """Predictions come without a token: anybody could take the ids of others, and the places of segments."""
    ring = Keyring.load(Path(guarded.process.args[guarded.process.args.index("--keyring") + 1]))  # type: ignore[index, union-attr]
    seen: list[dict[str, Any]] = []
    grpc_answers.answer = lambda _, context: [seen.append(dict(context.invocation_metadata())), message()][1]
    before = guarded.series("calib_tags_dropped_total")
    segments: list[str | bytes] = [*receipts(post(guarded, headers={**TAGS, **sent}))]
    with grpc.insecure_channel(guarded.grpc) as channel:
        metadata = tuple((name.lower(), value) for name, value in {**TAGS, **sent}.items())
        answer = channel.unary_unary(METHOD)(ASKED, timeout=20, metadata=metadata)
    reply = service_pb2.ModelInferResponse.FromString(answer)
    segments += next(one for one in reply.outputs if one.name == "receipt").contents.bytes_contents
    found = {ring.verify(one if isinstance(one, str) else one.decode()).segment for one in segments}
    assert found == ({"web"} if reason is None else {""})
    went = server.requests[-1].lower()
    assert (b"x-calib-id" in went) == ("x-calib-id" in seen[-1]) == (reason is None)
    assert b"x-calib-token" not in went
    assert "x-calib-token" not in seen[-1]
    after = guarded.series("calib_tags_dropped_total")
    assert {one: after[one] - before[one] for one in after if after[one] != before[one]} == (
        {} if reason is None else {f'{{model="digits",reason="{reason}"}}': 2}
    )


def test_a_token_is_for_the_gateway_and_goes_to_no_server(guarded: Running, server: Recording) -> None:
    post(guarded, path="/v2/models/other/infer", headers={**TAGS, "x-calib-token": token("predict")})
    assert b"x-calib-token" not in server.requests[-1].lower()
    assert b"x-calib-id" in server.requests[-1].lower()  # another model's, which passes as it came


@pytest.mark.parametrize(
    "method", ["/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions", "/a.B/StreamPredictions"]
)
def test_inferences_of_other_protocols_are_refused_over_grpc(before: Running, method: str) -> None:
    with grpc.insecure_channel(before.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(method)(ASKED, timeout=20)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_call_whose_model_is_not_sure_is_refused_and_an_unknown_method_is_not_served(
    before: Running, grpc_answers: Answers
) -> None:
    asked: list[bytes] = []
    grpc_answers.answer = lambda sent, _: [asked.append(sent), message()][1]
    with grpc.insecure_channel(before.grpc) as channel:
        other = service_pb2.ModelInferRequest(model_name="other").SerializeToString()
        for sent, model in ((b"\xff\xff", ""), (other, "digits"), (ASKED, "other")):
            metadata = (("seldon-model", model),) if model else ()
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(METHOD)(sent, timeout=20, metadata=metadata)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary("/no.such/Method")(b"", timeout=20)
            assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert not asked
