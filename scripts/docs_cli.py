"""A hook of mkdocs: the page of the command line, made from the commands themselves."""

from __future__ import annotations

import re
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
    ("Deploy", ("fuse", "pack", "serve", "gateway", "contract", "promote")),
    ("Watch", ("watch", "label", "collect", "refit", "audit", "export")),
    ("Keep", ("doctor", "inspect", "keys", "tokens", "ledger", "demo")),
)
"""The commands by what they are for, in the order that a user meets them."""

_TAKES = {
    "str": "text",
    "list[str]": "texts",
    "int": "number",
    "int range": "number",
    "float": "number",
    "float range": "number",
    "bool": "",
}


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
        "Every command has `--help`. Results go to stdout, progress and errors to stderr; an error of ours",
        "is one line that says what to do. Exit codes: 0 done; 1 something is wrong, as the command says of",
        "itself; 2 refused.",
        "",
        "| | command | what it does |",
        "| --- | --- | --- |",
    ]
    for title, names in ORDER:
        for n, name in enumerate(names):
            says = _text(commands[name].help).partition("\n")[0].partition(". ")[0].rstrip(".")
            lines.append(f"| {'' if n else f'**{title}**'} | [{name}](#calib-serve-{name}) | {says} |")
    for title, names in ORDER:
        lines += ["", f"## {title}"]
        for name in names:
            lines += _command(commands[name], f"calib-serve {name}", level=3)
    return "\n".join(lines) + "\n"


def _command(command: Any, name: str, *, level: int) -> list[str]:
    lines = ["", f"{'#' * level} {name}", "", _text(command.help)]
    if hasattr(command, "commands"):
        for inner, one in command.commands.items():
            lines += _command(one, f"{name} {inner}", level=level + 1)
        return lines
    context = command.context_class(command, info_name=name)
    usage = re.sub(r"{(.+?)}", lambda found: found[1].upper(), command.get_usage(context))
    lines += ["", f"`{usage.removeprefix('Usage: ')}`"]
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    for panel, parameters in sorted(panels.items(), key=lambda item: item[0] != ""):
        lines += ["", f"| {panel or 'option'} | takes | | default |", "| --- | --- | --- | --- |"]
        lines += [_row(parameter, context) for parameter in parameters]
    return lines


def _row(parameter: Any, context: Any) -> str:
    """Names, what they take, what for, and the default: as ``--help`` says them."""
    written, says = parameter.get_help_record(context) or ("", "")
    says, _, end = says.removesuffix("]").partition("  [") if says.endswith("]") else (says, "", "")
    if parameter.param_type_name == "argument":
        name, _, takes = written.partition(" <")
        names = [name.upper()]
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        takes = written.rpartition(names[-1])[2].strip()
    shown = ", ".join(f"`{name}`" for name in names).replace("|", "\\|")
    return f"| {shown} | {_value(takes)} | {_text(says)} | {_text(end.removeprefix('default: '))} |"


def _value(takes: str) -> str:
    """What stands behind an option, for a reader."""
    plain = takes.strip("<>")
    if "|" in plain:
        return ", ".join(f"`{one}`" for one in plain.split("|"))
    return _TAKES.get(plain, plain)


def _text(text: str | None) -> str:
    """As Markdown shows it in a table's cell."""
    plain = (text or "").replace("\b", "").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    return plain.replace("<", "&lt;").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
