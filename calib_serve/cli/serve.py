"""``calib-serve serve``: a TorchServe over calibrated archives, stopped as cleanly as started."""

from __future__ import annotations

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
        typer.Option("--ledger", help="Where labels are counted: a file, or redis://..."),
    ] = None,
    writer: Annotated[
        str,
        typer.Option(
            "--writer", help="This server's name, where several share a ledger; default: the host's."
        ),
    ] = "",
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
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take any free ports instead of the config's.")
    ] = False,
) -> None:
    """Start TorchServe, print where it listens and where the tokens are, and stop it on Ctrl-C."""
    from calib_serve.serve.properties import Ports
    from calib_serve.serve.server import Server, ensure_keyring
    from calib_serve.signals import interruptible

    if keyring is None:
        ensure_keyring(folder)
    names = models or sorted(path.name for path in store.glob("*.mar"))
    server = Server(
        store,
        names,
        folder=folder,
        config=config,
        ports=Ports.free() if free_ports else None,
        settings=_pairs(settings or []),
        keyring=keyring,
        ledger=ledger,
        writer=writer or None,
        samples=samples,
        sample_rate=sample_rate,
        label_budget=label_budget,
    )
    try:
        with interruptible(), server:
            _show(server, names)
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


def _show(server: Server, names: list[str]) -> None:
    typer.echo(f"serving {', '.join(names)}")
    for what, where in (
        ("predict", f"{server.inference}/predictions/MODEL"),
        ("manage", server.management),
        ("metrics", f"{server.metrics}/metrics  (no token)"),
        ("gRPC", server.grpc),
        ("tokens", f"{server.key_file}  (inference, management)"),
        ("logs", str(server.folder / "logs")),
    ):
        typer.echo(f"  {what:8} {where}")
    typer.echo("Ctrl-C stops it")
