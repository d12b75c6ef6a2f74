"""What mkdocs does not do by itself: pages of the top level, and links to the repository's files.

Pages are written to be read in the repository as well, where `../SECURITY.md` and `../configs` are
what they say. On the site the former are pages, and the latter are links into the repository, or
plain text while no repository is set (`repo_url`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
TOP_LEVEL = (
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
LINK = re.compile(
    # Code may look like a link.
    r"`[^`]*`|(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]+)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the top level's pages."""
    for name in TOP_LEVEL:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their target is on the site, or in the repository."""
    # A page of docs/ is `docs/…` in the repository; one of the top level is as it is called.
    own = PurePosixPath(page.file.src_uri)
    folder = PurePosixPath() if own.name in TOP_LEVEL and not own.parts[1:] else "docs" / own.parent

    def lead(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if text is None:
            return match.group(0)
        path = posixpath.normpath(str(folder / target))
        on_site = path.removeprefix("docs/") if path.startswith("docs/") else path
        if files.get_file_from_path(on_site) is not None:
            return f"[{text}]({posixpath.relpath(on_site, str(own.parent))}{anchor})"
        if path == "README.md":
            return f"[{text}]({posixpath.relpath('index.md', str(own.parent))})"
        if not (ROOT / path).exists():
            raise ValueError(f"{own}: {target} is nowhere")
        if config["repo_url"]:
            return f"[{text}]({config['repo_url'].rstrip('/')}/blob/main/{path})"
        return text

    return LINK.sub(lead, markdown)
