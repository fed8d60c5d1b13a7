"""The page with the map: one document whose script asks the server that it came from, and nobody else."""

from __future__ import annotations

from pathlib import Path

from socialx.views.page import digest, files, render

FOLDER = Path(__file__).parent
STYLES = files("page.css", "map_page.css", folder=FOLDER)
SCRIPT = files("map_page.js", folder=FOLDER)
# Its own style and script by their hashes, and nothing else.
POLICY = (
    f"default-src 'none'; style-src '{digest(STYLES)}'; script-src '{digest(SCRIPT)}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(token: bool, latest: bool, follow: bool) -> str:
    """Return the document: whether it asks for a token, has a forecast to show, and looks for newer ones."""
    marks = {"token": token, "latest": latest, "follow": follow}
    view = {"title": "socialx: traffic forecast", **{name: "yes" if mark else "no" for name, mark in marks.items()}}
    return render("map_page.html.j2", view, STYLES, SCRIPT, FOLDER)
