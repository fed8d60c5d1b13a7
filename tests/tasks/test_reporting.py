"""The report of runs: one pass gives what evaluate, explain and predict give, and the page is written whole."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import socialx
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from socialx.tasks.report.contents import RunReport
from tests.commands import cut_csv, small_file, small_run, works
from tests.commands import socialx as command

DAYS = 4 * 288


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days: the test split is the last one, but for its first hours."""
    return small_file(tmp_path_factory.mktemp("data"), rows=DAYS)


@pytest.fixture(scope="module")
def social(data: Path) -> Path:
    return small_run(data, "social")


@pytest.fixture(scope="module")
def linear(data: Path) -> Path:
    return small_run(data, "linear", "--model", "linear")


@pytest.fixture(scope="module")
def report(social: Path, linear: Path) -> RunReport:
    return socialx.report([linear, str(social)])


def test_scores_and_errors_are_those_of_evaluate_and_explain(report: RunReport, social: Path, linear: Path) -> None:
    scores = socialx.evaluate([linear, social], baselines=True, by=("horizon", "hour", "weekday"))
    assert (report.evaluation.models, report.evaluation.by) == (scores.models, scores.by)
    assert report.evaluation.protocol == scores.protocol
    found = socialx.explain(min((linear, social), key=lambda run: scores[run].overall().mae))
    for name in ("run", "mae", "sensors", "layers", "by_horizon", "by_hour", "by_weekday"):
        assert getattr(report.explanation, name) == getattr(found, name)
    least = min(scores[name].overall().mae for name in set(scores) - {str(linear), str(social)})
    assert scores[report.references[0]].overall().mae == least


def test_the_days_hold_what_predict_forecasts_and_what_the_file_reads(report: RunReport, data: Path) -> None:
    store = open_store(data)
    (shown,) = report.days
    assert (shown.minutes_ahead, len(shown.seconds)) == (30, 193)
    rows = np.searchsorted(store.seconds, shown.seconds)
    values, valid = store.read(slice(int(rows[0]), int(rows[-1]) + 1))
    np.testing.assert_array_equal(shown.truth, np.where(valid, values, np.nan))
    issued = shown.seconds - 30 * 60
    start, end = (str(np.datetime64(int(second), "s")) for second in (issued[0], issued[-1]))
    forecast = socialx.predict(report.explanation.run, start=start, end=end, every="5min", interval=0.9)
    np.testing.assert_array_equal(forecast.origin.astype("int64"), issued)
    wanted = forecast.values, forecast.lower, forecast.upper
    for found, expected in zip((shown.forecast, *shown.band), wanted, strict=True):
        np.testing.assert_allclose(found, expected[:, 5, :, 0], rtol=1e-4, atol=1e-3)


def test_a_run_without_intervals_has_no_band(linear: Path, tmp_path: Path) -> None:
    without = tmp_path / "without"
    shutil.copytree(linear, without)
    (without / "intervals.safetensors").unlink()
    (shown,) = socialx.report([without]).days
    assert shown.band is None


def test_settings_origins_and_epochs_are_those_of_the_folder(report: RunReport, social: Path, linear: Path) -> None:
    first, second = report.runs
    assert (first.name, second.name) == (str(linear), str(social))
    assert (second.settings["model.width"], second.origins["model.width"]) == (8, "--width")
    assert (first.settings["model.kind"], report.defaults["model.kind"]) == ("linear", "social")
    assert (second.epochs, second.best_epoch) == (socialx.load_run(social).epochs, 1)
    assert set(report.defaults) == set(first.settings)


def test_the_command_writes_the_page_and_changes_no_run(social: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in social.iterdir()}
    output = tmp_path / "new" / "report.html"
    for _ in range(2):  # an older page is replaced
        result = works("report", social, "-o", output)
    assert f"{social}: MAE " in result.stdout
    assert f"wrote {output}: " in result.stdout
    text = output.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert len(re.findall("<circle[^>]*><title>", text)) == 4
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]
    assert {path.name: path.read_bytes() for path in social.iterdir()} == before


def test_a_run_without_origins_epochs_and_positions_has_a_page(data: Path, tmp_path: Path) -> None:
    cut_csv(tmp_path / "readings.csv", 400)
    made = tmp_path / "no_positions.h5"
    words = "--name made --units mph --timezone America/Los_Angeles --without-positions"
    works("convert", "csv", tmp_path / "readings.csv", *words.split(), "--output-h5", made)
    run = small_run(made, "run", "--model", "linear")
    for name in ("settings_sources.json", "metrics.jsonl"):
        (run / name).unlink()
    report = socialx.report([run], output=tmp_path / "page.html")
    assert (report.runs[0].origins, report.runs[0].epochs) == ({}, ())
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert " without position" in text
    assert ": model.kind linear" in text
    assert "Learning curves" not in text


def test_what_has_no_report_is_refused_first(social: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.tasks.report.report.run_metrics", lambda *_, **__: pytest.fail("it was scored"))
    (tmp_path / "folder.html").mkdir()
    for runs, options, says in (
        ([], {}, "report: no run.\n  try: name a run folder"),
        ([social], {"split": "tests"}, r"split='tests' is unknown\.\n  try: choose train, validation, test or all"),
        ([social], {"output": tmp_path / "folder.html"}, "a folder, not a file"),
        ([tmp_path], {}, "not a run folder"),
    ):
        with pytest.raises(SocialxError, match=says):
            socialx.report(runs, **options)
    assert command("report").exit_code == 2
