"""A gateway of files and addresses: artifacts, a keyring, a watch here or elsewhere, and limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.gateway.app import Gateway, Part, of_watch_elsewhere, of_watch_inside
from calib_serve.gateway.calibration import Calibration, Calibrations
from calib_serve.gateway.exporter import Counts, OneRegistry
from calib_serve.gateway.grpc_gateway import GrpcGateway
from calib_serve.gateway.http import HttpUpstream, Waiting
from calib_serve.receipts import Keyring, LiveKeyring
from calib_serve.reporter.reporter import Reporter
from calib_serve.scores import Outputs, check_outputs
from calib_serve.watch.http import Tokens, create_app
from calib_serve.watch.service import Watch

__all__ = ["Limits", "Named", "Ports", "open_gateway"]

Version = tuple[str, str]


@dataclass(frozen=True)
class Ports:
    """Addresses of gRPC, HOST:PORT: the server's, and the own; ``tls``: certificate and key, PEM."""

    upstream: str
    listen: str
    tls: tuple[bytes, bytes] | None = None


@dataclass(frozen=True)
class Limits:
    """Seconds that the server may take, requests at work, and bytes of a body."""

    seconds: float = 60.0
    waiting: int = 256
    body: int = 64 << 20


@dataclass(frozen=True)
class Named:
    """What ``option`` says: a value by model, and one for all others, under "".

    >>> Named.read(["logits", "digits=scores"], "--output").of("digits")
    'scores'
    """

    option: str
    by_model: Mapping[str, str]

    @classmethod
    def read(cls, texts: Sequence[str], option: str) -> Named:
        """Of VALUE and MODEL=VALUE; InputError where something is said twice."""
        found: dict[str, str] = {}
        for text in texts:
            model, _, value = text.rpartition("=")
            if not value or model in found:
                raise InputError(f"{option} is VALUE or MODEL=VALUE, once each; got {text!r}")
            found[model] = value
        return cls(option, found)

    def of(self, model: str) -> str | None:
        """That of a model, None where nothing is said of it."""
        return self.by_model.get(model, self.by_model.get(""))

    def check(self, models: Sequence[str]) -> None:
        """InputError where a model is named that is none of these."""
        for model in self.by_model:
            if model and model not in models:
                raise InputError(f"{self.option} names {model!r}, which is none of the models given")


NO_SHADOW = Named("--shadow", {})


@contextlib.contextmanager
def open_gateway(
    models: Mapping[Version, Artifact | str | Path | int],
    upstream: str,
    *,
    output: Named,
    scores: Named,
    keyring: Keyring | LiveKeyring,
    watch: Watch | str,
    watch_token: str = "",
    tokens: Tokens = (),
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    grpc: Ports | None = None,
    samples: str | Path | None = None,
    limits: Limits = Limits(),
    shadow: Named = NO_SHADOW,
) -> Iterator[Gateway]:
    """The ASGI app before the server at ``upstream``, http://HOST:PORT; inside the context it may be served.

    ``models``: by (model, version), an artifact, its folder, or the number of classes of a model whose
    output is calibrated already. ``output``: the name of the output that holds the scores; ``scores``:
    what they are (``calib_serve.scores``), where the artifact does not say so. ``watch``: of this
    process, whose app is then the gateway's as well, for whoever has one of the ``tokens``; or its
    address, with a token for it. ``samples``: a folder for a share of logits, to refit on. ``shadow``:
    the folder of an artifact that runs in the shadow of a model's, on the same output. InputError for
    what does not fit together.
    """
    for named in (output, scores, shadow):
        named.check([model for model, _ in models])
    registry, counts = OneRegistry(), Counts(models)
    waiting = Waiting(limits.waiting, most=limits.body)
    server = HttpUpstream(upstream, timeout=limits.seconds, connections=limits.waiting)
    parts: list[Part] = []
    with contextlib.ExitStack() as opened:
        found = []
        for (model, version), given in models.items():
            what = given if isinstance(given, (Artifact, int)) else Artifact.load(given)
            name, kind = output.of(model), _kind(what, scores.of(model), model)
            if name is None:
                raise InputError(f"say with --output which output of {model} holds its scores")
            beside = None if (folder := shadow.of(model)) is None else Artifact.load(folder)
            if beside is not None:
                beside.check_takes(kind, f"the scores of {model}, in whose shadow it runs")
            reporter = Reporter(
                what,
                model=model,
                version=version,
                keyring=keyring,
                watch=watch,
                token=watch_token,
                registry=registry,
                samples=samples,
                shadow=beside,
            )
            opened.callback(reporter.close)
            found.append(Calibration(model, version, what, output=name, kind=kind, reports=reporter))
        calibrations = Calibrations(found)
        registry.register(counts)
        if isinstance(watch, Watch):
            own = of_watch_inside(create_app(watch, tokens=tokens, hosts=hosts, registry=registry))
        else:
            elsewhere = HttpUpstream(watch, timeout=limits.seconds, connections=limits.waiting, folder=True)
            own = of_watch_elsewhere(elsewhere, registry, tokens, hosts)
            parts.append(elsewhere)
        if grpc is not None:
            parts.append(
                GrpcGateway(
                    calibrations,
                    upstream=grpc.upstream,
                    listen=grpc.listen,
                    tls=grpc.tls,
                    waiting=waiting,
                    counts=counts,
                    timeout=limits.seconds,
                )
            )
        yield Gateway(calibrations, server, own, waiting=waiting, counts=counts, parts=tuple(parts))


def _kind(what: Artifact | int, told: str | None, model: str) -> Outputs:
    """What the scores are; InputError where nobody said so: taken for another kind they look right."""
    check_outputs(told)
    known = what.model.outputs if isinstance(what, Artifact) else None
    if told is None and known is None:
        raise InputError(f"say with --scores what the output of {model} holds, such as logits")
    kind: Outputs = told or known  # type: ignore[assignment]  # checked above
    return kind
