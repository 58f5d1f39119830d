"""``python examples/demo``: the whole way on scikit-learn's digits, to a dashboard query."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from calib_serve.core.errors import CalibServeError, MissingDependency
from calib_serve.core.process import interruptible


def main(words: Sequence[str] | None = None) -> int:
    """Show the whole way on real data: fit, fuse, serve, label, watch, report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python examples/demo", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where everything is written")
    parser.add_argument(
        "--model-store", type=Path, default=Path("model_store"), help="where the archives are written"
    )
    parser.add_argument("--keep", action="store_true", help="leave the server up, and say how to try it")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything that is drawn")
    asked = parser.parse_args(words)
    try:
        _tell(asked)
    except CalibServeError as error:
        sys.stderr.write(f"calib-serve demo: {error}\n")
        return 3
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("calib_serve"):
            raise
        sys.stderr.write(f"calib-serve demo: {MissingDependency(str(error.name))}\n")
        return 3
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped, and with it all that was started\n")
        return 130
    return 0


def _tell(asked: argparse.Namespace) -> None:
    from rich.console import Console
    from story import Story, tell

    width = max(Console().width, 116)  # columns that the demo's table needs; a pipe claims 80
    with interruptible():
        story = Story(Console(highlight=False, width=width), asked.out)
        tell(story, asked.model_store, keep=asked.keep, seed=asked.seed)


if __name__ == "__main__":
    sys.exit(main())
