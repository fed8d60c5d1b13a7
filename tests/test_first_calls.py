"""The first lines of a notebook: what people type before they read a page, right and wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.errors import SettingsError, SocialxError

TINY = {"model": {"width": 8, "blocks": 1, "slstm_at": ""}, "pooling": {"neighbours": 3}}


def frame_of(data: Path, rows: int = 40) -> pd.DataFrame:
    """The last rows of a file as people hold them: wall times x sensor ids, NaN where nothing was read."""
    store = socialx.open_store(data)
    values, valid = store.read(slice(len(store.seconds) - rows, len(store.seconds)))
    times = pd.to_datetime(store.seconds[-rows:], unit="s")
    return pd.DataFrame(np.where(valid, values, np.nan), index=times, columns=list(store.sensors.ids))


def test_one_run_is_named_by_its_path(run: Path) -> None:
    scores = socialx.evaluate(str(run))
    assert list(scores) == [str(run)]
    assert socialx.evaluate(run)[run].overall().mae == scores[str(run)].overall().mae
    assert str(run) in socialx.report_runs(str(run)).evaluation


def test_a_file_comes_first_and_a_section_may_have_its_name(data: Path, tmp_path: Path) -> None:
    made = socialx.train(str(data), data={"days": 1}, run_dir=tmp_path / "run", max_epochs=1, **TINY)
    assert made.settings.data.days == 1
    assert made.settings.data.path == data
    assert made.settings.trainer.max_epochs == 1
    assert len(made.epochs) == 1


def test_a_setting_with_a_name_of_its_own_needs_no_section(data: Path, tmp_path: Path) -> None:
    made = socialx.train(data, width=8, blocks=1, slstm_at="", max_epochs=1, run_dir=tmp_path / "run", neighbours=3)
    assert made.settings.model.width == 8
    assert made.settings.pooling.neighbours == 3


@pytest.mark.parametrize(
    ("task", "length"),
    [(socialx.load_run, 200), (socialx.predict, 250), (socialx.evaluate, 250), (socialx.explain, 250)],
)
def test_a_result_is_one_line_and_a_table(run: Path, task: Callable[[Path], Any], length: int) -> None:
    shown = task(run)
    assert re.fullmatch(r"<\w+: [^\n]+>", repr(shown))
    assert len(repr(shown).replace(str(run), "")) < length
    page = shown._repr_html_()
    assert page.count("<tr") >= 2
    assert len(page) < 20_000


def test_a_file_is_one_line_and_a_table(data: Path) -> None:
    report = socialx.inspect(data)
    assert repr(report).startswith(f"<Inspection: {data}, metr_la")
    assert "<td>dataset</td>" in report._repr_html_()


def test_what_a_result_quotes_is_escaped_on_a_page(run: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(run, tmp_path / "<b>run"))
    assert "<b>" not in socialx.load_run(odd)._repr_html_()


def test_a_frame_is_data(data: Path, run: Path) -> None:
    frame = frame_of(data)
    forecast = socialx.predict(run, data=frame)
    usual = socialx.predict(run, at=frame.index[-1].to_pydatetime())
    np.testing.assert_array_equal(forecast.values, usual.values)
    assert forecast.sensors == usual.sensors
    assert forecast.units == usual.units


def test_a_frame_may_come_in_any_order_and_with_a_zone(data: Path, run: Path) -> None:
    frame = frame_of(data)
    expected = socialx.predict(run, frame).values
    mixed = frame.iloc[::-1, ::-1].tz_localize("America/Los_Angeles").tz_convert("UTC")
    np.testing.assert_array_equal(socialx.predict(run, mixed).values, expected)


def test_a_sensor_that_a_frame_lacks_has_no_reading(data: Path, run: Path) -> None:
    frame = frame_of(data)
    forecast = socialx.predict(run, frame.drop(columns=frame.columns[1]))
    assert forecast.marks[0].tolist() == ["complete", "never", "complete", "complete"]


def with_word(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(object).assign(**{str(frame.columns[0]): "closed"})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda f: f.rename(columns={f.columns[0]: "S1"}), "1 of 4 columns of the frame are no sensors"),
        (lambda f: f.reset_index(drop=True), "the index of the frame holds no times"),
        (lambda f: pd.concat([f, f]), "40 rows or columns of the frame repeat"),
        (lambda f: pd.concat([f, f.iloc[:, :1]], axis=1), "1 rows or columns of the frame repeat"),
        (lambda f: f.iloc[:5], "one history is 12"),
        (lambda f: -f, "below 0"),
        (lambda f: f * 10, "above 124.3 mph"),
        (lambda f: f.to_numpy(), "ndarray is no data"),
        (with_word, "not all cells are numbers"),
        (lambda f: f * np.nan, "no sensor has a reading"),
    ],
)
def test_a_wrong_frame_is_refused(
    data: Path, run: Path, wrong: Callable[[pd.DataFrame], pd.DataFrame], named: str
) -> None:
    with pytest.raises(SocialxError, match=re.escape(named)):
        socialx.predict(run, wrong(frame_of(data)))


def test_a_loaded_model_forecasts_from_arrays(data: Path, run: Path) -> None:
    model = socialx.load_model(run)
    frame = frame_of(data, 12)
    history = frame.to_numpy()[None, :, :, None]  # one window, 12 steps, 4 sensors, one feature
    batch = model.batch(history, [str(frame.index[-1])])
    assert batch.history.shape == (1, 12, 4, 1)
    with torch.no_grad():
        forecast = model.model(batch)
    expected = socialx.predict(run, frame).values
    np.testing.assert_allclose(forecast.numpy(), expected, rtol=1e-6)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_a_loaded_model_refuses_other_shapes(run: Path) -> None:
    model = socialx.load_model(str(run))
    with pytest.raises(ValueError, match=r"history has the shape \(1, 12, 3, 1\), and the model takes \(1, 12, 4, 1\)"):
        model.batch(np.zeros((1, 12, 3, 1)), ["2012-05-04 09:15"])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda data, run: socialx.train("nowhere.h5", run_dir="x"), "nowhere.h5"),
        (lambda data, run: socialx.train(data, epochs=1), "max_epochs"),
        (lambda data, run: socialx.train(data, model={"widht": 8}), "width"),
        (lambda data, run: socialx.train(data, max_epochs="many"), "max_epochs"),
        (lambda data, run: socialx.evaluate("nowhere"), "nowhere"),
        (lambda data, run: socialx.predict(run, at="yesterday"), "not a time"),
        (lambda data, run: socialx.predict(run, sensors=["S1"]), "1 of 1 sensors are not in the forecast"),
        (lambda data, run: socialx.predict(data), str),
        (lambda data, run: socialx.load_run("nowhere"), "nowhere"),
        (lambda data, run: socialx.load_model("nowhere"), "nowhere"),
        (lambda data, run: socialx.inspect("nowhere.h5"), "nowhere.h5"),
        (lambda data, run: socialx.evaluate(run).at(minutes=15), str),
    ],
)
def test_a_wrong_call_names_the_mistake(
    data: Path, run: Path, call: Callable[[Path, Path], Any], named: str | type
) -> None:
    if named is str:
        with pytest.raises((SocialxError, AttributeError)):
            call(data, run)
        return
    with pytest.raises((SocialxError, SettingsError), match=re.escape(str(named))):
        call(data, run)
