"""Say which functions and classes differ between two revisions, wherever they lie: ``moved.py OLD [NEW]``.

Module paths and imports aside: a function that was moved word for word is the same. Exits with 1
where something differs.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter

PACKAGE = "calib_serve"
MODULE = re.compile(rf"{PACKAGE}(?:[./]\w+)+")


def sources(revision: str) -> dict[str, str]:
    """The package's Python files at a revision, as text by path."""
    names = _git("ls-tree", "-r", "--name-only", revision, f"{PACKAGE}/").splitlines()
    return {name: _git("show", f"{revision}:{name}") for name in names if name.endswith(".py")}


def definitions(texts: dict[str, str]) -> Counter[tuple[str, str]]:
    """How often each top-level function and class stands in the package: its name and its dump."""
    return Counter(
        (node.name, _dump(node))
        for text in texts.values()
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )


def _dump(node: ast.AST) -> str:
    """``ast.dump`` without imports, and with every path of a module replaced by one word."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            # A longer path may have wrapped a docstring's line anew.
            inner.value = " ".join(MODULE.sub("MODULE", inner.value).split())
        for field, value in ast.iter_fields(inner):
            if isinstance(value, list):
                kept = [one for one in value if not isinstance(one, (ast.Import, ast.ImportFrom))]
                setattr(inner, field, kept)
    return ast.dump(node)


def _git(*args: str) -> str:
    return subprocess.check_output(["git", *args], text=True)


def main() -> int:
    """Print a line for each name whose definitions differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="a revision")
    parser.add_argument("new", nargs="?", default="HEAD", help="a later one")
    asked = parser.parse_args()
    old, new = definitions(sources(asked.old)), definitions(sources(asked.new))
    gone, come = (
        Counter(name for name, _ in (old - new).elements()),
        Counter(name for name, _ in (new - old).elements()),
    )
    for name in sorted({*gone, *come}):
        what = "changed" if gone[name] and come[name] else "gone" if gone[name] else "new"
        print(f"{what:8} {name}")
    same = sum((old & new).values())
    print(f"{sum(new.values())} definitions, {same} the same, {len({*gone, *come})} names differ")
    return bool(gone or come)


if __name__ == "__main__":
    raise SystemExit(main())
