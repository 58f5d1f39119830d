"""Every option that a page, a message, a docstring, a template or an example names is taken by a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cyclopts import App
from doc_blocks import ROOT, without_blocks

from calib_serve.app import COMMANDS
from calib_serve.app._command import program

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
SPOKEN = re.compile(r"(?:calib-serve |[`(]|(?=schema --))([a-z]+)((?: [^`\n\"]*)?)")
"""A command in a text, and the words behind it, up to the end of what is quoted."""
OF_ALL = {"--help", "--version", "--install-completion"}
OF_OTHERS = {"--force-reinstall", "--no-deps", "--index-url", "--build-arg", "--upgrade", "--metrics-config"}
OF_OTHERS |= {"--python", "--ink", "--no-", "--empty-", "--model-control-mode"}
OF_OTHERS |= {"--labelled", "--large", "--replicas", "--tasks", "--versions"}  # of benchmarks
TEXTS = sorted(
    path
    for folder in ("calib_serve", "docs", "examples", "deploy", "benchmarks", "model_store", "handlers")
    for path in [*(ROOT / folder).rglob("*.*"), ROOT / "README.md"]
    if path.suffix in {".py", ".md", ".ipynb", ".yaml", ".yml", ".sh", ".html"}
)


@cache
def taken() -> dict[str, set[str]]:
    """The options of each command, and of each one below it, as in "export monitoring"."""

    def walked(app: App, name: str) -> Iterator[tuple[str, set[str]]]:
        if app.default_command is not None:
            yield name, {word for one in app.assemble_argument_collection() for word in one.names} | OF_ALL
        for below in app:
            if not below.startswith("-"):
                yield from walked(app[below], f"{name} {below}")

    return {
        name: options
        for names in COMMANDS.values()
        for one in names
        for name, options in walked(program(one)[one], one)
    }


def options_of(command: str, words: str) -> set[str]:
    """What ``command`` takes: of one with commands below it, those of the one that is named, else of any."""
    below = " ".join([command, *words.split()[:1]])
    return taken().get(below) or set().union(
        *(options for name, options in taken().items() if name.split()[0] == command)
    )


def test_every_command_takes_the_options_that_are_named_with_it() -> None:
    wrong = []
    for path in TEXTS:
        # One line for a command that goes on in the next, and for a text that a source has in parts.
        text = re.sub(r"\\\n|\"\s*\n\s*f?\"", " ", path.read_text("utf-8"))
        for command, words in SPOKEN.findall(text):
            if any(name.split()[0] == command for name in taken()):
                named = set(OPTION.findall(re.split(r"&&|\||;|\\n", words)[0]))
                wrong += [(str(path), command, one) for one in named - options_of(command, words)]
    assert not wrong


def test_every_option_that_is_named_alone_is_of_some_command() -> None:
    ours = set().union(*taken().values()) | OF_OTHERS
    wrong = []
    for path in TEXTS:
        if path.suffix == ".md" and "templates" not in path.parts:
            named = re.findall(r"`(--[a-z][a-z-]+)", without_blocks(path))
        elif (
            path.suffix == ".py"
            and path.is_relative_to(ROOT / "calib_serve")
            and "projects" not in path.parts
        ):
            named = OPTION.findall(path.read_text("utf-8"))
        else:
            continue
        wrong += [(str(path), one) for one in named if one not in ours]
    assert not wrong
