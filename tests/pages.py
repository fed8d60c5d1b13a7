"""HTML pages under test: their elements, their colours, and what a browser makes of them."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from socialx.dataset.windows import SPLITS
from socialx.scoring.metrics import BY

VOID = {"meta", "br", "hr", "img", "link", "input"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCREENS = ((390, 844), (1280, 800))  # a phone and a desktop
SCHEMES = ("light", "dark")
ACCESSIBLE = tuple(zip(SCREENS, SCHEMES, strict=True))  # where axe is asked
SERIOUS = ("serious", "critical")
FINDINGS = ("outside", "cut", "small", "tight", "faint", "axe")
AXE = Path(str(getattr(find_spec("axe_playwright_python"), "origin", ""))).parent
# What can be measured on a page: boxes, texts with their sizes and colours, what is pressed, and what is cut.
PROBE = """() => {
const all = name => [...document.querySelectorAll(name)].filter(e => e.checkVisibility({visibilityProperty: true}));
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.left, r.right]; };
const name = e => `${e.tagName} ${e.id || e.className.baseVal || e.className} ${e.textContent.slice(0, 30)}`;
const style = e => getComputedStyle(e);
document.querySelectorAll("details").forEach(e => e.open = true);
const texts = all("body *").filter(e => !e.closest("title,desc,script,noscript")
  && [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
const size = e => parseFloat(style(e).fontSize) * (e.closest("svg") ? e.getScreenCTM().a : 1);
const ground = e => /, 0\\)/.test(style(e).backgroundColor) ? ground(e.parentElement) : style(e).backgroundColor;
const colours = e => JSON.stringify([e.closest("svg") ? style(e).fill : style(e).color, ground(e)]);
return {faint: [], axe: [], scroll: document.documentElement.scrollWidth, text: document.body.innerText,
  svgs: all("svg").map(box), labels: all(".plot text").filter(e => !e.closest(".wide")).map(box),
  outside: all("body :not(svg *)").filter(e => box(e)[2] < 0 || box(e)[3] > innerWidth + 0.5).map(name),
  cut: all("body :not(svg, svg *)").filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(name),
  small: texts.filter(e => size(e) < 11.9).map(name),
  tight: all("a,button,input,select,summary").filter(e => Math.min(...box(e).slice(0, 2)) < 39.9).map(name),
  colours: [...new Set(texts.map(colours))]}; }
"""


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


@cache
def started() -> tuple[Any, asyncio.AbstractEventLoop]:
    """The browser of this process, which ends with it, and the event loop that it runs in."""
    from playwright.sync_api import sync_playwright

    return sync_playwright().start().chromium.launch(executable_path=CHROMIUM), asyncio.get_running_loop()


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser; the test is skipped where there is none."""
    pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    browser, loop = started()
    asyncio._set_running_loop(loop)
    try:
        yield browser
    finally:
        asyncio._set_running_loop(None)  # it waits in a coroutine of its own; a test may run other loops


@contextmanager
def opened(browser: Any, address: str, screen: tuple[int, int] = SCREENS[1], scheme: str = "light") -> Iterator[Any]:
    """A page at an address; an error in a script and a breach of its policy fail."""
    width, height = screen
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=True)
    shown, said = context.new_page(), []
    shown.on("console", lambda line: said.append(line.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(address)
    yield shown
    context.close()
    assert not said


def uncut(boxes: list[list[float]], width: int) -> bool:
    """Whether no visible box (width, height, left, right) reaches out of a window."""
    return all(wide == 0 or (left >= 0 and right <= width) for wide, _, left, right in boxes)


def measured(shown: Any, width: int, accessible: bool) -> Any:
    """What PROBE measured on a page on which all can be seen, read and pressed; accessible: axe is asked too."""
    seen = shown.evaluate(PROBE)
    for pair in map(json.loads, seen["colours"]):
        ink, ground = ("".join(f"{int(part):02x}" for part in re.findall(r"[\d.]+", colour)[:3]) for colour in pair)
        if contrast(ink, ground) < 4.5:
            seen["faint"].append(pair)
    if accessible:
        shown.evaluate(Path(AXE, "axe.min.js").read_text("utf-8"))
        found = shown.evaluate("axe.run(document)")["violations"]
        seen["axe"] = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS]
    assert {name: seen[name] for name in FINDINGS if seen[name]} == {}
    assert seen["scroll"] <= width
    assert all(wide > 0 and high > 0 for wide, high, _, _ in seen["svgs"])
    assert uncut(seen["labels"], width)
    return seen


def drawn(pages: Mapping[str, str], folder: Path) -> Iterator[tuple[str, int, Any]]:
    """Each page on two screens in two schemes, with its own policy, and what PROBE measured there."""
    with chromium() as browser:
        for (name, text), screen, scheme in product(pages.items(), SCREENS, SCHEMES):
            path = Path(folder, f"{name}.html")
            path.write_text(text, "utf-8")
            with opened(browser, path.as_uri(), screen, scheme) as shown:
                yield name, screen[0], measured(shown, screen[0], (screen, scheme) in ACCESSIBLE)
