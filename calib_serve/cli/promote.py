"""``calib-serve promote``: the next version of a served model, where labels say that it is better."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib_serve.errors import InputError, LedgerError, ServerError

if TYPE_CHECKING:
    from calib_serve.promotion import Host, PromotionLog, Step

__all__ = ["run"]


def run(
    archive: Annotated[
        Path | None,
        typer.Argument(help="The archive of the new version, of which the served one has a shadow."),
    ] = None,
    *,
    folder: Annotated[
        Path, typer.Option("--folder", help="Where the server runs: its config.properties and tokens.")
    ] = Path("serving"),
    ledger: Annotated[
        str, typer.Option("--ledger", help="Where its labels are counted; default: the server's own.")
    ] = "",
    log: Annotated[
        Path | None, typer.Option("--log", help="The log; default: promotions.jsonl in the server's folder.")
    ] = None,
    unless_worse: Annotated[
        bool, typer.Option("--unless-worse", help='The verdict "no worse" is enough.')
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Whatever labels say.")] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Unregister the version before, once nothing is under way to it.")
    ] = False,
    model: Annotated[str, typer.Option("--model", help="The model, with --back, --auto or --show.")] = "",
    back: Annotated[
        bool, typer.Option("--back", help="Go back to the version before the last promotion.")
    ] = False,
    auto: Annotated[
        bool, typer.Option("--auto", help="Go on and on: drift, refit, shadow, promotion, and back.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --auto: what is next alone, then end.")] = False,
    samples: Annotated[
        Path | None, typer.Option("--samples", help="With --auto: the folder of sampled logits and labels.")
    ] = None,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="With --auto: seconds between looks.")
    ] = 10.0,
    tries: Annotated[
        int, typer.Option("--tries", min=1, help="With --auto: tries of a step, and vain rounds a week.")
    ] = 3,
    method: Annotated[str, typer.Option("--method", help="With --auto: how to refit.")] = "auto",
    show: Annotated[bool, typer.Option("--show", help="Show the log, and do nothing.")] = False,
) -> None:
    """Make another version of a model the served one, without a lost request or label.

    The new version must be better than the served one, by the labels of predictions that carried it as a
    shadow. Exit code 0: done. 1: refused, as labels do not say so, or not yet; the log says why. 2: it could
    not be done; what was served is still served.
    """
    from calib_serve.promotion import Host, PromotionLog

    steps = PromotionLog(log or folder / "promotions.jsonl")
    if show:
        for step in steps.steps(model):
            typer.echo(step.says())
        return
    if sum((archive is not None, back, auto)) != 1:
        raise InputError("give the archive of the new version, or one of --back, --auto and --show")
    if (back or auto) and not model:
        raise InputError("name the model with --model")
    host = Host.of(folder)
    if archive is not None:
        _promote(host, archive, steps, ledger, unless_worse=unless_worse, force=force, retire=retire)
    elif back:
        _back(host, model, steps, retire=retire)
    else:
        if samples is None:
            raise InputError("--auto refits on samples: name their folder with --samples")
        from calib_serve.promotion import Limits

        limits = Limits(tries=tries, unless_worse=unless_worse, method=method)
        _auto(host, model, steps, ledger, samples=samples, limits=limits, every=every, once=once)


def _promote(
    host: Host,
    archive: Path,
    steps: PromotionLog,
    ledger: str,
    *,
    unless_worse: bool,
    force: bool,
    retire: bool,
) -> None:
    from calib_serve.fuse.torchserve import same_model, served_artifact
    from calib_serve.promotion import Step, judged, swap

    artifact, model, version = served_artifact(archive)
    with host.sole(model):
        running = host.default(model)
        served = running.version
        if not force and served != version:
            if not same_model(archive, host.store / running.archive):
                raise InputError(
                    f"{archive} holds another model file than {running.archive}, in whose shadow only its "
                    "calibration ran: labels say nothing of it; look at it yourself, then give --force"
                )
            opened = _opened(ledger or host.ledger)
            told = judged(opened, (model, served), artifact.fingerprint, unless_worse=unless_worse)
            facts = {"served": served, "verdict": told.verdict, "numbers": told.numbers}
            step = "judged" if told.promote else "refused"
            _say(steps.add(Step(time.time(), step, model, version, told.reason, facts)))
            if not told.promote:
                raise typer.Exit(1)
        _, before = swap(host, archive, steps, retire=retire)
    typer.echo(f"{model} {version} is served, {before} before")


def _back(host: Host, model: str, steps: PromotionLog, *, retire: bool) -> None:
    from calib_serve.promotion import swap

    with host.sole(model):
        served = host.default(model).version
        done = [one for one in steps.steps(model) if one.step == "default" and one.version == served]
        if not done:
            raise InputError(
                f"{steps.path} has no promotion to {model} {served}; promote its archive instead"
            )
        swap(host, host.store / str(done[-1].facts["archive_before"]), steps, retire=retire)
    typer.echo(f"{model} {done[-1].facts['before']} is served, {served} before")


def _auto(
    host: Host,
    model: str,
    steps: PromotionLog,
    ledger: str,
    *,
    samples: Path,
    limits: object,
    every: float,
    once: bool,
) -> None:
    from calib_serve.promotion import Limits, Rounds

    assert isinstance(limits, Limits)
    with host.sole(model):
        opened = _opened(ledger or host.ledger)
        rounds = Rounds(host, model, steps, ledger=opened, samples=samples, limits=limits)
        while True:
            done = None
            try:
                done = rounds.step()
            except (LedgerError, ServerError) as error:
                if once:
                    raise
                typer.echo(f"calib-serve: {error}; it is tried again", err=True)
            if done is not None:
                _say(done)
            if once:
                return
            if done is None:
                time.sleep(every)


def _opened(where: str):  # type: ignore[no-untyped-def]
    from calib_serve.watch.ledger import open_ledger

    if "://" not in where and not Path(where.partition("?")[0]).exists():
        raise LedgerError(
            f"there is no ledger at {where}; name the one that labels are counted in by --ledger"
        )
    return open_ledger(where)


def _say(step: Step) -> None:
    typer.echo(step.says())
