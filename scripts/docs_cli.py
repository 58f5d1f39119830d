"""A hook of mkdocs: the page of the command line, made from the commands themselves."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File
from typer.main import get_command

from calib_serve.cli import app

PAGE = "reference/cli.md"
ORDER = (
    (
        "Calibrate",
        ("quickstart", "evaluate", "fit", "compare", "report", "apply", "decide", "prior", "study"),
    ),
    ("Deploy", ("fuse", "pack", "serve", "scale", "gateway", "contract", "promote")),
    ("Watch", ("watch", "label", "collect", "refit", "audit", "export")),
    ("Keep", ("doctor", "inspect", "keys", "tokens", "ledger", "demo")),
)
"""The commands by what they are for, in the order that a user meets them."""


def on_files(files: Any, config: Any) -> Any:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """Every command, its arguments and its options."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    if missing := set(commands) - {name for _, names in ORDER for name in names}:
        raise ValueError(f"scripts/docs_cli.py does not place {sorted(missing)}")
    lines = [
        "# Command line",
        "",
        "Every command has `--help`. Our own errors are one line on stderr, exit code 2.",
    ]
    for title, names in ORDER:
        lines += ["", f"## {title}"]
        for name in names:
            lines += _command(commands[name], f"calib-serve {name}", level=3)
    return "\n".join(lines) + "\n"


def _command(command: Any, name: str, *, level: int) -> list[str]:
    lines = ["", f"{'#' * level} {name}", "", _text(command.help)]
    if hasattr(command, "commands"):
        for inner, one in sorted(command.commands.items()):
            lines += _command(one, f"{name} {inner}", level=level + 1)
        return lines
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    for panel, parameters in sorted(panels.items(), key=lambda item: item[0] != ""):
        lines += ["", f"| {panel or 'option'} | | |", "| --- | --- | --- |"]
        lines += [_row(parameter) for parameter in parameters]
    return lines


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts) if name)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = (
        ""
        if default is None or default is False or default in ((), []) or callable(default)
        else f"`{default}`"
    )
    end = "required" if parameter.required else shown
    return f"| {names} | {_text(getattr(parameter, 'help', ''))} | {end} |"


def _text(text: str | None) -> str:
    """As Markdown shows it in a table's cell."""
    plain = (text or "").replace("\b", "").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    return plain.replace("<", "&lt;").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
