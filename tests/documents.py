"""What the pages of the documentation hold: code blocks by language, and the commands of console blocks."""

import re
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    """The content of each code block of a language, in the order of the page."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Each command that follows a prompt, with continued lines joined, and the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks(page, "console")).replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found
