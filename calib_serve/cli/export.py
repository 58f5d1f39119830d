"""``calib-serve export``: write what other programs are set up with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="Write what other programs are set up with.")


@group.command()
def monitoring(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; made if it is missing.")],
    *,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="The gap between confidence and accuracy that is no error.")
    ] = 0.02,
    sigmas: Annotated[float, typer.Option("--sigmas", help="Standard errors beyond it.")] = 4,
    runbooks: Annotated[
        str,
        typer.Option(
            "--runbooks",
            metavar="URL",
            help="The page with a section for each alert, which alerts and the dashboard link to.",
        ),
    ] = "docs/monitoring.md",
    window: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            help="Record this window, 1h, 24h or 7d; several times for several. All without it. Alerts of "
            "others are left out.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PART",
            help="Write rules, alerts, dashboards, prometheus, alertmanager or grafana; several times for "
            "several. All without it.",
        ),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option("--jobs", metavar="REGEX", help="Scrape jobs that publish the series, for MonitorDown."),
    ] = "torchserve|triton|calib-serve.*",
    add_over: Annotated[
        list[str] | None,
        typer.Option("--add-over", metavar="LABEL", help="A further label that tells replicas apart."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="LABEL", help="A label that does not, such as job: it is kept."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that say something else.")] = False,
) -> None:
    """Write rules, alerts, the dashboard and example settings, for Prometheus, Alertmanager and Grafana.

    Nothing is written where a file would change, unless told --force.
    """
    from calib_serve.errors import InputError
    from calib_serve.monitoring import PARTS, WINDOWS, MonitoringOptions, export_monitoring

    parts = [part for part in PARTS if part in (only or PARTS)]
    if unknown := set(only or ()) - set(PARTS):
        raise InputError(f"the parts are {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    options = MonitoringOptions(
        tolerance=tolerance,
        sigmas=sigmas,
        runbooks=runbooks,
        windows=tuple(window or WINDOWS),
        jobs=jobs,
        add_over=tuple(add_over or ()),
        keep=tuple(keep or ()),
    )
    written = export_monitoring(folder, options, parts=parts, force=force)
    for path in written:
        typer.echo(f"wrote {path}")
    if not written:
        typer.echo(f"{folder} is up to date")


@group.command()
def constraints(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write; for pip's and uv's -c.")
    ] = Path("constraints.txt"),
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that says something else.")
    ] = False,
) -> None:
    """Write the versions of other packages that this release was tested with."""
    from importlib.resources import files

    from calib_serve.errors import InputError
    from calib_serve.files import write_whole

    pins = (files("calib_serve") / "constraints.txt").read_bytes()
    try:
        if file.exists() and file.read_bytes() != pins and not force:
            raise InputError(f"would change {file}; give another file, or --force")
        write_whole(file, pins)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from error
    typer.echo(f"wrote {file}")
