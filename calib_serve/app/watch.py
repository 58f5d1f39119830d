"""``calib-serve watch``: count predictions and labels, look for drift, publish metrics and a page."""

import logging
from dataclasses import replace
from typing import Annotated

from calib_serve.app._command import Flat, command, panel
from calib_serve.app._serving import door, served_at, watched_models
from calib_serve.app._show import said
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.servers import ListenOptions, WatchOptions, WebOptions

log = logging.getLogger(__name__)

app = command(
    "watch",
    "calib-serve watch digits:1.0=artifact --keyring keyring.json --ledger ledger.db",
    details="MODELS are NAME:VERSION=ARTIFACT (a folder) or NAME:VERSION=CLASSES (a number). Stops "
    "cleanly on Ctrl-C or SIGTERM; what was acknowledged is in the ledger.",
)


@app.default
def _watch(
    models: list[str] | None = None,
    *,
    options: Annotated[WatchOptions, Flat] = WatchOptions(),
    web: Annotated[WebOptions, panel("Where it listens")] = WebOptions(),
) -> None:
    """Count predictions and labels, until stopped."""
    from calib_serve.monitor import Watch
    from calib_serve.web import create_app, serve_app

    with (
        door(web, options.keyring) as opened,
        Watch.open(watched_models(models or []), replace(options, keyring=opened.keyring)) as watch,
    ):
        app = create_app(watch, tokens=opened.tokens or (), hosts=opened.hosts)
        for (name, version), watched in watch.models.items():
            if watched.reference is None and not watched.classes.pairs:
                why = "it has no reference; give its artifact, not a number of classes"
                log.warning("%s:%s: shifts of confidence are not detected, as %s", name, version, why)
        named = ", ".join(f"{name}:{version}" for name, version in watch.models)
        what = named or f"what {options.follow} names"
        serve_app(
            app,
            **fields_of(ListenOptions, web),
            started=lambda port: said(f"watching {what} on {served_at(web, port)}"),
        )
    said("stopped")
