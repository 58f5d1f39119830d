"""A hook of mkdocs: every page in docs/benchmarks is in the navigation, without being listed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Fill the section Benchmarks from the folder."""
    folder = Path(config["docs_dir"])
    pages = sorted(path.relative_to(folder).as_posix() for path in (folder / "benchmarks").glob("*.md"))
    for section in _sections(config["nav"]):
        if "Benchmarks" in section:
            section["Benchmarks"] = ["benchmarks.md", *pages]
    return config


def _sections(nav: list[Any]) -> Iterator[dict[str, Any]]:
    for section in nav:
        if isinstance(section, dict):
            yield section
            for inside in section.values():
                yield from _sections(inside if isinstance(inside, list) else [])
