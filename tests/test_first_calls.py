"""The first lines of a notebook: what people type before they read a page, right and wrong."""

import copy
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
from socialx.cli.app import COMMANDS
from socialx.core.errors import SettingsError, SocialxError
from tests.commands import refuses

TINY = {"model": {"width": 8, "blocks": 1, "slstm_at": ""}, "pooling": {"neighbours": 3}}


def frame_of(data: Path, rows: int = 40) -> pd.DataFrame:
    """The last rows of a file as people hold them: wall times x sensor ids, NaN where nothing was read."""
    store = socialx.open_store(data)
    values, valid = store.read(slice(len(store.seconds) - rows, len(store.seconds)))
    times = pd.to_datetime(store.seconds[-rows:], unit="s")
    return pd.DataFrame(np.where(valid, values, np.nan), index=times, columns=list(store.sensors.ids))


def test_one_run_is_named_by_its_path(run: Path) -> None:
    scores = socialx.evaluate(str(run))
    assert (list(scores), socialx.evaluate(run)[run].overall().mae) == ([str(run)], scores[str(run)].overall().mae)
    assert str(run) in socialx.report(str(run)).evaluation


@pytest.mark.parametrize("section", [False, True])
def test_a_file_or_the_section_of_data_comes_first(section: bool, data: Path, tmp_path: Path) -> None:
    first, rest = ({"path": str(data), "days": 1}, {}) if section else (str(data), {"days": 1})
    made = socialx.train(first, run_dir=tmp_path / "run", max_epochs=1, **rest, **TINY)
    assert (made.settings.data.days, made.settings.data.path, made.settings.trainer.max_epochs) == (1, data, 1)
    assert len(made.epochs) == 1


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


def test_what_a_result_quotes_is_escaped_on_a_page(run: Path, tmp_path: Path) -> None:
    assert "<b>" not in socialx.load_run(Path(shutil.copytree(run, tmp_path / "<b>run")))._repr_html_()


def test_a_frame_is_data(data: Path, run: Path) -> None:
    frame = frame_of(data)
    forecast = socialx.predict(run, data=frame)
    usual = socialx.predict(run, at=frame.index[-1].to_pydatetime())
    np.testing.assert_array_equal(forecast.values, usual.values)
    assert (forecast.sensors, forecast.units) == (usual.sensors, usual.units)


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
    ("wrong", "code", "named"),
    [
        (lambda f: f.rename(columns={f.columns[0]: "S1"}), "frame.other-sensors", "1 of 4 "),
        (lambda f: f.reset_index(drop=True), "frame.no-times", ""),
        (lambda f: pd.concat([f, f]), "frame.repeats", "40 "),
        (lambda f: pd.concat([f, f.iloc[:, :1]], axis=1), "frame.repeats", "1 "),
        (lambda f: f.iloc[:5], "data.below-lookback", "needs 12"),
        (lambda f: -f, "store.impossible", "below 0"),
        (lambda f: f * 10, "store.impossible", "above 124.3 mph"),
        (lambda f: f.to_numpy(), "frame.type", "ndarray "),
        (with_word, "frame.no-numbers", ""),
        (lambda f: f * np.nan, "predict.no-observation", ""),
    ],
)
def test_a_wrong_frame_is_refused(
    data: Path, run: Path, wrong: Callable[[pd.DataFrame], pd.DataFrame], code: str, named: str
) -> None:
    with refuses(code) as caught:
        socialx.predict(run, wrong(frame_of(data)))
    assert named in str(caught.value)


def test_a_loaded_model_forecasts_from_arrays(data: Path, run: Path) -> None:
    model, frame = socialx.load_model(run), frame_of(data, 12)
    inputs = frame.to_numpy()[None, :, :, None]  # one window, 12 steps, 4 sensors, one feature
    batch = model.batch(inputs, [str(frame.index[-1])])
    assert batch.inputs.shape == (1, 12, 4, 1)
    with torch.no_grad():
        forecast = model.model(batch)
    np.testing.assert_allclose(forecast.numpy(), socialx.predict(run, frame).values, rtol=1e-6)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_a_loaded_model_refuses_other_shapes(run: Path) -> None:
    model = socialx.load_model(str(run))
    with pytest.raises(ValueError, match=r"inputs .*\(1, 12, 3, 1\), .*\(1, 12, 4, 1\)"):
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
        (lambda data, run: socialx.predict(run, sensors=["S1"]), "lacks 1 of 1 sensors"),
        (lambda data, run: socialx.predict(data), str),
        (lambda data, run: socialx.load_run("nowhere"), "nowhere"),
        (lambda data, run: socialx.load_model("nowhere"), "nowhere"),
        (lambda data, run: socialx.inspect("nowhere.h5"), "nowhere.h5"),
        (lambda data, run: socialx.evaluate(run).at(minutes=15), str),
    ],
)
def test_a_wrong_call_is_told_why(data: Path, run: Path, call: Callable[[Path, Path], Any], named: str | type) -> None:
    if named is str:
        with pytest.raises((SocialxError, AttributeError)):
            call(data, run)
        return
    with pytest.raises((SocialxError, SettingsError), match=re.escape(str(named))):
        call(data, run)


def test_a_text_is_one_name_or_several_with_commas(data: Path, run: Path, tmp_path: Path) -> None:
    first, second, *_ = socialx.open_store(data).sensors.ids
    forecast = socialx.predict(run, sensors=first)
    assert forecast.sensors == (first,)
    assert socialx.predict(run, sensors=f"{second}, {first}").sensors == (second, first)
    assert forecast.select(first).sensors == (first,)
    forecast.plot(tmp_path / "one.png", first)
    assert list(socialx.evaluate(run, by="hour,sensor").by[str(run)]) == ["hour", "sensor"]
    assert socialx.load_settings("examples/demo.yaml") == socialx.load_settings(["examples/demo.yaml"])
    assert socialx.load_settings(sets="trainer.max_epochs=3").trainer.max_epochs == 3


def test_scores_are_a_frame(run: Path) -> None:
    scores = socialx.evaluate(run, baselines=True)
    frame = scores.to_frame()
    assert list(frame.columns) == ["model", "horizon", "mae", "rmse", "mape", "r2", "count", "unit"]
    assert (len(frame), set(frame["unit"])) == (5 * 12, {"mph"})
    row = frame[(frame["model"] == str(run)) & (frame["horizon"] == 15)].iloc[0]
    at = scores[run].at(minutes=15)
    assert all(row[name] == getattr(at, name) for name in ("mae", "rmse", "mape", "r2", "count"))
    assert frame["count"].sum() == sum(model.overall().count for model in scores.models.values())


@pytest.mark.parametrize(
    "call",
    [
        lambda frame, run: socialx.train(frame),
        lambda frame, run: socialx.train(data=frame),
        lambda frame, run: socialx.profile(frame),
        lambda frame, run: socialx.evaluate(run, frame),
        lambda frame, run: socialx.inspect(frame),
        lambda frame, run: socialx.backfill(frame),
        lambda frame, run: socialx.open_store(frame),
    ],
)
def test_a_frame_where_a_file_is_needed_is_refused_with_the_way_to_one(
    data: Path, run: Path, call: Callable[[pd.DataFrame, Path], Any]
) -> None:
    way = r"must be a path, not DataFrame\.\n  try: write the frame with frame\.to_csv\('FILE\.csv'\), then run socialx"
    with pytest.raises(SettingsError, match=way):
        call(frame_of(data), run)


def test_what_a_call_gives_is_one_line(data: Path, run: Path, tmp_path: Path) -> None:
    table = tmp_path / "small.csv"
    frame_of(data).to_csv(table)
    for result in [
        socialx.convert("auto", table, tmp_path / "new.h5", without_positions=True),
        socialx.append(tmp_path / "new.h5", table),
        socialx.open_store(data),
        socialx.inspect(data),
        socialx.calibrate(run),
        socialx.report(run),
        socialx.export(run, tmp_path / "model.safetensors"),
        socialx.doctor(model={"width": -1}),
    ]:
        assert re.fullmatch(r"<\w+: [^\n]+>", repr(result)), result
        assert len(repr(result)) < 300 + 3 * len(str(tmp_path))
        assert result._repr_html_().startswith("<p>")


def test_times_may_be_those_of_numpy_and_pandas(run: Path) -> None:
    usual = socialx.predict(run, start="2012-05-04 08:00", every="15min")
    for start, every in (
        (np.datetime64("2012-05-04T08:00"), pd.Timedelta("15min")),
        (pd.Timestamp("2012-05-04 08:00"), "15min"),
    ):
        np.testing.assert_array_equal(socialx.predict(run, start=start, every=every).origin, usual.origin)
    for wrong in (5, 15.5):
        with refuses("option.minutes", SettingsError) as caught:
            socialx.predict(run, start="2012-05-04 08:00", every=wrong)
        assert "every=" in str(caught.value)
        with refuses("time.unreadable", SettingsError) as caught:
            socialx.predict(run, at=wrong)
        assert "at=" in str(caught.value)


def test_what_is_no_run_is_refused_in_words(run: Path) -> None:
    forecast = socialx.predict(run).to_frame()
    for runs in (forecast, [run, forecast]):
        with refuses("call.no-run", SettingsError) as caught:
            socialx.evaluate(runs)
        assert re.search(r"not DataFrame\.\n.* frame\.to_csv\('FILE\.csv'\)", str(caught.value))
    with refuses("call.no-run", SettingsError) as caught:
        socialx.evaluate(5)
    assert "not int" in str(caught.value)


def test_a_size_is_an_argument_wherever_it_is_a_flag(data: Path) -> None:
    profile = {"steps": 2, "warmup_steps": 0, "trials": False}
    found = socialx.profile(data, preset="mlp-small", width=8, mlp_width=8, profile=profile)
    assert found.settings["model"]["encoder"] == "mlp"
    assert socialx.doctor(data, preset="huge").failures


def test_a_run_has_the_names_that_people_type(run: Path, tmp_path: Path) -> None:
    trained = socialx.load_run(run)
    assert trained.history["validation_mae"].tolist() == [row.validation_mae for row in trained.epochs]
    assert trained.model is trained.model
    for own, other in zip(trained.model.parameters(), socialx.load_model(run).parameters(), strict=True):
        assert torch.equal(own, other)
    at = "2012-05-04 08:00"
    np.testing.assert_array_equal(trained.predict(at=at).values, socialx.predict(run, at=at).values)
    assert dict(trained.evaluate(split="validation")) == dict(socialx.evaluate(run, split="validation"))
    training, validation = trained.plot(tmp_path / "curves.png").axes[0].lines
    assert training.get_ydata().tolist() == [row.train_mae for row in trained.epochs]
    assert validation.get_xdata().tolist() == [row.epoch for row in trained.epochs]
    assert (tmp_path / "curves.png").read_bytes() == trained.plot()._repr_png_()


def test_scores_have_the_names_that_people_type(run: Path) -> None:
    scores = socialx.evaluate(run, baselines=True)
    maes = {name: scores[name].overall().mae for name in scores}
    assert maes[scores.best] == min(maes.values())
    lines = {line.get_label(): line for line in scores.plot().axes[0].lines}
    assert list(lines) == list(scores.distinct_models)
    assert lines[str(run)].get_ydata()[2] == scores[run].at(minutes=15).mae
    head, _, *rows = (line.strip("| ").split(" | ") for line in scores.to_markdown().splitlines())
    assert head == ["model", "15 min", "30 min", "60 min", "all"]
    assert [row[-1] for row in rows] == [f"{maes[name]:.3f}" for name in lines]
    assert f"{maes['naive']:.3f} \\\\\n" in scores.to_latex()
    with pytest.raises(KeyError, match=f"nowhere is not scored: choose from naive, .*{run}"):
        scores["nowhere"]


def test_a_forecast_has_the_names_that_people_type(run: Path) -> None:
    forecast = socialx.predict(run)
    first, second, *_ = forecast
    assert list(forecast) == list(forecast.sensors)
    assert second in forecast
    assert forecast.shape == forecast.values.shape
    np.testing.assert_array_equal(forecast[int(second)].values, forecast.values[:, :, 1:2])
    assert forecast[[second, first]].sensors == (second, first)
    with refuses("forecast.no-sensor", SettingsError):
        forecast["S1"]
    figure = forecast.plot(sensors=second)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"Sensor {second}"]
    figure.axes[0].set_title("mine")
    assert figure._repr_png_() != forecast.plot(sensors=second)._repr_png_()  # as it is when it is shown


def test_a_name_that_is_not_offered_is_refused_with_the_one_that_is(data: Path, run: Path) -> None:
    scores, forecast = socialx.evaluate(run), socialx.predict(run)
    for owner, names in (
        (socialx, {"load": "open_store", "DataLoader": "open_", "datasets": "download", "evalute": "evaluate"}),
        (socialx.load_run(run), {"metrics": "history", "config": "settings", "epoch": "epochs"}),
        (scores, {"to_pandas": "to_frame", "to_latx": "to_latex"}),
        (scores[run], {"mae": r"overall\(\).mae"}),
        (forecast, {"mae": r"socialx.evaluate\(RUN\)", "to_pandas": "to_frame"}),
        (socialx.open_store(data), {"shape": "values.shape"}),
    ):
        for name, instead in names.items():
            with pytest.raises(AttributeError, match=f"no attribute '{name}': use {instead}"):
                getattr(owner, name)
        with pytest.raises(AttributeError, match=r"no attribute 'qqq': choose from \w+, "):
            _ = owner.qqq
    assert not hasattr(forecast, "_ipython_display_")
    assert copy.deepcopy(forecast).shape == forecast.shape


def test_each_command_is_a_function_and_config_too() -> None:
    assert all(callable(getattr(socialx, command)) for command in COMMANDS)
    assert socialx.config(preset="mlp-small", env={}).model.encoder == "mlp"


def test_all_wrong_arguments_are_named_together(data: Path) -> None:
    with refuses("settings.invalid", SettingsError) as caught:
        socialx.config(device="gpu", env={})
    assert caught.value.messages[0].remedy == "write cuda"
    with refuses("settings.no-dict") as caught:
        socialx.train(data, pooling="none", lr=1, callbacks=[print], shuffle=True)
    assert [message.remedy for message in caught.value.messages] == [
        "write pooling={'kind': 'none'}",
        *(f"did you mean {name}?" for name in ("trainer.learning_rate", "progress")),
        "",
    ]
