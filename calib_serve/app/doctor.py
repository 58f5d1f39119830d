"""``calib-serve doctor``: what would not work on this host, and how to mend it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from calib_serve.app._command import Flat, Json, OfOutput, command
from calib_serve.app._show import console, print_json
from calib_serve.core.options.doctor import DoctorOptions

if TYPE_CHECKING:
    from calib_serve.app.host_checks import Finding

app = command(
    "doctor",
    "calib-serve doctor\ncalib-serve doctor --for torchserve,watch --ledger ledger.db",
    details="Exit code 1 if anything is wrong. It writes nothing, starts no server and asks no network.",
)
_COLORS = {"ok": "green", "note": "yellow", "wrong": "red"}


@app.default
def _doctor(
    *, options: Annotated[DoctorOptions, Flat] = DoctorOptions(), output: Annotated[Json, OfOutput] = Json()
) -> int:
    """Check this host."""
    from calib_serve.app.host_checks import examine

    found = examine(options)
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
