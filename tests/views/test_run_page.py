"""The page of some runs: well-formed, escaped, small, readable, and moved by a script in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from socialx.files.published import PublishedScore
from socialx.scoring.days import Day
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.protocol import Trained
from socialx.scoring.results import (
    ErrorOf,
    Evaluation,
    Explanation,
    Head,
    Layer,
    ModelScores,
    Neighbour,
    SensorErrors,
)
from socialx.training.run_folder import EpochRow
from socialx.views.page import ODD
from socialx.views.run_map import moving_map
from socialx.views.run_page import SCRIPT, STYLES, page
from socialx.views.run_report import RunRecord, RunReport
from tests.pages import (
    CHROMIUM,
    PROBE,
    Outline,
    colours_of,
    contrast,
    drawn,
    everywhere,
    opened,
    refuse_network,
    well_formed,
    with_script,
    written,
)
from tests.protocols import MOMENTS, protocol

HOSTILE = "<script>alert('x')</script></script>&\"\u202e\x00\udcff\u2028"
UNIT = "mph"
TRAINED = Trained(3, 1234, "w" * 64, "c" * 64, None, {}, MOMENTS, 0, "32-true", "0.1.0", None)


def scores(mae: float) -> ModelScores:
    steps = tuple(Scores(mae + k / 10, 2 * mae, 3 * mae, 0.8, 1000) for k in range(12))
    return ModelScores({"avg_speed": HorizonScores(steps, Scores(mae, 2 * mae, 3 * mae, 0.8, 12_000))}, 5)


def day(sensors: int, date: int, rows: int = 193, band: bool = False) -> Day:
    rng = np.random.default_rng(date)
    seconds = 1_338_508_800 + 86_400 * date + 6 * 3600 + 300 * np.arange(rows)  # from 2012-06-01
    truth = rng.uniform(5, 75, (rows, sensors)).astype(np.float32)
    forecast = truth + rng.normal(0, 3, truth.shape).astype(np.float32)
    truth[rng.random(truth.shape) < 0.05] = np.nan
    return Day(30, seconds, truth, forecast, (forecast - 5, forecast + 5) if band else None)


def record(name: str, **settings: Any) -> RunRecord:
    epochs = tuple(EpochRow(n, 10 * n, 4 / n, 5 / n if n < 3 else 1.8, 70.0, 0.001, seconds=60.0) for n in range(1, 5))
    values = {"model.width": 64, "model.kind": "xlstm", "trainer.seed": 0, "data.path": "made_up.h5"} | settings
    return RunRecord(name, values, {"model.width": "--width", "data.path": "base.yaml"}, epochs, 3)


def made(sensors: int = 6, placed: bool = True, band: bool = False) -> RunReport:
    """Two runs on made-up sensors along a bent road; the second run is better."""
    ids = tuple(f"{700_000 + 7 * k}" for k in range(sensors))
    near = [tuple(Neighbour(ids[(k + m) % sensors], 0.3 / m, 1.2 * m) for m in range(1, 6)) for k in range(sensors)]
    where = [
        (34.0 + 0.2 * math.sin(k / 20), -118.0 + 0.4 * k / sensors) if placed else (None, None) for k in range(sensors)
    ]
    found = [
        SensorErrors(ids[k], 6 - 5 * k / sensors, 500, *where[k], near[k], 1 + k / sensors) for k in range(sensors)
    ]
    layer = Layer("layer 1", True, 64, Head(4.0, 1.0, 0.4, 2.0, 3.0), (Head(3.66, 1.41, 0.923, 0.36, 2.8),) * 2)
    names = {"copy-last, last valid": 4.2, "historical average": 4.1, "runs/first": 3.0, "runs/second": 2.9}
    evaluation = Evaluation(
        "test",
        protocol(
            dataset="made_up",
            sensors=sensors,
            windows={"train": 70, "validation": 10, "test": 20},
            trained={"runs/first": TRAINED, "runs/second": TRAINED},
        ),
        {name: scores(mae) for name, mae in names.items()},
        (PublishedScore("Graph WaveNet", (2.68, 3.06, 3.5), "logs"),),
    )
    hours = tuple(ErrorOf(hour, 2 + hour / 10, 100) for hour in range(24))
    weekdays = tuple(ErrorOf(weekday, 3.0 if weekday < 5 else None, 100) for weekday in range(7))
    explanation = Explanation(
        run="runs/second",
        part="test",
        target="avg_speed",
        unit=UNIT,
        mae=2.9,
        count=12_000,
        by_horizon=(),
        by_hour=hours,
        by_weekday=weekdays,
        sensors=tuple(found),
        layers=(layer,),
        no_pooling=None,
        protocol=evaluation.protocol,
    )
    return RunReport(
        evaluation=evaluation,
        runs=(record("runs/first"), record("runs/second", **{"trainer.seed": 1})),
        defaults={"model.width": 128, "model.kind": "xlstm", "trainer.seed": 0, "data.path": None, "data.days": None},
        by_hour=dict.fromkeys(names, hours),
        by_weekday=dict.fromkeys(names, weekdays),
        explanation=explanation,
        sensors=ids[::-1],  # a file has its own order
        days=(day(sensors, 0, band=band), day(sensors, 1, band=band)),
    )


def bare() -> RunReport:
    """One run without pooling, positions, finished epochs, valid targets and readings."""
    report = made(3, placed=False)
    nothing: dict[str, Any] = {"mae": None, "count": 0}
    found = report.explanation
    sensors = tuple(replace(sensor, **nothing, neighbours=(), received=None) for sensor in found.sensors)
    none = Scores(math.nan, math.nan, math.nan, math.nan, 0)
    unknown = ModelScores({"avg_speed": HorizonScores((none,) * 12, none)}, 5)
    gone = tuple(replace(each, truth=np.full_like(each.truth, np.nan)) for each in report.days[:1])
    run = replace(report.runs[1], epochs=(), best_epoch=None, origins={})
    errors = tuple(ErrorOf(k, **nothing) for k in range(24))
    return replace(
        report,
        evaluation=replace(report.evaluation, models=dict.fromkeys(report.evaluation, unknown), published=()),
        runs=(run,),
        by_hour=dict.fromkeys(report.by_hour, errors),
        by_weekday=dict.fromkeys(report.by_weekday, errors[:7]),
        explanation=replace(found, **nothing, sensors=sensors, layers=(), no_pooling="its kind has no layers"),
        days=gone,
    )


BUILT: dict[str, Callable[[], RunReport]] = {
    "two": made,
    "unplaced": lambda: made(30, placed=False),
    "alone": lambda: made(1),
    "band": lambda: made(band=True),
    "bare": bare,
}
names = pytest.mark.parametrize("name", BUILT)


def embedded(text: str) -> dict[str, Any]:
    """What the script of a page reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(found[1], parse_constant=refuse)


@names
def test_the_document_is_well_formed_and_can_be_heard(name: str) -> None:
    for tag, attributes, parents in well_formed(page(BUILT[name]())).elements:
        if tag in ("select", "input"):
            assert "aria-label" in attributes or "label" in parents
        if tag == "circle" and attributes.get("role"):
            assert attributes["role"] == "option"
            assert "MAE" in str(attributes["aria-label"])


@names
def test_nothing_comes_from_the_network_and_only_its_own_script_runs(name: str) -> None:
    text = page(BUILT[name]())
    refuse_network(text)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    assert text.count(f"<script>{SCRIPT}</script>") == 1


@names
def test_what_is_not_known_does_not_show(name: str) -> None:
    text = Outline(page(BUILT[name]())).text
    assert not re.search(r"\b(None|nan|inf|infinity|null(?! key)|undefined)\b", text, re.IGNORECASE)
    embedded(page(BUILT[name]()))


def test_texts_are_no_markup() -> None:
    plain = made()
    odd = everywhere(plain, lambda text: HOSTILE + text)
    for text in (page(odd), page(everywhere(bare(), lambda text: HOSTILE + text))):
        assert len(re.findall("<script", text)) == 2
        assert "alert('x')" not in re.sub(r'id="data">.*?</script>|<text.*?</text>', "", text, flags=re.DOTALL)
        assert not set("\u202e\x00\udcff") & set(text)
        text.encode()
        Outline(text)
    assert escape("<script>alert('x')</script>") in page(odd)
    first = embedded(page(odd))["sensors"][0]["id"]
    assert first == ODD.sub("\ufffd", HOSTILE) + plain.explanation.sensors[0].id


def test_scores_settings_and_radii_are_told() -> None:
    report = made()
    text = Outline(page(report)).text
    for said in (
        *("second: MAE 2.90\u00a0mph", "The best of 2 runs.", "29.3 % better than historical average"),
        *("15 minutes ahead", "2.9000", "4.2000", "Graph WaveNet", "canonical split: 70 / 10 / 20 windows"),
        *("trainer.seed", "differs", "--width", "base.yaml", "4 epochs in 4 min; best epoch 3"),
        *("3.66", "1.41", "92.3%", "700000, the worst: MAE 6.00 mph", "700035, the best", "Fri 1 Jun", "Sat 2 Jun"),
    ):
        assert said in text, said
    assert text.count(" differs") == 1
    assert text.index("trainer.seed") < text.index("model.width")  # where runs differ comes first
    assert "No pooling: its kind has no layers." in Outline(page(bare())).text


def test_a_run_that_is_worse_than_a_reference_is_said_to_be_worse() -> None:
    report = made()
    models = {**report.evaluation.models, "runs/first": scores(9.0), "runs/second": scores(8.2)}
    text = Outline(page(replace(report, evaluation=replace(report.evaluation, models=models)))).text
    assert "second is 100.0 % worse than historical average" in text


def test_more_runs_than_looks_are_counted() -> None:
    report = made()
    runs = tuple(record(f"runs/{k}") for k in range(7))
    models = {**report.evaluation.models, **{run.name: scores(3.5) for run in runs}}
    more = {name: report.by_hour["runs/first"] for name in models}
    week = {name: report.by_weekday["runs/first"] for name in models}
    evaluation = replace(report.evaluation, models=models)
    report = replace(report, evaluation=evaluation, runs=report.runs + runs, by_hour=more, by_weekday=week)
    text = page(report)
    assert "3 runs are not drawn." in text
    Outline(text)


def test_the_band_lies_around_the_forecast() -> None:
    report = made(band=True)
    text = page(report)
    assert text.count("fill: var(--Area)") == 6  # three sensors on two days
    assert Outline(text).text.count("interval") == 1  # in the legend
    for picture in re.findall(r'<svg role="img" class="plot"[^>]*><title>70.*?</svg>', text, re.DOTALL):
        (band,) = re.findall(r'#(\w+)"[^>]*fill: var\(--Area\)', picture)
        (area,) = re.findall(rf'id="{band}" d="([^"]*)"', picture)
        (forecast,) = re.findall(r'd="([^"]*)"[^>]*stroke: var\(--C1\)', picture)
        heights, inner = (np.array(re.findall(r"[ML] [-\d.]+ ([-\d.]+)", path), float) for path in (area, forecast))
        assert heights.min() + 150 < inner.min()  # an area counts from the lower edge of its picture, 150 high
        assert heights.max() + 150 > inner.max()
    assert "var(--Area)" not in page(made())


def test_the_map_has_the_readings_and_forecasts_of_its_day() -> None:
    report = made()
    data = moving_map(report)[1]
    shown_day, found = report.days[0], data["day"]
    order = [report.sensors.index(sensor.id) for sensor in report.explanation.sensors]
    for name, values in (("truth", shown_day.truth), ("forecast", shown_day.forecast)):
        numbers = np.array([[np.nan if v is None else v for v in row] for row in found[name]])
        np.testing.assert_allclose(numbers * found["quantum"], values[:, order], atol=0.51 * found["quantum"])
    assert (found["times"][0], found["times"][-1], len(found["times"])) == ("06:00", "22:00", 193)
    assert found["start"] == int(np.nanargmin(np.nanmean(shown_day.truth, axis=1)))
    sensor = report.explanation.sensors[2]
    assert data["sensors"][2]["near"][0] == [3, 0.3, 1.2]
    assert data["sensors"][2]["id"] == sensor.id


@pytest.mark.parametrize(("scale", "quantum"), [(1.0, 0.1), (0.01, 0.001), (30.0, 10.0)])
def test_readings_of_any_size_are_short_numbers(scale: float, quantum: float) -> None:
    report = made()
    days = tuple(replace(each, truth=scale * each.truth, forecast=scale * each.forecast) for each in report.days)
    found = moving_map(replace(report, days=days))[1]["day"]
    assert found["quantum"] == pytest.approx(quantum)
    assert max(v for row in found["truth"] for v in row if v is not None) < 1000


@pytest.mark.parametrize(("sensors", "times"), [(325, 193), (2000, 97)])
def test_a_large_network_is_a_small_page(sensors: int, times: int) -> None:
    text = page(made(sensors))
    assert len(text.encode()) < 3_000_000
    assert len(embedded(text)["day"]["times"]) == times
    assert text.count('role="option"') == sensors


def test_sensors_without_a_place_or_far_away_are_counted() -> None:
    report = made(30)
    first, second, *others = report.explanation.sensors
    sensors = (replace(first, latitude=None), replace(second, latitude=0.0, longitude=10.0), *others)
    text = page(replace(report, explanation=replace(report.explanation, sensors=sensors)))
    assert "Not on the map: 1 without a position and 1 far away." in text
    assert text.count('role="option"') == 28
    places = [(int(x), int(y)) for x, y in re.findall(r'<circle cx="(\d+)" cy="(\d+)" class="q\d" data-place', text)]
    assert max(x for x, _ in places) - min(x for x, _ in places) > 500  # the far one does not press them together


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_text_and_mark_can_be_seen(scheme: int) -> None:
    """WCAG 2: a contrast of 4.5 for text, of 3 for what a picture needs."""
    shared, own = STYLES.split("h3 {")[0], STYLES
    colours = colours_of(shared, scheme) | dict(re.findall(r"--(\w+): #(\w+)", own.split(":root {")[3 + scheme]))
    for ink in ("Ink", "Soft"):
        for ground in ("Page", "Card", "Code"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for ink in ("C1", "C2", "C3", "C4", "C5", "Mark", "Ink"):  # Ink is the outline of a dot
        for ground in ("Page", "Card"):
            assert contrast(colours[ink], colours[ground]) >= 3, (ink, ground)
    levels = [contrast(colours[f"Q{k}"], colours["Page"]) for k in range(9)]
    assert levels == sorted(levels)  # the scale stands out more and more, whatever the colours look like


browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@browser
@pytest.mark.slow
def test_a_browser_draws_it_at_any_width(tmp_path: Path) -> None:
    """All pages in frames of two widths, and once more as they are, with their own policy."""
    long = everywhere(made(), lambda text: text if text == UNIT else text + "x" * 60)
    reports = {**{name: build() for name, build in BUILT.items()}, "long": long}
    day_first = 'document.querySelector("input[value=day]")?.click();' + PROBE
    for name, width, seen in drawn({name: page(report) for name, report in reports.items()}, tmp_path, day_first):
        assert "Scores" in seen["text"], (name, width)


ACTIONS = """addEventListener("load", () => {
const byId = name => document.getElementById(name), seen = {};
const look = () => ({name: byId("name").textContent, facts: byId("facts").textContent, at: byId("at").textContent,
  near: byId("near").innerText.split("\\n"), select: byId("sensor").value,
  lines: document.querySelectorAll("#first line").length,
  first: [...document.querySelectorAll("#first circle")].map(e => [+e.dataset.place, e.getAttribute("class")]),
  second: [...document.querySelectorAll("#second circle")].map(e => e.getAttribute("class")),
  hidden: [byId("second").hidden, byId("slider").hidden], value: byId("time").getAttribute("aria-valuetext"),
  reached: [...document.querySelectorAll("[tabindex='0'][role=option]")].map(e => +e.dataset.place),
  curve: document.querySelector("#panel path.truth").getAttribute("d"), high: byId("high").textContent,
  focus: document.activeElement.dataset.place});
const change = (element, value) => {
  element.value = value;
  for (const name of ["input", "change"]) element.dispatchEvent(new Event(name));
};
seen.start = look();
change(byId("sensor"), 3); seen.select = look();
document.querySelector("circle[data-place='1']").focus(); seen.focus = look();
document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
seen.arrow = look();
const box = document.querySelector("#first circle[data-place='4']").getBoundingClientRect();
document.querySelector("#first svg").dispatchEvent(new PointerEvent("pointermove",
  {clientX: box.x + box.width / 2 + 1, clientY: box.y + box.height / 2}));
seen.pointer = look();
document.querySelector("input[value=received]").click(); seen.received = look();
document.querySelector("input[value=day]").click(); seen.day = look();
change(byId("time"), 12); seen.moved = look();
byId("play").click();
setTimeout(() => {
  seen.played = look();
  const made = document.createElement("pre");
  made.textContent = JSON.stringify(seen);
  document.body.append(made);
}, 1000);
});"""


@browser
def test_map_and_slider_react(tmp_path: Path) -> None:
    report = made()
    text = page(report)
    outside = Path(tmp_path, "page.html")
    outside.write_text(with_script(text, ACTIONS), "utf-8")
    (seen,) = written(opened(outside.as_uri(), tmp_path))
    sensors, data = report.explanation.sensors, moving_map(report)[1]
    start = seen["start"]
    assert start["name"] == sensors[0].id
    assert start["facts"].startswith("MAE 6.00 mph, number 1 of 6 from the worst")
    assert start["near"][0] == f"{sensors[1].id}: weight 30.0 %, 1.2 km away"
    assert (start["lines"], start["hidden"], start["reached"]) == (5, [True, True], [0])
    drawn = re.findall(r'class="(q\w)" data-place="(\d+)"', text)
    assert [(place, look.split()[0]) for place, look in start["first"]] == [(int(k), look) for look, k in drawn]
    assert [len({look.split()[0] for _, look in start["first"]}), start["high"]] == [6, "\u2265\u00a05.98\u00a0mph"]
    assert (seen["select"]["name"], seen["select"]["select"]) == (sensors[3].id, "3")
    assert seen["select"]["curve"] != start["curve"]
    assert (seen["focus"]["name"], seen["focus"]["focus"], seen["focus"]["reached"]) == (sensors[1].id, "1", [1])
    assert (seen["arrow"]["name"], seen["arrow"]["focus"]) == (sensors[2].id, "2")  # the next one to the east
    assert seen["pointer"]["name"] == sensors[4].id
    assert seen["received"]["high"] == "\u2265\u00a01.83"
    assert [look for _, look in seen["received"]["first"]] != [look for _, look in start["first"]]
    assert seen["day"]["hidden"] == [False, False]
    times = data["day"]["times"]
    assert seen["day"]["at"].startswith(f"{times[data['day']['start']]}: mean reading ")
    moved, truth, forecast = seen["moved"], report.days[0].truth[12], report.days[0].forecast[12]
    known = np.isfinite(truth)
    said = re.fullmatch(r"07:00: mean reading ([\d.]+), mean forecast ([\d.]+), MAE ([\d.]+) mph", moved["at"])
    assert said
    means = (truth[known].mean(), forecast[known].mean(), np.abs(truth - forecast)[known].mean())
    assert [float(each) for each in said.groups()] == pytest.approx(means, abs=0.11)
    assert moved["value"].startswith("07:00, mean reading")
    assert moved["second"] != seen["day"]["second"]
    assert len(moved["second"]) == 6
    assert seen["played"]["at"][:5] > "07:00"
