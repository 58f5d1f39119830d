"""One real tritonserver, one server that answers what a test says, and a gateway before each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateways import Answers, Running, answering, artifact, document, gateway, message, repository
from recording_server import Recording, recording, reply
from triton_server import Triton, needs_tritonserver, triton_on


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the gateway before Triton keeps its keys."""
    needs_tritonserver()
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="session")
def triton(folder: Path) -> Iterator[Triton]:
    models = ("digits", "halves", "ready-made", "other", "versions")
    repository(folder / "models", *models, versions=(1, 2))
    with triton_on(folder / "models", folder / "server") as found:
        yield found


@pytest.fixture(scope="session")
def triton_grpc(triton: Triton) -> str:
    """Where it speaks gRPC."""
    arguments = triton.process.args
    assert isinstance(arguments, list)
    (port,) = (one.partition("=")[2] for one in map(str, arguments) if one.startswith("--grpc-port="))
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def running(folder: Path, triton: Triton, triton_grpc: str) -> Iterator[Running]:
    """The gateway before Triton."""
    artifact().save(folder / "artifact")
    models = [f"{name}:{v}={folder / 'artifact'}" for name in ("digits", "halves") for v in (1, 2)]
    models += ["ready-made:2=3", f"versions:2={folder / 'artifact'}"]
    options = ["--output", "logits", "--output", "halves=half", "--scores", "logits", "--trust-headers"]
    with gateway(folder, triton.http, *options, models=models, grpc=triton_grpc) as found:
        yield found


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model ``digits``, as the command names it."""
    return f"digits={artifact().save(tmp_path_factory.mktemp('model') / 'artifact')}"


@pytest.fixture(scope="session")
def answering_server() -> Iterator[tuple[Recording, Answers]]:
    with recording() as http, answering() as grpc:
        yield http, grpc


@pytest.fixture(scope="session")
def _before_answers(
    tmp_path_factory: pytest.TempPathFactory, answering_server: tuple[Recording, Answers], model: str
) -> Iterator[Running]:
    options = ("--output", "logits", "--timeout=2", "--max-megabytes=1", "--trust-headers")
    limits = "from calib_serve.web import Limits; Limits.GATEWAY_WAITING, Limits.SECONDS = 4, 3.0; "
    http, grpc = answering_server
    folder = tmp_path_factory.mktemp("before-answers")
    with gateway(folder, http.url, *options, models=[model], grpc=grpc.address, limits=limits) as found:
        yield found


@pytest.fixture
def server(answering_server: tuple[Recording, Answers]) -> Recording:
    """Over HTTP; until a test says otherwise, it answers with a right reply."""
    http, _ = answering_server
    http.requests.clear()
    http.answer = lambda _: reply(document())
    return http


@pytest.fixture
def grpc_answers(answering_server: tuple[Recording, Answers]) -> Answers:
    """The same over gRPC."""
    _, grpc = answering_server
    grpc.answer = message
    return grpc


@pytest.fixture
def before(server: Recording, grpc_answers: Answers, _before_answers: Running) -> Running:
    """The gateway before these two, with small limits."""
    return _before_answers
