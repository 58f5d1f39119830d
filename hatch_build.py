"""What a package index shows: the addresses of this project, and a README whose links lead somewhere.

Both come from one line of pyproject.toml, ``repository`` under ``[tool.hatch.metadata.hooks.custom]``. In the
repository the README's links are relative; on a package index there is nothing that they are relative to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or picture in Markdown, also one around the other, or in HTML.
_TARGET = re.compile(r"""(\]\(|\b(?:href|src|srcset)=")(?!https?:|mailto:|#)([^)"\s]+)""")
_PICTURES = (".gif", ".jpg", ".png", ".svg", ".webp")


def absolute(markdown: str, repository: str, tag: str) -> str:
    """The text with its relative links led to that tag of the repository."""

    def led(found: re.Match[str]) -> str:
        kind = "raw" if found[2].endswith(_PICTURES) else "blob"  # a page is for looking at
        return f"{found[1]}{repository}/{kind}/{tag}/{found[2].removeprefix('./')}"

    return _TARGET.sub(led, markdown)


class CustomMetadataHook(MetadataHookInterface):
    """Fills ``readme`` and ``urls``, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Of ``metadata``, the project's table, whose version is known by now."""
        repository, tag = self.config["repository"].rstrip("/"), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, tag)}
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/index.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
            "Security": f"{repository}/security/policy",
        }
