"""What mkdocs asks when ``make docs`` builds the site: the navigation, and pages as Python-Markdown reads them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
CONTRIBUTING = "CONTRIBUTING.md"  # a file of the repository's root, which the site shows as a page


def on_config(config: Any) -> Any:
    """Give the navigation the order of README.md: a section for each heading, a page for each link to one."""
    config["nav"] = [{"Home": "README.md"}]
    for section in _contributing(Path("README.md"), (DOCS / "README.md").read_text("utf-8")).split("\n## ")[1:]:
        pages = re.findall(r"\[([^\]]+)\]\(((?!\.\.)[^)]+\.md)\)", section)
        config["nav"].append({section.partition("\n")[0]: [{title: path} for title, path in pages]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page that tells how to contribute, whose links begin at the folder above."""
    from mkdocs.structure.files import File

    text = (DOCS.parent / CONTRIBUTING).read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, CONTRIBUTING, content=text))
    return files


def _contributing(page: Path, markdown: str) -> str:
    """Return the text of a page, by its path in this folder, with links to CONTRIBUTING.md on the site."""
    there = os.path.relpath(CONTRIBUTING, page.parent)
    return re.sub(rf"\]\((?:\.\./)+{CONTRIBUTING}", f"]({there}", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Return a page on which the dialog of the search has a name, which screen readers ask for."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with paths for links to files outside this folder, and bare bars in code.

    GitHub wants a backslash before a bar in the code of a table, which Python-Markdown would print.
    """
    folder = (DOCS / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        path = f"`{target.relative_to(DOCS.parent)}`"
        return path if link[1].strip("`") == target.name else f"{link[1]} ({path})"

    markdown = _contributing(Path(page.file.src_uri), markdown)
    markdown = re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), markdown)
    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)", named, markdown)
