"""HTML pages under test: their elements, their colours, and what a browser makes of them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from socialx.data.windows import SPLITS
from socialx.scoring.metrics import BY

VOID = {"meta", "br", "hr", "img", "link", "input"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --hide-scrollbars --virtual-time-budget=5000 "
    "--window-size=1200,2400 --dump-dom"
)
WIDTHS = (360, 1200)
# Every frame sends what it measured to the page around it: a window of Chromium cannot be as narrow as a telephone.
PROBE = """addEventListener("load", () => {
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.left, r.right]; };
const all = name => [...document.querySelectorAll(name)];
all("details").forEach(each => each.open = true);
parent.postMessage({inner: innerWidth, scroll: document.documentElement.scrollWidth,
  svgs: all("svg").filter(e => !e.closest("[hidden]")).map(box), text: document.body.innerText,
  labels: all(".plot text").filter(e => !e.closest(".wide")).map(box),
  parts: all("h1,h2,h3,p,td,th,dd,code,.gain,.key").map(box),
  sizes: all("main :not(svg *)").map(e => parseFloat(getComputedStyle(e).fontSize)),
  drawn: all("svg.plot text").map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)}, "*"); });
"""
AROUND = """<!doctype html><meta charset="utf-8"><script>
addEventListener("message", event => {
  const frame = [...document.querySelectorAll("iframe")].find(each => each.contentWindow === event.source);
  const made = document.createElement("pre");
  made.textContent = JSON.stringify([frame.id, event.data]);
  document.body.append(made);
});</script><body>"""


class Outline(HTMLParser):
    """The elements of a page with their attributes and parents; tags that do not match fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> stands twice"
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


def everywhere(value: Any, change: Callable[[str], str]) -> Any:
    """Data whose texts, keys included, were all changed, but for the empty one and names that the package gives."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: everywhere(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, dict):
        return {everywhere(key, change): everywhere(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        parts = [everywhere(each, change) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value) if isinstance(value, str) and value not in ("", *SPLITS, *BY) else value


def luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def colours_of(css: str, scheme: int) -> dict[str, str]:
    """The colours of a style sheet by name, of the light scheme (0) or of the dark one (1)."""
    return dict(re.findall(r"--(\w+):\s*#(\w+)", css.split("@media screen and (prefers-color-scheme: dark)")[scheme]))


def contrast(one: str, other: str) -> float:
    """WCAG 2: the contrast of two colours, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def well_formed(text: str) -> Outline:
    """The outline of a whole page, in which no id stands twice."""
    outline = Outline(text)
    assert text.startswith("<!doctype html>")
    assert outline.named("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in outline.named("meta")
    assert any(meta.get("name") == "viewport" for meta in outline.named("meta"))
    assert [len(outline.named(tag)) for tag in ("h1", "main")] == [1, 1]
    ids = [attributes["id"] for _, attributes, _ in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for place, (tag, attributes, _) in enumerate(outline.elements):
        if tag == "svg" and attributes.get("role") == "img":
            assert [each for each, _, _ in outline.elements[place + 1 : place + 3]] == ["title", "desc"]
        elif tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
    return outline


def refuse_network(text: str) -> None:
    """A page names no other file, and its policy forbids to load one."""
    assert not re.search(
        r"https?:(?!//www\.w3\.org/2000/svg)|[^:]//[a-z]|@import|url\((?!#)|\bsrc=|\bhref=(?!\"#)", text
    )
    assert "default-src 'none'" in text


def with_script(text: str, script: str) -> str:
    """The page with one more script, and with a policy that lets all of them run."""
    allowed = re.sub(
        r"default-src 'none'; [^\"]*", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'", text
    )
    return allowed.replace("</body>", f"<script>{script}</script></body>")


def opened(url: str, folder: Path, *more: str) -> str:
    """The document at an address after its scripts; a line in the console fails."""
    command = [str(CHROMIUM), *QUIET.split(), *more, f"--user-data-dir={folder / 'user'}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def written(document: str) -> list[Any]:
    """What its scripts wrote into <pre> elements as JSON."""
    return [json.loads(html.unescape(found)) for found in re.findall("<pre>(.*?)</pre>", document, re.DOTALL)]


def around(*addresses: str) -> str:
    """A page with each address in frames of two widths, which writes what their scripts send."""
    frames = [
        f'<iframe id="{address} {width}" src="{address}" width="{width}" height="900"></iframe>'
        for address in addresses
        for width in WIDTHS
    ]
    return AROUND + "".join(frames)


def sent(document: str, *addresses: str) -> dict[tuple[str, int], Any]:
    """What the frames of ``around`` sent, by address and width; all of them did."""
    found = {(name.split()[0], int(name.split()[1])): seen for name, seen in written(document)}
    assert set(found) == {(address, width) for address in addresses for width in WIDTHS}
    return found


def uncut(boxes: list[list[float]], width: int) -> bool:
    """Whether no visible box (width, height, left, right) reaches out of a window."""
    return all(wide == 0 or (left >= 0 and right <= width) for wide, _, left, right in boxes)


def drawn(pages: Mapping[str, str], folder: Path, script: str = PROBE) -> Iterator[tuple[str, int, Any]]:
    """Each page in frames of two widths and what PROBE measured there; each once more as it is, with its own policy."""
    probes = {f"{name}-probe.html": name for name in pages}
    for probe, name in probes.items():
        Path(folder, f"{name}.html").write_text(pages[name], "utf-8")
        Path(folder, probe).write_text(with_script(pages[name], script), "utf-8")
    outside = Path(folder, "around.html")
    outside.write_text(around(*probes) + "".join(f'<iframe src="{name}.html"></iframe>' for name in pages))
    for (probe, width), seen in sent(opened(outside.as_uri(), folder), *probes).items():
        assert seen["scroll"] <= seen["inner"] == width, (probe, width)
        assert all(wide > 0 and high > 0 for wide, high, _, _ in seen["svgs"]), (probe, width)
        assert uncut(seen["labels"], width), (probe, width)
        assert min(seen["sizes"]) >= 12, (probe, width)
        assert min(seen["drawn"], default=11) >= 11, (probe, width)
        yield probes[probe], width, seen
