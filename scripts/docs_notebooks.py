"""A hook of mkdocs: each notebook of docs/notebooks as a page, as it was last run, without running it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, and its pictures; the notebook itself can be downloaded."""
    for path in sorted(Path(config["docs_dir"], "notebooks").glob("*.ipynb")):
        text, pictures = page(json.loads(path.read_text("utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def page(book: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by the names that it shows them under.

    A cell that draws has a text for those who do not see the picture in its metadata, as ``alt``.
    """
    lines: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(book["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            if number == 0:
                lines += [f"[Download this notebook]({name}.ipynb)", ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            if text := "".join(output.get("text", ())):
                lines += ["```{.text .notebook-output .no-copy}", text.rstrip(), "```", ""]
            if drawn := output.get("data", {}).get("image/png"):
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(drawn)
                picture = f"![{cell['metadata']['alt']}]({file})"
                lines += ['<div class="notebook-picture" markdown="1">', picture, "</div>", ""]
    return "\n".join(lines), pictures
