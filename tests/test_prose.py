"""Every sentence of the pages is short; tables, code and lists of names are left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
MOST_WORDS = 30


def sentences(text: str) -> list[str]:
    """What ends in a full stop, a question mark or a colon; a paragraph or a list item ends one too."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|    |!\[).*$", "\n", text, flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    return [sentence for part in parts for sentence in re.split(r"(?<=[.?:;])[*`)\"]*\s+", part.strip()) if sentence]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    long = [found for found in sentences(page.read_text()) if len(found.split()) > MOST_WORDS]
    assert not long, "\n\n".join(f"{len(found.split())} words: {found}" for found in long)
