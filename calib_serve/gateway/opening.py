"""A gateway of files and addresses: artifacts, a keyring, a watch here or elsewhere, and limits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.files import read_whole
from calib_serve.gateway.app import Gateway, Part, of_watch_elsewhere, of_watch_inside
from calib_serve.gateway.calibration import Calibration, Calibrations
from calib_serve.gateway.exporter import Counts, OneRegistry
from calib_serve.gateway.grpc_gateway import GrpcGateway
from calib_serve.gateway.http import HttpUpstream, Waiting
from calib_serve.options.base import changed
from calib_serve.options.gateway import GatewayOptions
from calib_serve.receipts import LiveKeyring
from calib_serve.reporter.reporter import Reporter
from calib_serve.scores import Outputs, check_outputs
from calib_serve.watch.client import read_token
from calib_serve.watch.http import LOOPBACK, Guard, Tokens, create_app
from calib_serve.watch.service import Watch

__all__ = ["Named", "open_gateway"]

Version = tuple[str, str]


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


@contextlib.contextmanager
def open_gateway(
    models: Mapping[Version, Artifact | str | Path | int],
    options: GatewayOptions | None = None,
    *,
    tokens: Tokens = (),
    hosts: Sequence[str] = LOOPBACK,
    **given: Any,
) -> Iterator[Gateway]:
    """Open the ASGI app before the server ``upstream``; inside the context it may be served.

    ``models``: by (model, version), an artifact, its folder, or the number of classes of a model whose
    output is calibrated already. ``options``, or ``given`` one by one: see ``GatewayOptions``. The app of a
    watch in this process is then the gateway's as well, for whoever has one of the ``tokens``. InputError for
    what does not fit together.
    """
    options = GatewayOptions(**given) if options is None else changed(options, given)
    output, scores = Named.read(options.output, "--output"), Named.read(options.scores, "--scores")
    shadow = Named.read(options.shadow, "--shadow")
    for named in (output, scores, shadow):
        named.check([model for model, _ in models])
    grpc_tls = None if options.grpc_port is None else _pair(options.tls_cert, options.tls_key)
    token = read_token(options.watch_token_file) if options.watch_token_file else ""
    ring = options.keyring
    if isinstance(ring, (str, Path)):
        ring = LiveKeyring(ring)
    registry, counts = OneRegistry(), Counts(models)
    waiting = Waiting(options.max_waiting, most=options.max_bytes)
    reach = functools.partial(HttpUpstream, timeout=options.timeout, connections=options.max_waiting)
    server = reach(options.upstream)
    parts: list[Part] = []
    with contextlib.ExitStack() as opened:
        watch = options.watch
        if options.ledger is not None:
            watch = opened.enter_context(Watch.open(models, keyring=ring, ledger=options.ledger))
        found, reporters = [], list[Reporter]()
        opened.callback(Reporter.close_all, reporters)
        for (model, version), of in models.items():
            what = of if isinstance(of, (Artifact, int)) else Artifact.load(of)
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
                keyring=ring,
                watch=watch,
                token=token,
                registry=registry,
                samples=options.samples,
                shadow=beside,
            )
            reporters.append(reporter)
            found.append(Calibration(model, version, what, output=name, kind=kind, reports=reporter))
        calibrations, guard = Calibrations(found), Guard(tokens, hosts)
        registry.register(counts)
        if isinstance(watch, Watch):
            own = of_watch_inside(create_app(watch, tokens=tokens, hosts=hosts, registry=registry))
        else:
            elsewhere = reach(watch, folder=True)
            own = of_watch_elsewhere(elsewhere, registry, guard)
            parts.append(elsewhere)
        if options.grpc_upstream is not None:
            host = f"[{options.host}]" if ":" in options.host else options.host
            parts.append(
                GrpcGateway(
                    calibrations,
                    upstream=options.grpc_upstream,
                    listen=f"{host}:{options.grpc_port}",
                    tls=grpc_tls,
                    waiting=waiting,
                    counts=counts,
                    timeout=options.timeout,
                )
            )
        yield Gateway(
            calibrations, server, own, guard=guard, waiting=waiting, counts=counts, parts=tuple(parts)
        )


def _pair(cert: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    """The bytes of both files; InputError where one cannot be read."""
    if cert is None or key is None:
        return None
    try:
        return read_whole(Path(cert)), read_whole(Path(key))
    except OSError as error:
        raise InputError(f"cannot read the certificate and its key: {error}") from error


def _kind(what: Artifact | int, told: str | None, model: str) -> Outputs:
    """What the scores are; InputError where nobody said so: taken for another kind they look right."""
    check_outputs(told)
    known = what.model.outputs if isinstance(what, Artifact) else None
    if told is None and known is None:
        raise InputError(f"say with --scores what the output of {model} holds, such as logits")
    kind: Outputs = told or known  # type: ignore[assignment]  # checked above
    return kind
