"""``calib-serve doctor``: what on this host would not work, and what mends it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfOutput, command
from calib_serve.app._show import console, print_json
from calib_serve.options.base import Checked, check

if TYPE_CHECKING:
    from calib_serve.doctor import Finding

__all__ = ["app"]

app = command(
    "doctor",
    "calib-serve doctor\ncalib-serve doctor --for torchserve,watch --ledger ledger.db",
    details="Exit code 1 if anything is wrong. It writes nothing, starts no server and asks no network.",
)
_COLORS = {"ok": "green", "note": "yellow", "wrong": "red"}


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the host is for."""

    extras: Annotated[tuple[str, ...], Parameter(name="--for")] = ()
    """What the host is for, such as torch,torchserve,watch; by default what is installed."""
    keyring: Path | None = None
    """The keyring that will be used."""
    ledger: str | None = None
    """Where labels will be counted, such as ledger.db."""
    store: Path | None = None
    """The model store."""
    folder: Path | None = None
    """Where calib-serve serve runs: tokens, keyring, ledger."""
    config: Path | None = None
    """A config.properties with TorchServe's ports."""
    port: int = 9300
    """Where calib-serve watch will listen."""

    def _check(self) -> None:
        check(1 <= self.port <= 65_535, "port", f"must lie between 1 and 65535, got {self.port}")


@app.default
def doctor(
    *, options: Annotated[Options, Flat] = Options(), output: Annotated[Json, OfOutput] = Json()
) -> int:
    """Look at this host."""
    from calib_serve.doctor import Asked, examine

    found = examine(Asked(**vars(options)))
    count = {level: sum(one.level == level for one in found) for level in _COLORS}
    if output.json:
        print_json({**count, "findings": [asdict(one) for one in found]})
    else:
        _show(found)
        console().print(f"{count['ok']} ok, {count['note']} to note, {count['wrong']} wrong")
    return int(count["wrong"] > 0)


def _show(found: "list[Finding]") -> None:
    from rich.text import Text

    out = console()
    for one in found:
        out.print(Text.assemble((f"{one.level:6}", _COLORS[one.level]), f" {one.about}: {one.what}"))
        if one.do:
            out.print(f"       do: {one.do}")
