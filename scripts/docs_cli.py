"""A hook of mkdocs: the page of the command line, made from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File

from calib_serve.app import COMMANDS
from calib_serve.app._command import program

PAGE = "reference/cli.md"
INTRODUCTION = """# Command line

Every command has `--help`, which begins with an example. Results go to stdout, progress and errors to
stderr; an error of ours is one line that says what to do. An option with `...` is repeated, or takes commas.

| exit code | |
| --- | --- |
| 0 | done |
| 1 | a verdict or a check says no |
| 2 | wrong use: an option, a file or data that cannot be right |
| 3 | something else failed |

`calib-serve --install-completion` installs completion for bash, zsh and fish.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """Every command, its arguments and its options."""
    lines = [INTRODUCTION, "| | command | what it does |", "| --- | --- | --- |"]
    for title, names in COMMANDS.items():
        for n, (name, summary) in enumerate(names.items()):
            lines.append(f"| {'' if n else f'**{title}**'} | [{name}](#calib-serve-{name}) | {summary} |")
    for title, names in COMMANDS.items():
        lines += ["", f"## {title}", ""]
        lines += [_command(name) for name in names]
    return "\n".join(lines) + "\n"


def _command(name: str) -> str:
    app = program(name)[name]
    text = app.generate_docs(heading_level=3, usage_name=f"calib-serve {name}")
    text = re.sub(r"(?ms)^## Table of Contents\n.*?^\*\*Commands\*\*:\n.*?(?=^#)", "", text)
    text = re.sub(rf"(?m)^(#+) {name}\b", rf"\1 calib-serve {name}", text)
    example = f"```console\n{_dedented(app.help_prologue)}\n```\n" if app.help_prologue else ""
    head, _, rest = text.partition("\n")
    return f"{head}\n\n{example}{rest}"


def _dedented(text: Any) -> str:
    return "\n".join(f"$ {line.strip()}" for line in str(text).splitlines())
