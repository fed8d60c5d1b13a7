"""The page with the map, in a browser: what a click, the slider, two fingers and a search show, on any screen."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from socialx.core.errors import SettingsError
from socialx.serving.endpoints import POLICY, SCRIPT, STYLES, Service, make_app, page
from socialx.serving.guard import read_tiles
from tests.commands import refuses
from tests.pages import ACCESSIBLE, SCHEMES, SCREENS, Outline, chromium, luminance, measured, opened
from tests.serving.conftest import running_server

LOOKS = "dots.toSorted((a, b) => a.column - b.column).map(dot => dot.circle.parentElement.getAttribute('class'))"
BOTTOM = "Math.max(...[...document.querySelectorAll('section')].map(e => e.getBoundingClientRect().bottom))"
LABELS = """[...document.querySelectorAll("#ids text")].map(e => e.getBBox()).map(
  box => [box.x, box.y, box.x + box.width, box.y + box.height])"""
POINTS = """Object.fromEntries([...document.querySelectorAll("#curve path[class]")].map(
  e => [e.getAttribute("class"), e.getAttribute("d").split(/[ML]/).length - 1]))"""
FINGERS = """([from, to]) => { byId("map").setPointerCapture = () => {};
  const box = byId("map").getBoundingClientRect(), send = (name, pointerId, x) => byId("map").dispatchEvent(
    new PointerEvent(name, {pointerId, clientX: box.left + x, clientY: box.top + 60}));
  send("pointerdown", 1, 100); send("pointerdown", 2, from); send("pointermove", 2, to);
  send("pointerup", 1, 100); send("pointerup", 2, to); }"""
# How many parts of the page each step of the slider changes, and each click: what a browser then draws anew.
CHANGES = """async () => {
  const steps = [], clicks = [];
  const counted = async work => {
    let count = 0;
    const seen = new MutationObserver(list => { count += list.length; });
    seen.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    await work();
    count += seen.takeRecords().length;
    seen.disconnect();
    return count; };
  for (let k = 1; k <= 12; k++) steps.push(await counted(() => { byId("ahead").value = k; draw(); }));
  for (const row of [...byId("rows").children].slice(0, 9))
    clicks.push(await counted(() => choose(+row.dataset.sensor)));
  return [steps, clicks]; }"""
TILE = '<svg xmlns="http://www.w3.org/2000/svg" width="256" height="256"/>'
USUAL = "climatology (mean at that time of the week)"
TILES = "https://tiles.example/{z}/{x}/{y}.png"


@contextmanager
def live(service: Service, *screen: Any) -> Iterator[Any]:
    """The page of a server after its first curve, or after what it says instead."""
    with running_server(make_app(service)) as url, chromium() as browser, opened(browser, f"{url}/", *screen) as shown:
        until(shown, "curve || !byId('said').textContent.includes('being loaded')")
        if service.served.latest is not None and service.token is None:
            until(shown, "curve && byId('age').textContent")
        yield shown


def until(shown: Any, condition: str) -> None:
    """Wait for a condition in a page whose policy forbids a script to wait for it."""
    while not shown.evaluate(f"Boolean({condition})"):
        shown.wait_for_timeout(20)


def slide(shown: Any, step: int) -> None:
    shown.evaluate(f"byId('ahead').value = {step}; byId('ahead').dispatchEvent(new Event('input'))")


def texts(shown: Any, name: str) -> list[str]:
    found: list[str] = shown.evaluate(f"[...document.querySelectorAll('{name}')].map(e => e.textContent)")
    return found


# --- the document ---------------------------------------------------------------------------------------------------


def test_the_document_is_well_formed_and_needs_nothing_else() -> None:
    text = page(True, True, True)
    assert text.count(f"<script>{SCRIPT}</script>") == text.count(f"<style>{STYLES}</style>") == 1
    outline = Outline(text.replace(SCRIPT, ""))
    assert outline.named("html") == [{"lang": "en"}]
    (slider,) = [each for each in outline.named("input") if each.get("type") == "range"]
    assert {each["for"] for each in outline.named("label") if "for" in each} == {slider["id"], "find"}
    ids = {attributes.get("id") for _, attributes, _ in outline.elements}
    for picture in outline.named("svg"):
        assert picture["role"] == "img"
        assert set(str(picture["aria-labelledby"]).split()) <= ids
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


def test_streets_are_loaded_from_the_named_server_alone(service: Service) -> None:
    assert "https:" not in TestClient(make_app(service)).get("/").headers["content-security-policy"]
    service.tiles = read_tiles(f"{TILES} \u00a9 Somebody")
    answer = TestClient(make_app(service)).get("/")
    assert answer.headers["content-security-policy"] == f"{POLICY} https://tiles.example"
    assert (answer.headers["referrer-policy"], answer.headers["content-encoding"]) == ("origin", "gzip")
    assert f'data-tiles="{TILES} \u00a9 Somebody"' in answer.text
    assert re.fullmatch(rf"{re.escape(TILES)} .+ tiles\.example", read_tiles(TILES))
    inside, address = f"https://a;script-src *{TILES[21:]}", "https://tiles.example/"
    for bad in ("tiles.example", address, TILES.replace("{y}", "y"), inside):
        with refuses("serve.tiles", SettingsError):
            read_tiles(bad)


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_can_be_seen_read_and_pressed(
    followed: Service, screen: tuple[int, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide network fills its box."""
    sensors = followed.served.experiment.data.sensors
    monkeypatch.setitem(vars(sensors), "longitude", -118 + 0.1 * np.arange(4.0))
    monkeypatch.setitem(vars(sensors), "latitude", 34 + 0.01 * np.arange(4.0))
    with live(followed, screen, scheme) as shown:
        shown.evaluate("latest.alerts = [dots[1].id]; latest.below = 30; ring(); legend()")
        assert shown.evaluate("dots.map(dot => dot.circle.matches('.alert'))") == [False, True, False, False]
        measured(shown, screen[0], (screen, scheme) in ACCESSIBLE)
        box, first, last = shown.evaluate(
            "[byId('map').getBoundingClientRect().width, dots[0].at[0], dots[3].at[0]].toSorted((a, b) => b - a)"
        )
        assert first - last > 0.8 * box
        assert texts(shown, "#ruler text") == ["N"] or "km" in texts(shown, "#ruler text")[0]
        if screen == SCREENS[1]:  # map, legend, curve and table are on one screen
            assert shown.evaluate(BOTTOM) <= screen[1]


def test_the_slider_moves_colours_texts_and_the_table(followed: Service) -> None:
    """Four sensors from 10 to 70 mph that end the other way round; a class is a share of the free-flow speed."""
    followed.served.free_flow = np.array([20.0, 40.0, 90.0, 70.0])
    answer = json.loads(followed.served.latest.short)
    speeds = np.array([10.0, 30.0, 50.0, 70.0])
    ahead = np.linspace(speeds, speeds[::-1], 13)[1:].round(1)
    answer["last_observed"]["avg_speed"] = [[None, *speeds[1:]]]
    answer["forecast"]["avg_speed"] = [ahead.tolist()]
    followed.served.latest.short = json.dumps(answer).encode()
    with live(followed) as shown:
        assert shown.evaluate(LOOKS) == ["sn", "s3", "s1", "s5"]
        assert texts(shown, "#time") == ["last data, 2012-05-04 09:15"]
        assert "mean 50.0, lowest 30.0 mph" in texts(shown, "#said")[0]
        assert {"60 to 70 %", "90 % and more", "no observation"} <= set(texts(shown, "#legend li"))
        assert "now" not in shown.evaluate("document.body.innerText").split()
        slide(shown, 12)
        assert shown.evaluate(LOOKS) == ["s5", "s5", "s0", "s0"]
        assert shown.evaluate("byId('ahead').getAttribute('aria-valuetext')") == "+60 min, 2012-05-04 10:15"
        assert "mean 40.0, lowest 10.0 mph" in texts(shown, "#about")[0]
        ids = answer["sensors"]
        rows = [re.split(r"\s+", row) for row in shown.evaluate("[...byId('rows').children].map(e => e.innerText)")]
        assert [row[1:4] for row in sorted(rows)] == [
            [f"{speeds[3 - at]:.1f}", share, "%"]
            for _, at, share in sorted(zip(ids, range(4), ("350", "125", "33", "14"), strict=True))
        ]
        assert texts(shown, "#head th")[1:4] == ["+60 min", "of free-flow speed", "lowest forecast \u25b2"]
        shown.click("#head th:nth-child(2) button")
        assert texts(shown, "#rows th") == [ids[at] for at in (3, 2, 1, 0)]
        shown.click("#head th:nth-child(2) button")
        assert texts(shown, "#rows th") == ids
        assert shown.evaluate("byId('head').children[1].ariaSort") == "descending"
        shown.fill("#find", ids[2])
        assert texts(shown, "#rows th") == [ids[2]]
        shown.fill("#find", "nothing")
        assert texts(shown, "#more")[0].startswith("No sensor ")


def test_a_click_shows_the_curve_of_a_sensor(followed: Service) -> None:
    """The readings, the forecast, that of an hour before, and what is usual; on the map, in the table, by a key."""
    with live(followed) as shown:
        ids = texts(shown, "#rows th")
        for place, press in enumerate(("click", "focus")):
            getattr(shown, press)(f"#rows tr:nth-child({place + 1}) button")
            shown.keyboard.press("Enter")
            until(shown, f"byId('chosen').textContent === 'Sensor {ids[place]}'")
            rows = shown.evaluate("[...document.querySelectorAll('tr.chosen')].map(e => e.innerText)")
            assert rows[0].startswith(ids[place])
        assert texts(shown, "#lines li") == ["forecast", "forecast of 08:15", "observed", USUAL]
        at, sensor = shown.evaluate("[dots[0].at, dots[0].id]")
        shown.click("#map", position={"x": at[0] + 9, "y": at[1] + 9})  # a target of 40 pixels
        until(shown, f"curve.sensor === '{sensor}'")
        curve = shown.evaluate("curve")
        assert len(curve["times"]) == len(curve["observed"]) == len(curve["usual"]) == 60
        assert (curve["observed"][48:], curve["earlier"]["origin"]) == ([None] * 12, ["2012-05-04 08:15:00"])
        drawn = shown.evaluate(POINTS)
        assert drawn["forecast"] == drawn["earlier"] == 12
        assert drawn["read"] == sum(value is not None for value in curve["observed"])
        slide(shown, 6)
        forecast = curve["latest"]["forecast"]["avg_speed"][0][5][0]
        assert texts(shown, "#value")[0].startswith(f"+30 min, 09:45: {forecast:.1f} mph, climatology")


def test_old_data_is_red_and_fresh_data_is_not(followed: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(followed) as shown:
        said, colour = shown.evaluate("[byId('age').textContent, getComputedStyle(byId('age')).color]")
        words = (
            r"Last data: \d+\.\d years ago, 2012-05-04 09:15 \(America/Los_Angeles\)\. The last row is older than 15"
        )
        assert re.match(words, said)
        monkeypatch.setattr("socialx.serving.latest.age_seconds", lambda zone, second: 840)
        shown.evaluate("check()")
        until(shown, "byId('age').textContent.includes('14 minutes ago')")
        assert texts(shown, "#age")[0].endswith(" 2012-05-04 09:15 (America/Los_Angeles).")
        assert shown.evaluate("getComputedStyle(byId('age')).color") != colour


def test_the_map_is_enlarged_and_no_label_covers_a_sign_or_a_dot(followed: Service) -> None:
    """By wheel, buttons and two fingers; a drag moves it."""
    with live(followed, SCREENS[0]) as shown:
        boxes = shown.evaluate(LABELS)
        assert len(boxes) == 4
        signs = shown.evaluate("view.signs")  # the scale and the north arrow
        points = shown.evaluate("dots.map(({at: [x, y]}) => [x - 3, y - 3, x + 3, y + 3])")
        for one, other in (*combinations(boxes + signs, 2), *product(boxes + signs, points)):
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        fit = shown.evaluate("view.scale")
        shown.evaluate(FINGERS, [150, 200])
        assert shown.evaluate("view.scale") == pytest.approx(2 * fit)
        assert shown.evaluate("byId('map').style.touchAction") == "none"
        shown.evaluate(FINGERS, [200, 100])
        assert shown.evaluate("view.scale") == pytest.approx(fit)
        shown.hover("#map")
        shown.mouse.wheel(0, -1)
        until(shown, f"view.scale > {1.1 * fit}")
        shown.click("#larger")
        centre = shown.evaluate("view.x")
        shown.mouse.move(100, 400)
        shown.hover("#map")
        shown.mouse.down()
        shown.mouse.move(120, 420)
        shown.mouse.up()
        assert shown.evaluate("view.x") != centre
        for _ in range(5):
            shown.click("#smaller")
        assert shown.evaluate("view.scale") == pytest.approx(fit)


def test_streets_lie_below_the_sensors(followed: Service) -> None:
    followed.tiles = read_tiles(f"{TILES} \u00a9 Somebody")
    with running_server(make_app(followed)) as url, chromium() as browser, opened(browser, "about:blank") as shown:
        asked = []
        shown.on("request", lambda request: asked.append(request.url))
        shown.route("https://tiles.example/**", lambda route: route.fulfill(body=TILE, content_type="image/svg+xml"))
        shown.goto(url)
        until(shown, "curve")
        assert texts(shown, "#credit") == ["\u00a9 Somebody"]
        address = re.compile(r"https://tiles.example/(\d+)/(\d+)/(\d+).png")
        numbers = next(filter(None, map(address.fullmatch, asked)))
        z, x, y = map(int, numbers.groups())
        latitude, longitude = shown.evaluate("[network.sensors[0].latitude, network.sensors[0].longitude]")
        assert abs(x - (longitude + 180) / 360 * 2**z) < 8
        assert abs(y - (1 - np.arcsinh(np.tan(np.radians(latitude))) / np.pi) / 2 * 2**z) < 8


def test_two_thousand_sensors_answer_at_once(followed: Service) -> None:
    """A step of the slider changes few things a sensor, a click few in all, and what is loaded first takes 120 kB."""
    count, rng = 2000, np.random.default_rng(0)
    network, answer = followed.served.network(), json.loads(followed.served.latest.short)
    ids = [str(700000 + place) for place in range(count)]
    places = zip(ids, *(rng.normal(middle, 0.2, count).round(5).tolist() for middle in (34, -118)), strict=True)
    network["sensors"] = [{"id": i, "latitude": lat, "longitude": lon, "free_flow": 65.0} for i, lat, lon in places]
    ahead = np.clip(45 + rng.normal(0, 12, count) + rng.normal(0, 2, (12, count)).cumsum(0), 5, 75).round(1)
    answer |= {
        "sensors": ids,
        "last_observed": {"avg_speed": ahead[:1].tolist()},
        "forecast": {"avg_speed": [ahead.tolist()]},
    }
    answer["input_status"] = [["complete"] * count]
    followed.served.latest.short = json.dumps(answer, separators=(",", ":")).encode()
    curve = followed.served.latest.curves.curve(followed.served.experiment.data.sensors.ids[0], 0)
    parts = page(False, True, False).encode(), json.dumps(network).encode(), followed.served.latest.short
    assert sum(len(gzip.compress(part)) for part in parts) < 120_000
    with running_server(make_app(followed)) as url, chromium() as browser, opened(browser, "about:blank") as shown:
        shown.route(f"{url}/sensors", lambda route: route.fulfill(json=network))
        shown.route(f"{url}/curve*", lambda route: route.fulfill(body=curve))
        shown.goto(url)
        until(shown, "curve")
        steps, clicks = shown.evaluate(CHANGES)
        assert max(steps) <= count  # 1,852 here: dots and rows that change their look
        assert max(clicks) <= 100  # 48 here: a curve
        assert len(texts(shown, "#rows tr")) == 300
        assert "300 of 2000 sensors" in texts(shown, "#more")[0]


def test_a_page_without_data_or_places(service: Service, followed: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(service) as shown:
        assert "no lookback" in texts(shown, "#said")[0]
    sensors = followed.served.experiment.data.sensors
    monkeypatch.setitem(vars(sensors), "latitude", np.full(len(sensors.ids), np.nan))
    with live(followed) as shown:
        assert shown.evaluate("byId('map').checkVisibility()") is False
        assert "has a position" in texts(shown, "#absent")[0]
        assert len(texts(shown, "#rows tr")) == 4


def test_a_page_of_a_server_with_a_token_asks_for_it(followed: Service) -> None:
    """It holds no data before that, and the token that is typed is sent."""
    followed.token = "0123456789abcdef" * 2
    with live(followed) as shown:
        assert "its token" in texts(shown, "#said")[0]
        assert "metr_la" not in shown.content()
        shown.fill("#token", followed.token)
        shown.click("#ask button")
        until(shown, "curve")
        assert re.fullmatch("metr_la: .+ mph", texts(shown, "h1")[0])
