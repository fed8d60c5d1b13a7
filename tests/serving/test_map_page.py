"""The page with the map, in a browser: it draws what the server answers, at any width, and the slider moves it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from socialx.serving import guard
from socialx.serving.endpoints import POLICY, SCRIPT, STYLES, Service, make_app, page
from tests.pages import AROUND, CHROMIUM, Outline, around, luminance, opened, sent, uncut, written
from tests.serving.conftest import subscribe

browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
# What a frame shows, before and after the slider was moved to the end as a key moves it.
PROBE = """<script>addEventListener("load", () => {
const all = name => [...document.querySelectorAll(name)];
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.left, r.right]; };
const seen = () => ({text: document.body.innerText, looks: all("#dots circle").map(e => e.getAttribute("class")),
  fills: all("#dots circle").map(e => getComputedStyle(e).fill), says: all("#dots title").map(e => e.textContent),
  boxes: all("h1,h2,p,label,td,th,li,#map,#ahead").filter(e => e.offsetParent !== null || e.id).map(box),
  slider: all("#ahead")[0].getAttribute("aria-valuetext"), about: all("#about")[0].textContent,
  hidden: [all("#shown")[0].hidden, all("#ask")[0].hidden, all("#map")[0].hasAttribute("hidden")],
  inner: innerWidth, scroll: document.documentElement.scrollWidth});
const wait = setInterval(() => {
  if (document.getElementById("said").textContent.includes("being loaded")) return;
  clearInterval(wait);
  const first = seen(), slider = document.getElementById("ahead");
  slider.focus();
  slider.value = slider.max;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  parent.postMessage({first, then: seen(), focus: document.activeElement.id}, "*");
}, 50); });
</script>"""


def probed(service: Service) -> FastAPI:
    """The server with the page once more, in frames and with a script that looks at it."""
    app = make_app(service)

    @app.get("/probe")
    async def probe() -> HTMLResponse:
        text = page(service.token is not None, service.latest is not None, service.follow)
        return HTMLResponse(text.replace("</body>", f"{PROBE}</body>"), headers={"content-security-policy": ""})

    @app.get("/around")
    async def outside() -> HTMLResponse:
        return HTMLResponse(around("probe"), headers={"content-security-policy": ""})

    return app


def frames(service: Service, folder: Path) -> dict[int, Any]:
    """What the page shows at two widths."""
    with subscribe(probed(service)) as url:
        text = opened(f"{url}/around", folder)
    return {width: seen for (_, width), seen in sent(text, "probe").items()}


# --- the document ---------------------------------------------------------------------------------------------------


def test_the_document_is_well_formed_and_needs_nothing_else() -> None:
    text = page(True, True, True)
    assert text.count(f"<script>{SCRIPT}</script>") == text.count(f"<style>{STYLES}</style>") == 1
    outline = Outline(text.replace(SCRIPT, ""))
    assert outline.named("html") == [{"lang": "en"}]
    (slider,) = [each for each in outline.named("input") if each.get("type") == "range"]
    assert {each["for"] for each in outline.named("label") if "for" in each} == {slider["id"]}
    (picture,) = outline.named("svg")
    assert picture["role"] == "img"
    assert str(picture["aria-labelledby"]).split() == ["name", "about"]
    assert {"name", "about"} <= {attributes.get("id") for _, attributes, _ in outline.elements}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|\bsrc=|innerHTML|\bstyle=", text)


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_no_other() -> None:
    assert "unsafe" not in POLICY
    assert POLICY.count("sha256-") == 2
    assert POLICY.startswith("default-src 'none';")
    assert not re.search(r'\son\w+="', page(True, True, True))


def test_neighbouring_colours_can_be_told_apart() -> None:
    """The classes differ in their names on hover and in size too; the border of a dot has a contrast of 3."""
    colours = re.findall(r"--S\d: #(\w+)", STYLES)
    assert len(set(colours)) == 6
    for one, other in pairwise(colours):
        assert abs(luminance(one) - luminance(other)) > 0.05


# --- in a browser ---------------------------------------------------------------------------------------------------


@browser
def test_the_slider_moves_colours_and_labels(followed: Service, tmp_path: Path) -> None:
    """Four sensors from 10 to 70 mph that end the other way round; a class is a share of the free-flow speed, the
    smallest of which is drawn last."""
    followed.free_flow = np.array([20.0, 40.0, 90.0, 70.0])
    answer = json.loads(followed.latest.answer)
    speeds = np.array([10.0, 30.0, 50.0, 70.0])
    ahead = np.linspace(speeds, speeds[::-1], 13)[1:].round(1)
    answer["now"]["avg_speed"] = [[None, *speeds[1:]]]
    answer["forecast"]["avg_speed"] = [ahead.tolist()]
    followed.latest.answer = json.dumps(answer).encode()
    ids, shown = answer["sensors"], [
        "no reading", "30.0 mph, 75 % of free flow", "50.0 mph, 56 % of free flow", "70.0 mph, 100 % of free flow"
    ]  # fmt: skip
    for width, seen in frames(followed, tmp_path).items():
        first, then = seen["first"], seen["then"]
        assert first["says"] == [f"{ids[place]}: {shown[place]}" for place in (0, 3, 1, 2)]
        assert first["looks"] == ["sn", "s5", "s3", "s1"]
        said = {0: "70.0 mph, 350 %", 1: "50.0 mph, 125 %", 2: "30.0 mph, 33 %", 3: "10.0 mph, 14 %"}
        assert then["says"] == [f"{ids[place]}: {said[place]} of free flow" for place in (0, 1, 2, 3)]
        assert then["looks"] == ["s5", "s5", "s0", "s0"]
        assert then["fills"][1:3] == ["rgb(69, 117, 180)", "rgb(215, 48, 39)"]
        assert first["slider"] == "now, 2012-05-04 09:15"
        assert then["slider"] == "in 60 minutes, 2012-05-04 10:15"
        assert then["slider"] in then["text"]
        assert "mean 50.0, lowest 30.0 mph" in first["text"]
        assert "mean 40.0, lowest 10.0 mph" in then["text"]
        assert "mean 40.0, lowest 10.0 mph" in then["about"]
        assert "60 to 70 %" in first["text"]
        assert "90 % and more" in first["text"]
        for value in ahead[[2, 5, 11]].ravel():  # 15, 30 and 60 minutes in the table
            assert f"{value:.1f}" in first["text"]
        assert seen["focus"] == "ahead"
        assert first["hidden"] == [False, True, False]
        assert then["scroll"] <= then["inner"] == width
        assert uncut(then["boxes"], width)


# What a window shows: where its parts end, and which ids stand beside dots, before and after the map was enlarged.
LOOK = """<script>addEventListener("load", () => { const wait = setInterval(() => {
  if (document.getElementById("shown").hidden) return;
  clearInterval(wait);
  const byName = name => [...document.querySelectorAll(name)];
  const ends = name => byName(name).map(e => { const r = e.getBoundingClientRect(); return [r.right, r.bottom]; });
  const seen = () => ({looks: byName("#dots circle").map(e => e.getAttribute("class")),
    names: byName("#ids text").filter(e => !e.hasAttribute("hidden")).map(e => e.textContent),
    box: byId("map").getAttribute("viewBox").split(" ").map(Number),
    size: byName("#dots circle")[0].getAttribute("r")});
  const first = {...seen(), ends: ends("#map, #legend"), dots: ends("#dots circle"), scroll: ends(".scroll").concat()};
  const centre = byId("map").getBoundingClientRect(), [x, y] = [centre.left + centre.width / 2, centre.top + 50];
  const at = (name, x) => byId("map").dispatchEvent(new PointerEvent(name, {clientX: x, clientY: y, pointerId: 1}));
  byId("map").setPointerCapture = () => {};
  byId("map").dispatchEvent(new WheelEvent("wheel", {deltaY: -1, clientX: x, clientY: y, cancelable: true}));
  const wheel = seen();
  at("pointerdown", x); at("pointermove", x - 30); at("pointerup", x - 30);
  const drag = seen();
  for (let k = 0; k < 20; k++) byId("larger").click();
  const large = seen();
  for (let k = 0; k < 30; k++) byId("smaller").click();
  parent.postMessage({first, wheel, drag, large, small: seen()}, "*");
}, 50); });</script>"""
SCREENS = ((1280, 720), (360, 740))


@browser
def test_map_and_legend_are_on_one_screen_and_the_map_is_enlarged(followed: Service, tmp_path: Path) -> None:
    """On a laptop the table stands beside them.  A night in which all drive freely has one colour, and none is red."""
    answer = json.loads(followed.latest.answer)
    free = followed.free_flow
    np.testing.assert_allclose(free, np.quantile(followed.latest.experiment.data.store.values, 0.95, axis=0), rtol=0.02)
    answer["now"]["avg_speed"] = [(0.97 * free).round(1).tolist()]
    followed.latest.answer = json.dumps(answer).encode()
    app = make_app(followed)
    frames_of = [f'<iframe id="{w}" src="look" width="{w}" height="{h}"></iframe>' for w, h in SCREENS]

    @app.get("/look")
    async def look() -> HTMLResponse:
        text = page(False, True, False).replace("</body>", f"{LOOK}</body>")
        return HTMLResponse(text, headers={"content-security-policy": ""})

    @app.get("/screens")
    async def screens() -> HTMLResponse:
        return HTMLResponse(AROUND + "".join(frames_of), headers={"content-security-policy": ""})

    with subscribe(app) as url:
        found = {
            int(name): seen for name, seen in written(opened(f"{url}/screens", tmp_path, "--window-size=1400,1700"))
        }
    for wide, high in SCREENS:
        seen = found[wide]
        assert all(
            right <= wide and bottom <= high for right, bottom in [*seen["first"]["ends"], *seen["first"]["dots"]]
        )
        assert seen["first"]["looks"] == ["s5"] * 4
        assert sorted(seen["first"]["names"]) == sorted(answer["sensors"])
        assert seen["wheel"]["box"][2] < seen["first"]["box"][2]
        assert float(seen["wheel"]["size"]) < float(seen["first"]["size"])
        assert seen["drag"]["box"][0] > seen["wheel"]["box"][0]
        assert seen["large"]["box"][2] == pytest.approx(0.02 * seen["first"]["box"][2])
        assert len(seen["large"]["names"]) < 4
        assert seen["small"] == {key: seen["first"][key] for key in seen["small"]}
    ((table_right, table_bottom),) = found[1280]["first"]["scroll"]
    assert table_right <= 1280
    assert table_bottom <= 720


@browser
def test_the_page_itself_runs_under_its_policy(followed: Service, tmp_path: Path) -> None:
    with subscribe(make_app(followed)) as url:
        text = opened(f"{url}/", tmp_path)
    assert "metr_la: avg speed in mph" in text
    assert len(re.findall("<circle", text)) == 4 + 7  # sensors, and the keys of the colours
    assert len(re.findall("<tr>", text)) == 1 + 4


@browser
@pytest.mark.slow
def test_a_page_without_data_or_positions_says_so(
    service: Service, followed: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subscribe(make_app(service)) as url:
        assert "no history to forecast from" in opened(f"{url}/", tmp_path)
    sensors = followed.experiment.data.sensors
    monkeypatch.setitem(vars(sensors), "latitude", np.full(len(sensors.ids), np.nan))
    for seen in frames(followed, tmp_path).values():
        assert seen["first"]["hidden"] == [False, True, True]
        assert "No sensor has a position" in seen["first"]["text"]
        assert seen["first"]["looks"] == []


@browser
@pytest.mark.slow
def test_a_page_of_a_server_with_a_token_asks_for_it(
    followed: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds no data before that, and the token that is typed is sent."""
    monkeypatch.setattr(guard, "OPEN", (*guard.OPEN, "/typed"))
    followed.token = "0123456789abcdef" * 2
    app = make_app(followed)
    typed = f"""<script>document.getElementById("token").value = "{followed.token}";
      document.getElementById("ask").requestSubmit();</script>"""

    @app.get("/typed")
    async def typed_in() -> HTMLResponse:
        text = page(True, True, False).replace("</body>", f"{typed}</body>")
        return HTMLResponse(text, headers={"content-security-policy": ""})

    with subscribe(app) as url:
        text = opened(f"{url}/", tmp_path)
        assert "asks for its token" in text
        assert "metr_la" not in text
        assert "metr_la: avg speed in mph" in opened(f"{url}/typed", tmp_path)
