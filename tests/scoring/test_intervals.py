"""Prediction intervals: the ranks of the definition, nested levels, honest coverage, and the file in the run folder."""

import itertools
import json
import math
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

import socialx as api
from socialx.core.batch import Target
from socialx.core.errors import SettingsError, SocialxError
from socialx.core.progress import Epoch
from socialx.core.sealed_tensors import fingerprint
from socialx.data.source import Arrays
from socialx.scoring import intervals as module
from socialx.scoring.adaptation import free_flow_speeds
from socialx.scoring.intervals import (
    LEAST,
    LEVELS,
    SHARES,
    ConformalIntervals,
    RunningCoverage,
    SignedErrors,
    bounds,
    bounds_by_group,
    congestion_groups,
)
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import SMALL, refused, refuses, small_file, small_run, works
from tests.networks import CPU, example
from tests.protocols import protocol

K = len(SHARES) + 1
AT = "2012-05-04 07:00"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(small_file(tmp_path_factory.mktemp("data"), 700))


def made(errors: np.ndarray, free_flow: np.ndarray, usual: np.ndarray, targets: tuple[str, ...]) -> ConformalIntervals:
    """Intervals of errors and forecasts [W,P,N,G]."""
    sums = SignedErrors(torch.from_numpy(free_flow), len(errors), errors.shape[1])
    values = np.where(np.isnan(errors), 0, usual + errors)
    target = Target(torch.from_numpy(values), torch.from_numpy(~np.isnan(errors)))
    sums.update(torch.from_numpy(usual), example().batch, target)
    (lower, upper), count = sums.compute()
    assert count == np.isfinite(errors).sum()
    ids = tuple(f"s{i}" for i in range(errors.shape[2]))
    table = torch.from_numpy(np.concatenate([free_flow, np.median(free_flow, axis=0, keepdims=True)]))
    units = dict.fromkeys(targets, "mph")
    scored = protocol(horizon=errors.shape[1], sensors=len(ids), inputs=units, targets=units)
    rest = (torch.from_numpy(lower), torch.from_numpy(upper), "w", scored, count)
    return ConformalIntervals(ids, table, *rest)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=500), st.integers(0, 5))
def test_the_ends_are_the_errors_of_these_ranks(errors: list[float], missing: int) -> None:
    """ceil((n + 1) q) of the sorted errors, with q = (1 + level) / 2 from below, and the same from above."""
    (lower, upper), count = bounds(np.array([*errors, *[math.nan] * missing], np.float32)[:, None])
    ascending, n = sorted(np.float32(errors)), len(errors)
    assert count == n
    for place, percent in enumerate(LEVELS):
        rank = math.ceil((n + 1) * (100 + percent) / 200 - 1e-9)
        expected = (ascending[n - rank], ascending[rank - 1]) if rank <= n else (-math.inf, math.inf)
        assert (lower[place, 0], upper[place, 0]) == expected


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.floats(0, 1),
    st.sampled_from([("avg_speed",), ("temperature", "flow")]),
)
def test_a_wider_level_contains_a_narrower(seed: int, windows: int, missing: float, targets: tuple[str, ...]) -> None:
    rng = np.random.default_rng(seed)
    shape = (windows, 2, 3, len(targets))
    forecast = rng.uniform(-5, 70, shape).astype(np.float32)
    errors = rng.standard_cauchy(shape).astype(np.float32).round(rng.integers(0, 3))  # with equal ones
    errors[rng.random(shape) < missing] = np.nan
    found = made(errors, rng.uniform(0, 70, (3, len(targets))).astype(np.float32), forecast, targets)
    levels = [level for level in np.arange(0.5, 0.991, 0.01).round(2) if level <= found.widest_level]
    new = torch.from_numpy(rng.uniform(-5, 90, (5, 2, 3, len(targets))).astype(np.float32))
    for (low, high), (wider_low, wider_high) in itertools.pairwise([found.apply(new, level) for level in levels]):
        assert (wider_low <= low).all()
        assert (low <= high).all()
        assert (high <= wider_high).all()
    for level in (found.widest_level + 0.001, 0.49, math.nan, "90%", [0.5, 0.9]):
        with refuses("intervals.level", SettingsError):
            found.apply(new, level)


def test_a_sensor_with_few_errors_in_a_group_has_the_bounds_of_all_sensors() -> None:
    rng = np.random.default_rng(0)
    errors = rng.normal(0, 1, (900, 3)).astype(np.float32)
    groups = rng.integers(0, K - 1, errors.shape).astype(np.uint8)  # the last group has none
    groups[:, 1] = K - 2
    groups[: LEAST - 1, 1] = 0  # one too few
    errors[groups[:, 2] == 1, 2] = np.nan
    found = bounds_by_group(errors, groups)
    for group in range(K):
        pooled = errors[groups == group]
        of_all = bounds((pooled if np.isfinite(pooled).sum() >= LEAST else errors).reshape(-1, 1))[0][..., 0]
        np.testing.assert_array_equal(found[:, :, group, -1], of_all)
        for sensor in range(3):
            own = errors[groups[:, sensor] == group, sensor]
            own = own[np.isfinite(own)]
            expected = bounds(own[:, None])[0][..., 0] if len(own) >= LEAST else of_all
            np.testing.assert_array_equal(found[:, :, group, sensor], expected)
    assert np.array_equal(found[:, :, 0, 1], found[:, :, 0, -1])
    assert not np.array_equal(found[:, :, K - 2, 1], found[:, :, K - 2, -1])


def test_coverage_is_the_level_where_errors_come_from_one_source() -> None:
    """Errors four times as large in congestion: each group has its level, and 0.91 gets the stored 0.95."""
    rng = np.random.default_rng(1)
    forecast = rng.uniform(10, 60, (6000, 2, 3, 1)).astype(np.float32)
    errors = (rng.gumbel(0, 1, forecast.shape) * np.where(forecast < 30, 4, 1)).astype(np.float32)
    half = 3000
    found = made(errors[:half], np.full((3, 1), 60, np.float32), forecast[:half], ("temperature",))
    new, truth = torch.from_numpy(forecast[half:]), forecast[half:] + errors[half:]
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        low, high = (end.numpy() for end in found.apply(new, level))
        inside = (low <= truth) & (truth <= high)
        for part in (slice(None), forecast[half:] < 30, forecast[half:] > 50):
            assert inside[part].mean() == pytest.approx(level, abs=0.02)
    ends = zip(found.apply(new, 0.91), found.apply(new, 0.95), strict=True)
    assert all(torch.equal(one, other) for one, other in ends)


@pytest.mark.parametrize("windows", [60, 2000])
def test_a_probability_is_read_between_the_ends_of_the_intervals(windows: int) -> None:
    """Few errors have no quantile of a wide level, and equal errors make the distribution jump."""
    rng = np.random.default_rng(windows)
    forecast = rng.uniform(20, 70, (windows, 4, 3, 1)).astype(np.float32)
    errors = (rng.gumbel(0, 3, forecast.shape) - 0.2 * (forecast - 45)).round(1).astype(np.float32)
    found = made(errors, np.full((3, 1), 60, np.float32), forecast, ("temperature",))
    new = torch.from_numpy(rng.uniform(20, 70, (5, 4, 3, 1)).astype(np.float32))
    levels = [percent for percent in LEVELS if percent <= 100 * found.widest_level]
    assert (len(levels) == len(LEVELS)) == (windows > LEAST)
    groups, probabilities = congestion_groups(new, found.free_flow[:-1]), found.probability_below(new, 45.2)
    for w, p, n in np.ndindex(5, 4, 3):
        steps, ends = range(p - min(p, 3 - p), p + min(p, 3 - p) + 1), []
        for sign, table in ((-1, found.lower.double()), (1, found.upper.double())):
            for place, percent in enumerate(levels):
                near = np.mean([table[place, groups[w, q, n, 0], q, n, 0].item() for q in steps])
                ends.append((0.5 + sign * percent / 200, new[w, p, n, 0].item() + near))
        shares, values = zip(*sorted(ends), strict=True)
        assert probabilities[w, p, n, 0].item() == pytest.approx(np.interp(45.2, values, shares), abs=1e-5)
    older = replace(found, lower=found.lower[len(module.NARROW) :], upper=found.upper[len(module.NARROW) :])
    assert torch.equal(older.apply(new, 0.6)[0], found.apply(new, 0.6)[0])
    with refuses("below.older"):
        older.probability_below(new, 45.2)
    for threshold in (0.0, math.inf, math.nan, "30 mph", [30]):
        with refuses("below.threshold", SettingsError):
            module.check_threshold(threshold)
    with refuses("below.targets", SettingsError):
        module.check_threshold(30.0, ("speed", "flow"))


def test_groups_begin_at_these_shares_of_the_free_flow_speed() -> None:
    free = torch.tensor([[60.0], [0.0]])
    forecast = torch.tensor([29.9, 30.0, 44.9, 45.0, 55.1, 55.3, 90.0]).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 1)
    found = congestion_groups(forecast, free)[:, 0, :, 0]
    assert (found[:, 0].tolist(), set(found[:, 1].tolist())) == ([0, 1, 1, 2, 2, 3, 3], {K - 1})


@pytest.mark.parametrize("every", [1, 3, 5])
def test_a_large_part_keeps_the_errors_of_every_third_window(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = np.random.default_rng(2).normal(0, 1, (40, 2, 3, 1)).astype(np.float32)
    monkeypatch.setattr(module, "KEPT_BYTES", -(-errors.size * module.ENTRY_BYTES // every))
    sums = SignedErrors(torch.full((3, 1), 60.0), 40, 2)
    padded = np.concatenate([errors, errors[[-1, -1]] + 1])  # the last batch of 7 repeats a window
    for first in range(0, 42, 7):
        part = torch.from_numpy(padded[first : first + 7])
        sums.update(torch.zeros_like(part), example().batch, Target(part, torch.ones_like(part, dtype=torch.bool)))
    np.testing.assert_array_equal(sums.errors, errors[::every])
    assert sums.errors.nbytes + sums.groups.nbytes <= module.KEPT_BYTES + 2 * 3 * module.ENTRY_BYTES


def test_coverage_and_width_are_those_of_every_reading() -> None:
    rng = np.random.default_rng(3)
    forecast = rng.uniform(0, 70, (500, 12, 5, 1)).astype(np.float32)
    errors = rng.normal(0, 5, forecast.shape).astype(np.float32)
    found = made(errors, np.full((5, 1), 60, np.float32), forecast, ("avg_speed",))
    batch, target = example(batch_size=8)
    valid = rng.random(target.values.shape) < 0.7
    valid[-1] = False  # a window that pads the batch
    new, truth = forecast[:8], target.values.numpy()
    sums = RunningCoverage(found, CPU)
    for part in (slice(0, 3), slice(3, 8)):
        sums.update(torch.from_numpy(new[part]), batch, Target(target.values[part], torch.from_numpy(valid[part])))
    (rows,) = sums.compute(5)
    assert [row.level for row in rows[::13]] == [0.5, 0.8, 0.9]
    assert [row.minutes for row in rows[:13]] == [*range(5, 65, 5), None]
    for row in rows:
        step = slice(None) if row.minutes is None else slice(row.minutes // 5 - 1, row.minutes // 5)
        low, high = (end.numpy()[:, step] for end in found.apply(torch.from_numpy(new), row.level))
        ok, y = valid[:, step], truth[:, step]
        assert (row.count, row.share) == (ok.sum(), pytest.approx(((low <= y) & (y <= high))[ok].mean()))
        assert row.width == pytest.approx((high - low)[ok].mean(), rel=1e-6)
        assert low.min() >= 0


def test_sensors_are_found_by_id_and_unknown_ones_have_the_bounds_of_all() -> None:
    rng = np.random.default_rng(4)
    forecast = rng.uniform(0, 70, (900, 2, 3, 1)).astype(np.float32)
    errors = (rng.normal(0, 1, forecast.shape) * np.arange(1, 4)[:, None]).astype(np.float32)
    found = made(errors, np.float32([[50], [60], [65]]), forecast, ("avg_speed",))
    other = found.for_sensors(("s2", "new", "s0"), CPU)
    new = torch.from_numpy(rng.uniform(0, 70, (4, 2, 3, 1)).astype(np.float32))
    low, high = other.apply(new, 0.9)
    for place, column in ((0, 2), (2, 0)):
        own = found.apply(new[:, :, [place] * 3], 0.9)
        assert torch.equal(low[:, :, place], own[0][:, :, column])
        assert torch.equal(high[:, :, place], own[1][:, :, column])
    assert torch.equal(other.lower[..., 1, :], found.lower[..., -1, :])
    assert other.free_flow[:, 0].tolist() == [65, 60, 50, 60]


def test_the_free_flow_speed_is_a_percentile_of_the_training_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_forecasting(run, ConfigLayers()).experiment.data
    readings = list(data.training_readings())
    values = np.concatenate([np.where(valid, values, np.nan) for values, valid, _ in readings])
    np.testing.assert_array_equal(free_flow_speeds(data), np.nanpercentile(values, 95, axis=0, method="lower"))
    monkeypatch.setattr("socialx.scoring.adaptation.FREE_FLOW_BYTES", -(-values.nbytes // 3))
    np.testing.assert_array_equal(free_flow_speeds(data), np.nanpercentile(values[::3], 95, axis=0, method="lower"))


def test_a_sensor_without_readings_has_the_free_flow_speed_of_the_median_of_the_others() -> None:
    values = np.tile(np.float32([50, 0, 60, 71]), (40, 1))[..., None]
    source = Arrays(values, values > 0, 300 * np.arange(40))
    speeds = free_flow_speeds(SimpleNamespace(target_source=source, training_rows=slice(0, 40)))
    assert speeds[:, 0].tolist() == [50, 60, 60, 71]


def test_a_forecast_that_is_not_finite_is_refused() -> None:
    sums = SignedErrors(torch.full((3, 1), 60.0), 4, 2)
    values = torch.zeros(4, 2, 3, 1)
    values[2, 1, 1] = math.inf
    with refuses("score.overflow"):
        sums.update(values, example().batch, Target(values, values == 0))


def intervals_of(run: Path) -> ConformalIntervals:
    """What the folder has for its weights."""
    return open_run(run).read_intervals(RunFolder(run).read_weights().fingerprint)


def described(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, which has them in any order."""
    content = path.read_bytes()
    found: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return found


def test_calibrate_writes_what_training_wrote(run: Path) -> None:
    path = run / "intervals.safetensors"
    first, tensors = described(path), load_file(path)
    path.unlink()
    result = works("calibrate", run)
    assert described(path) == first
    assert all(torch.equal(each, tensors[name]) for name, each in load_file(path).items())
    assert f"socialx predict {run} --interval 0.9" in result.stdout
    found = intervals_of(run)
    assert found.sensors == open_run(run).sensors
    assert f"{found.errors:,} errors of {found.protocol.windows['validation']} " in result.stdout


def test_a_training_that_goes_on_writes_those_of_its_new_weights(run: Path) -> None:
    old = intervals_of(run).weights
    works("train", "--resume", run, "--max-epochs", "2")
    assert intervals_of(run).weights != old
    data = open_forecasting(run, ConfigLayers()).experiment.data.store.path
    works("train", "--data", data, "--run-dir", run, "--overwrite", "--max-epochs", "1", *SMALL)
    assert intervals_of(run).weights == old  # it clears them with the rest


def test_an_interrupted_training_has_no_intervals(trained: Path, tmp_path: Path) -> None:
    """Ctrl-C in the second epoch, as the loop sees it."""
    data = open_forecasting(trained, ConfigLayers()).experiment.data.store.path
    model = {"width": 8, "blocks": 1, "slstm_at": ()}
    stop = lambda event: signal.raise_signal(signal.SIGINT) if isinstance(event, Epoch) else None  # noqa: E731
    run = api.train(data, model=model, trainer={"max_epochs": 3}, run_dir=tmp_path / "run", progress=stop)
    assert run.interrupted
    assert (run.path / "best.safetensors").exists()
    assert not (run.path / "intervals.safetensors").exists()


@pytest.mark.parametrize(("how", "code"), [("other weights", "run.old-intervals"), ("no file", "run.no-intervals")])
def test_intervals_that_are_not_there_or_of_other_weights_are_made_anew(how: str, code: str, run: Path) -> None:
    folder = RunFolder(run)
    if how == "no file":
        (folder.path / "intervals.safetensors").unlink()
        with pytest.raises(SocialxError, match=r"socialx.calibrate\("):
            api.predict(run, interval=0.9)
    else:
        weights = folder.read_weights()
        weights.state["head.2.bias"][0] += 1
        folder.write_weights(weights.state, 1, 1.0)
    for words in ("predict --interval 0.9", "evaluate --intervals", "evaluate --below 9"):
        command, *options = words.split()
        assert (error := refused(command, run, *options)).code == code
        assert error.endswith(f"  try: socialx calibrate {run}\n")
    works("predict", run)
    works("calibrate", run)
    works("predict", run, "--interval", "0.9")


@pytest.mark.parametrize("level", ["0.995", "0.3", "90", "nan"])
def test_a_level_out_of_reach_is_one_line(level: str, run: Path) -> None:
    assert (error := refused("predict", run, "--interval", level, code=2)).code == "intervals.level"
    assert "from 0.5 to 0.99" in error
    assert refused("evaluate", run, "--below", f"-{level}", code=2).code == "below.threshold"


def test_every_bit_of_the_intervals_counts(run: Path) -> None:
    path, weights = run / "intervals.safetensors", RunFolder(run).read_weights().fingerprint
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in (*range(0, header, 31), *range(header, len(content), (len(content) - header) // 40)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with refuses("tensors.torn") as caught:
            open_run(run).read_intervals(weights)
        assert path.name in str(caught.value)


def foreign(run: Path, about: dict[str, str], **tensors: torch.Tensor) -> None:
    """Intervals that somebody else made, with their right sha256."""
    path = run / "intervals.safetensors"
    old = described(path)
    del old["sha256"]
    new, text = {**load_file(path), **tensors}, {**old, **about}
    path.write_bytes(save(new, {**text, "sha256": fingerprint(new, json.dumps(text, sort_keys=True))}))


@pytest.mark.parametrize("how", ["crossing", "nan", "shape", "type", "horizon", "sensors", "schema", "errors"])
def test_intervals_that_no_calibration_makes_are_refused(how: str, run: Path) -> None:
    tables, about = load_file(run / "intervals.safetensors"), described(run / "intervals.safetensors")
    lower, upper, short = tables["lower"], tables["upper"], {**json.loads(about["protocol"]), "horizon": 6}
    tensors, about = {
        "crossing": ({"lower": lower.flip(0)}, {}),
        "nan": ({"upper": upper.index_fill(0, torch.tensor([3]), math.nan)}, {}),
        "shape": ({"upper": upper[:, :2]}, {}),
        "type": ({"free_flow": tables["free_flow"].double()}, {}),
        "horizon": ({"lower": lower[:, :, :6], "upper": upper[:, :, :6]}, {"protocol": json.dumps(short)}),
        "sensors": ({}, {"sensors": "5"}),
        "schema": ({}, {"schema": "socialx.intervals/9"}),
        "errors": ({}, {"errors": "many"}),
    }[how]
    foreign(run, about, **{name: tensor.contiguous() for name, tensor in tensors.items()})
    assert (error := refused("predict", run, "--interval", "0.9")).code == "tensors.torn"
    assert "intervals.safetensors" in error


def test_every_output_of_a_forecast_holds_its_interval(run: Path, tmp_path: Path) -> None:
    found = api.predict(run, start="2012-05-04 06:00", end="2012-05-04 08:00", every="30min", interval=0.8, below=55)
    assert (found.lower >= 0).all()
    assert (found.lower < found.upper).all()
    low, high = intervals_of(run).apply(torch.from_numpy(found.values), 0.8)
    np.testing.assert_array_equal(found.lower, low.numpy())
    np.testing.assert_array_equal(found.upper, high.numpy())
    frame = found.to_frame()
    names = ["origin", "sensor", "time", "lead_minutes", "forecast", "lower", "upper", "probability_below"]
    assert list(frame.columns) == [*names, "unit", "input_status"]
    one = frame[(frame.sensor == found.sensors[2]) & (frame.origin == frame.origin.unique()[1])]
    np.testing.assert_array_equal(one["upper"].to_numpy(np.float32), found.upper[1, :, 2, 0])
    for name in ("f.csv", "f.h5"):
        found.write(tmp_path / name)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "f.csv")[names[4:]], frame[names[4:]], atol=5e-5)
    np.testing.assert_array_equal(frame["probability_below"], found.probability.transpose(0, 2, 1, 3).ravel())
    with h5py.File(tmp_path / "f.h5") as file:
        np.testing.assert_array_equal(file["lower"][:], found.lower)
        np.testing.assert_array_equal(file["probability_below"][:], found.probability)
        assert (file.attrs["interval"], file.attrs["below"]) == (0.8, 55)
    printed = json.loads(works("predict", run, "--at", AT, "--interval", "0.8", "--below", "55", "--json").stdout)
    again = api.predict(run, at=AT, interval=0.8, below=55)
    assert (printed["interval"], printed["below"]) == (found.interval, found.below) == (0.8, 55)
    np.testing.assert_allclose(printed["probability_below"]["avg_speed"], again.probability[..., 0])
    np.testing.assert_allclose(printed["upper"]["avg_speed"], again.upper[..., 0])
    part = found.select(found.sensors[2:0:-1]).first_steps(1800)
    np.testing.assert_array_equal(part.lower, found.lower[:, :6, [2, 1]])
    np.testing.assert_array_equal(part.probability, found.probability[:, :6, [2, 1]])
    without = api.predict(run, at=AT)
    assert {without.interval, without.lower, without.upper, without.below, without.probability} == {None}
    assert not {"interval", "below", *names[5:]} & {*without.to_frame().columns, *without.as_dict()}


def test_the_table_and_the_picture_show_the_range(run: Path, tmp_path: Path) -> None:
    found = api.predict(run, at=AT, interval=0.9, below=55)
    value, low, high = (each[0, 5, 0, 0] for each in (found.values, found.lower, found.upper))
    result = works("predict", run, "--at", AT, "--interval", "0.9", "--below", "55")
    last = found.probability[-1, ..., 0]
    assert f"{value:.1f} ({low:.0f}-{high:.0f})" in result.stdout
    assert "with 90 % intervals and the probability below 55" in result.stdout
    assert [row["probability below 55"] for row in found.table()] == pytest.approx(last.max(axis=0).tolist())
    step, column = np.unravel_index(last.argmax(), last.shape)
    assert f"{100 * last[step, column]:.0f} % at {5 * (step + 1)} min" in result.stdout
    for forecast, there in ((found, True), (replace(found, interval=None, lower=None, upper=None), False)):
        forecast.plot(tmp_path / "out.svg", [found.sensors[0]])
        text = (tmp_path / "out.svg").read_text()
        assert ("90 % prediction interval" in text, "PolyCollection" in text) == (there, there)  # the band


def test_evaluate_says_how_often_the_intervals_hold(run: Path) -> None:
    printed = works("evaluate", run, "--intervals", "--split", "validation").stdout
    assert "prediction intervals" in printed
    rows = json.loads(works("evaluate", run, "--intervals", "--split", "validation", "--json").stdout)["intervals"]
    rows = {(row["level"], row["minutes"]): row for row in rows[str(run)]["avg_speed"]}
    for level in (0.5, 0.8, 0.9):  # on the errors that they are made of: about the level
        assert level - 0.01 <= rows[level, None]["share"] < level + 0.03
        assert f"{rows[level, 60]['share']:.1%}" in printed
    section = printed.partition("prediction intervals")[2]
    levels = [line.split("│")[1].strip() for line in section.splitlines() if line.count("│") == 4]
    assert [level for level in levels if level] == ["50%", "80%", "90%"]
    assert rows[0.5, None]["width"] < rows[0.8, None]["width"] < rows[0.9, None]["width"]
    assert api.evaluate([run]).coverage == {}


def test_evaluate_scores_the_probabilities_beside_the_past_frequency(run: Path) -> None:
    """As every window is forecast alone; a time of week without a training row has the frequency of the sensor."""
    data = open_forecasting(run, ConfigLayers()).experiment.data
    seconds, trained = data.store.seconds, data.training_rows.stop
    start, *_, end = seconds[data.forecast_rows("test")[0] - 1].astype("datetime64[s]").astype(str)
    found = api.predict(run, start=start, end=end, every="5min", below=60)
    rows = np.searchsorted(seconds, found.times.astype("datetime64[s]").astype(np.int64))
    values, valid = data.store.read(slice(0, len(seconds)))
    fell = pd.DataFrame(np.where(valid, values < 60, np.nan))
    keys = pd.MultiIndex.from_arrays([(seconds // 86_400 + 3) % 7 > 4, seconds % 86_400])
    table = fell[:trained].groupby(keys[:trained]).mean().reindex(keys).fillna(fell[:trained].mean())
    row = api.evaluate([run], below=60).brier[str(run)][-1]
    printed = works("evaluate", run, "--below", "60").stdout.partition("probability below 60 mph")[2]
    for score, shares in ((row.score, found.probability[..., 0]), (row.past, table.to_numpy()[rows])):
        assert score == pytest.approx(np.nanmean((shares - fell.to_numpy()[rows]) ** 2), rel=1e-5)
        assert f"{score:.4f}" in printed


def test_sensors_of_another_file_are_said_to_be_uncalibrated(run: Path) -> None:
    found = intervals_of(run)
    foreign(run, {"sensors": json.dumps(("elsewhere", *found.sensors[1:]))})
    result = works("predict", run, "--interval", "0.9")
    assert "run.intervals-of-all" in result.codes
    assert re.search(rf"1 of 4 sensors .*\({found.sensors[0]}\)", result.stderr)
