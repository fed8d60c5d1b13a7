"""The page of some runs: well-formed, escaped, small and readable, and without a script."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from socialx.data.calendar import WEEKDAYS
from socialx.drawing.canvas import value_limits
from socialx.drawing.page import ODD
from socialx.files.store.published import PublishedScore
from socialx.scoring.metrics import ErrorRow, HorizonScores, Scores
from socialx.scoring.protocol import Trained
from socialx.scoring.results import Evaluation, Explanation, Head, Layer, ModelScores, Neighbour, SensorErrors
from socialx.tasks.report.contents import Day, RunRecord, RunReport
from socialx.tasks.report.page import STYLES, page
from socialx.training.run_folder import EpochRow
from tests.pages import CHROMIUM, Outline, colours_of, contrast, drawn, everywhere, refuse_network, well_formed
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
    values = {"model.width": 64, "model.kind": "social", "trainer.seed": 0, "data.path": "made_up.h5"} | settings
    return RunRecord(name, values, {"model.width": "--width", "data.path": "base.yaml"}, epochs, 3)


def made(sensors: int = 6, placed: bool = True, band: bool = False) -> RunReport:
    """Two runs on made-up sensors along a bent road; the second run is better."""
    ids = tuple(f"{700_000 + 7 * k}" for k in range(sensors))
    near = [tuple(Neighbour(ids[(k + m) % sensors], 0.3 / m, 1.2 * m) for m in range(1, 6)) for k in range(sensors)]
    at = [
        (34.0 + 0.2 * math.sin(k / 20), -118.0 + 0.4 * k / sensors) if placed else (None, None) for k in range(sensors)
    ]
    found = [SensorErrors(ids[k], 6 - 5 * k / sensors, 500, *at[k], near[k], 1 + k / sensors) for k in range(sensors)]
    layer = Layer("layer 1", True, 64, Head(4.0, 1.0, 0.4, 2.0, 3.0), (Head(3.66, 1.41, 0.923, 0.36, 2.8),) * 2)
    names = {"naive": 4.2, "historical average": 4.1, "runs/first": 3.0, "runs/second": 2.9}
    hours = tuple(ErrorRow(hour, 2 + hour / 10, 100) for hour in range(24))
    weekdays = tuple(ErrorRow(name, 3.0 if day < 5 else None, 100) for day, name in enumerate(WEEKDAYS))
    steps = tuple(ErrorRow(5 * k, 2 + k / 10, 100) for k in range(1, 13))
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
        by={name: {"horizon": steps, "hour": hours, "weekday": weekdays} for name in names},
    )
    explanation = Explanation(
        run="runs/second",
        split="test",
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
        defaults={"model.width": 128, "model.kind": "social", "trainer.seed": 0, "data.path": None, "data.days": None},
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
    by = {
        what: tuple(replace(row, **nothing) for row in rows)
        for what, rows in report.evaluation.by["runs/first"].items()
    }
    models = dict.fromkeys(report.evaluation, unknown)
    evaluation = replace(report.evaluation, models=models, published=(), by=dict.fromkeys(models, by))
    return replace(
        report,
        evaluation=evaluation,
        runs=(run,),
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


@names
def test_a_document_is_well_formed_and_needs_no_network_and_no_script(name: str) -> None:
    """It can be heard, and what is not known does not show."""
    text = page(BUILT[name]())
    refuse_network(text)
    outline = well_formed(text)
    assert [tag for tag, _, _ in outline.elements if tag in ("script", "select", "input", "button")] == []
    words = re.findall(r"\w+", outline.text.lower())
    assert not {"none", "nan", "inf", "infinity", "null", "undefined"} & {*words}


def test_texts_are_no_markup() -> None:
    report = everywhere(made(), lambda text: HOSTILE + text)
    for text in (page(report), page(everywhere(bare(), lambda text: HOSTILE + text))):
        assert "<script" not in text
        assert "alert('x')" not in re.sub("<text.*?</text>", "", text, flags=re.DOTALL)
        assert not set("\u202e\x00\udcff") & set(text)
        text.encode()
        Outline(text)
    assert escape(ODD.sub("\ufffd", report.explanation.sensors[0].id)) in page(report)


def test_scores_settings_and_radii_are_told() -> None:
    report = made()
    text = Outline(page(report)).text
    for said in (
        *(
            "second: on average 2.90\u00a0mph off",
            "The best of 2 runs.",
            "29.3 % better than the usual value of that hour (mean for the time of the week), the best simple forecast",
        ),
        *("15 minutes ahead", "2.9000", "4.2000", "Graph WaveNet", "DCRNN split 70/10/20: 70 / 10 / 20 windows"),
        *("trainer.seed", "differs", "--width", "base.yaml", "4 epochs in 4 min; best epoch 3"),
        *("3.66", "1.41", "92.3%", "700000, the worst: MAE 6.00 mph", "700035, the best", "Fri 1 Jun", "Sat 2 Jun"),
    ):
        assert said in text, said
    assert text.count(" differs") == 1
    assert text.index("trainer.seed") < text.index("model.width")  # where runs differ comes first
    short = replace(report, runs=tuple(replace(run, epochs=run.epochs[:1]) for run in report.runs))
    assert "1 epoch in 60 s" in page(short)
    assert "Learning curves of" not in page(short)  # a point is no curve
    assert "No pooling" in Outline(page(bare())).text


def test_more_runs_than_looks_are_counted() -> None:
    report = made()
    runs = tuple(record(f"runs/{k}") for k in range(7))
    models = {**report.evaluation.models, **{run.name: scores(3.5) for run in runs}}
    by = dict.fromkeys(models, report.evaluation.by["runs/first"])
    report = replace(report, evaluation=replace(report.evaluation, models=models, by=by), runs=report.runs + runs)
    text = page(report)
    assert "3 runs are not" in text
    Outline(text)


def test_the_band_lies_around_the_forecast() -> None:
    text = page(made(band=True))
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


def test_the_map_says_the_error_of_each_sensor_and_the_worst_is_on_top() -> None:
    """A sensor without a valid target has no colour."""
    report = made()
    first, *others = report.explanation.sensors
    nothing = replace(first, id="1", mae=None)
    text = page(replace(report, explanation=replace(report.explanation, sensors=(first, *others, nothing))))
    assert '"qn"><title>1, MAE - mph<' in text
    found = re.findall(r'class="q(\d)"><title>(\d+), MAE ([\d.]+) mph</title>', text)
    assert [name for _, name, _ in found] == [f"{700_000 + 7 * k}" for k in range(6)][::-1]
    assert [mae for _, _, mae in found] == ["1.83", "2.67", "3.50", "4.33", "5.17", "6.00"]
    levels = [int(level) for level, _, _ in found]
    assert (levels[0], levels[-1], levels) == (0, 8, sorted(levels))
    assert "\u22641.85" in (heard := Outline(text).text.replace("\u00a0", ""))
    assert "\u22655.98mph" in heard


@pytest.mark.parametrize(("screen", "sensors"), [("broad", 6), ("narrow", 6), ("broad", 325)])
def test_ids_on_the_map_cover_no_other_and_no_dot(screen: str, sensors: int) -> None:
    text = page(made(sensors))
    high, ids = re.search(f'class="{screen}" style="font-size:(\\d+)px"[^>]*>(.*?)</g>', text).groups()
    found = re.findall(r'<text x="(\d+)" y="(\d+)">(7\d+)<', ids)
    assert "700000" in [name for _, _, name in found]  # the worst
    boxes = [(int(x), int(y) - 0.7 * int(high), int(x) + 3.6 * int(high), int(y)) for x, y, _ in found]
    dots = [(int(x), int(y)) * 2 for x, y in re.findall(r'<circle cx="(\d+)" cy="(\d+)" class="q\d"><title>', text)]
    for one, other in (*combinations(boxes, 2), *product(boxes, dots)):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("sensors", [325, 2000])
def test_a_large_network_is_a_small_page(sensors: int) -> None:
    text = page(made(sensors))
    assert len(text.encode()) < 1_000_000
    assert text.count("<title>7") == sensors + 6  # pictures of three sensors on two days


def test_sensors_without_a_place_or_far_away_are_counted() -> None:
    report = made(30)
    first, second, *others = report.explanation.sensors
    sensors = (replace(first, latitude=None), replace(second, latitude=0.0, longitude=10.0), *others)
    text = page(replace(report, explanation=replace(report.explanation, sensors=sensors)))
    assert "1 without position; 1 far" in text
    places = [(int(x), int(y)) for x, y in re.findall(r'<circle cx="(\d+)" cy="(\d+)" class="q\d"><title>', text)]
    assert len(places) == 28
    assert max(x for x, _ in places) - min(x for x, _ in places) > 500  # the far one does not press them together


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_text_and_mark_can_be_seen(scheme: int) -> None:
    """WCAG 2: a contrast of 4.5 for text, of 3 for what a picture needs."""
    shared, own = STYLES.split("h3 {")[0], STYLES
    colours = colours_of(shared, scheme) | dict(re.findall(r"--(\w+): #(\w+)", own.split(":root {")[3 + scheme]))
    for ink in ("Ink", "Soft"):
        for ground in ("Page", "Card", "Code"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for ink in ("C1", "C2", "C3", "C4", "C5", "Ink"):  # Ink is the outline of a dot
        for ground in ("Page", "Card"):
            assert contrast(colours[ink], colours[ground]) >= 3, (ink, ground)
    levels = [contrast(colours[f"Q{k}"], colours["Page"]) for k in range(9)]
    assert levels == sorted(levels)  # the scale stands out more and more, whatever the colours look like


browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


def test_an_axis_begins_where_values_do() -> None:
    wanted = {(60, 70): (55.3, 70.7), (3, 70): (0, 73.5), (-5, 5): (-5.5, 5.5), (66, 67): (52.93, 67.67), (): (0, 1.05)}
    assert all(value_limits(np.array(values, float)) == pytest.approx(ends) for values, ends in wanted.items())


@browser
@pytest.mark.slow
def test_a_browser_draws_it_at_any_width(tmp_path: Path) -> None:
    """All pages in frames of two widths, and once more as they are, with their own policy."""
    long = everywhere(made(), lambda text: text if text == UNIT else text + "x" * 60)
    reports = {**{name: build() for name, build in BUILT.items()}, "long": long}
    for name, width, seen in drawn({name: page(report) for name, report in reports.items()}, tmp_path):
        assert "Scores" in seen["text"], (name, width)
