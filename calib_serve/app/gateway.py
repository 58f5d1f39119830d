"""``calib-serve gateway``: calibrate, sign and watch the traffic of an Open Inference Protocol server."""

from dataclasses import replace
from typing import Annotated

from calib_serve.app._command import Flat, command
from calib_serve.app._serving import door, served_at, watched_models
from calib_serve.app._show import said
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.servers import GatewayOptions, ListenOptions

app = command(
    "gateway",
    "calib-serve gateway digits=artifact --upstream http://127.0.0.1:8000 --output logits --ledger ledger.db",
    details="MODELS are NAME[:VERSION]=ARTIFACT (a folder), or =CLASSES (a number) where the output is "
    "calibrated already; version 1 unless it is said. Before Triton, KServe, MLServer, OpenVINO, TorchServe: "
    "what is not an inference of the models given passes unchanged. Stops cleanly on Ctrl-C or SIGTERM.",
)


@app.default
def _gateway(models: list[str], *, options: Annotated[GatewayOptions, Flat]) -> None:
    """Serve before another server, until stopped."""
    from calib_serve.gateway import open_gateway
    from calib_serve.web import serve_app

    with (
        door(options, options.keyring) as opened,
        open_gateway(
            watched_models(models, version="1"),
            replace(options, keyring=opened.keyring),
            tokens=opened.tokens or (),
            hosts=opened.hosts,
        ) as running,
    ):
        what, behind = ", ".join(models), options.upstream
        serve_app(
            running,
            **fields_of(ListenOptions, options),
            started=lambda port: said(f"{what} on {served_at(options, port)} before {behind}"),
        )
    said("stopped")
