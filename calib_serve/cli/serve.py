"""``calib-serve serve``: a TorchServe over calibrated archives, stopped as cleanly as started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib_serve.cli.parse import share
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.serve.server import Server

__all__ = ["run"]


def run(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Archives of the store; default: every one in it, by name."),
    ] = None,
    *,
    store: Annotated[Path, typer.Option("--store", help="The model store.")] = Path("model_store"),
    folder: Annotated[
        Path, typer.Option("--folder", help="Where it runs: logs, tokens, keyring, ledger.")
    ] = Path("serving"),
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A config.properties to start from; default: the safe one."),
    ] = None,
    keyring: Annotated[
        Path | None,
        typer.Option(
            "--keyring", help="Keys that sign receipts; default: FOLDER/keyring.json, made if missing."
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Where labels are counted: a file, or postgresql://HOST/DATABASE."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", help="Keep logits and labels here, for calib-serve refit; default: none."),
    ] = None,
    sample_rate: Annotated[
        float,
        typer.Option(parser=share, metavar="SHARE", help="Which share of the predictions --samples keeps."),
    ] = 0.1,
    label_budget: Annotated[
        str,
        typer.Option(
            help="Which labels to ask for: 500/day, a rate 0.05, or rates by confidence 0.7:1,1:0.01."
        ),
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A line of config.properties; may be repeated."),
    ] = None,
    log_config: Annotated[
        Path | None,
        typer.Option("--log-config", help="A log4j2 file; default: that of the config's vmargs, else ours."),
    ] = None,
    startup_timeout: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seconds a model may take to load, where its archive has no startupTimeout; default: 120.",
        ),
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take any free ports instead of the config's.")
    ] = False,
) -> None:
    """Start TorchServe, print where it listens and where the tokens are, and stop it on Ctrl-C."""
    from calib_serve.fuse.torchserve import stored_archives
    from calib_serve.serve.properties import Ports
    from calib_serve.serve.server import Server, ensure_keyring
    from calib_serve.signals import interruptible

    if keyring is None:
        ensure_keyring(folder)
    names = models or [path.name for path in stored_archives(store)]
    server = Server(
        store,
        names,
        folder=folder,
        config=config,
        ports=Ports.free() if free_ports else None,
        settings=_pairs(settings or [])
        | ({"default_startup_timeout": str(startup_timeout)} if startup_timeout else {}),
        log_config=log_config,
        keyring=keyring,
        ledger=ledger,
        samples=samples,
        sample_rate=sample_rate,
        label_budget=label_budget,
    )
    for note in (*server.notes, *_remarks(store, names, config, _pairs(settings or []))):
        typer.echo(f"note: {note}")
    try:
        with interruptible(), contextlib.ExitStack() as running:
            running.callback(server.stop)
            server.start(allow_failures=True)
            _show(server)
            code = server.wait()
    except KeyboardInterrupt:
        typer.echo("stopped")
        return
    raise typer.Exit(code or 1)  # it was not asked to end


def _pairs(lines: list[str]) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines]
    if odd := [key for key, equals, _ in pairs if not (key and equals)]:
        raise InputError(f"--set takes KEY=VALUE, such as job_queue_size=100; got {odd}")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _remarks(store: Path, names: list[str], config: Path | None, settings: dict[str, str]) -> Iterator[str]:
    from calib_serve.fuse.torchserve import read_archive, remarks, shipped
    from calib_serve.serve.properties import read_properties

    properties = {**read_properties(config or shipped("config.properties")), **settings}
    installs = properties.get("install_py_dep_per_model", "").lower() == "true"
    for name in names:
        yield from remarks(read_archive(store / name, verify=False), installs=installs)


def _show(server: Server) -> None:
    typer.echo(f"serving {', '.join(server.served)}")
    for name, why in server.failures.items():
        typer.echo(f"  {name} is not served, TorchServe tries again at growing intervals: {why}")
    tokens = f"{server.key_file}  (inference, management)" if server.has_tokens else "none are asked for"
    for what, where in (
        ("predict", f"{server.inference}/predictions/MODEL"),
        ("manage", server.management),
        ("metrics", f"{server.metrics}/metrics  (no token)"),
        ("gRPC", server.grpc),
        ("tokens", tokens),
        ("logs", str(server.log_file.parent)),
    ):
        typer.echo(f"  {what:8} {where}")
    typer.echo("Ctrl-C stops it")
