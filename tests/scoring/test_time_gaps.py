"""A window across a time gap is no forecast of the next hour: not trained on, not scored, not saved."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import socialx as api
from socialx.core.progress import Note
from socialx.files.store.store import open_store
from socialx.scoring.tables import protocol_lines
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import edited, keep_rows, refuses, small_file, small_run, works

DAY = 288


def every(rows: int) -> np.ndarray:
    return np.arange(rows)


def without(*spans: tuple[int, int]) -> Callable[[int], np.ndarray]:
    """The rows of a file without these spans."""
    return lambda rows: np.delete(every(rows), np.concatenate([np.arange(*span) for span in spans]))


def hours(first: int, last: int) -> Callable[[int], np.ndarray]:
    """The rows of these hours of each day."""
    return lambda rows: every(rows)[(every(rows) % DAY // 12 >= first) & (every(rows) % DAY // 12 < last)]


# Which rows a file of nine days has, and by how many seconds some of them come late.
KINDS: dict[str, tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "several of one row, of hours and of days": (
        without((300, 301), (700, 760), (1000, 1600), (2300, 2302), (2420, 2460)),
        np.zeros_like,
    ),
    "nights and noons": (lambda rows: np.intersect1d(hours(6, 21)(rows), without((1500, 1512))(rows)), np.zeros_like),
    "at the first and the last rows of the parts": (
        without((3, 9), (1790, 1830), (2060, 2090), (2585, 2588)),
        np.zeros_like,
    ),
    "shorter than a step": (every, lambda rows: np.where(np.isin(rows, [200, 2100, 2400]), 120, 0)),
    "a clock that is set right": (every, lambda rows: np.where(rows >= 2400, 120, np.where(rows >= 2200, 60, 0))),
    "a time that comes twice": (every, lambda rows: np.where((rows >= 2400) & (rows < 2436), -3600, 0)),
    "the hour that spring skips": (every, lambda rows: np.where(rows >= 2400, 3600, 0)),
    "every ten minutes": (
        lambda rows: np.setdiff1d(np.arange(0, rows, 2), [*range(900, 930), *range(2350, 2400)]),
        np.zeros_like,
    ),
}


def written(
    data: Path, path: Path, rows_of: Callable[[int], np.ndarray], late: Callable[[np.ndarray], np.ndarray]
) -> Path:
    """A copy of a file with these rows alone, some of which come late by so many seconds."""
    with edited(data, path) as file:
        rows = rows_of(len(file["metadata/timestamps"]))
        keep_rows(file, rows)
        seconds = file["metadata/timestamps"][:].astype("datetime64[s]") + late(rows).astype("timedelta64[s]")
        file["metadata/timestamps"][:] = [str(time).replace("T", " ").encode() for time in seconds]
        file["metadata/timestamps_epoch"][:] += late(rows)
    return path


def said_by(task: Callable[..., object], *arguments: object, **options: object) -> dict[str, str]:
    """The notes of a task by their codes."""
    said: list[Note] = []
    task(*arguments, progress=lambda event: said.append(event) if isinstance(event, Note) else None, **options)
    return {note.message.code: note.message.text() for note in said}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine days without a gap."""
    return small_file(tmp_path_factory.mktemp("whole"), 9 * DAY)


@pytest.fixture(scope="module")
def of_whole(whole: Path) -> Path:
    """A run of them, which reads past days."""
    return small_run(whole)


@pytest.fixture(scope="module")
def gappy(whole: Path) -> tuple[Path, Path]:
    """A file with several gaps, and a run of it."""
    path = written(whole, whole.with_name("gappy.h5"), *KINDS["several of one row, of hours and of days"])
    return path, small_run(path, "gappy")


def frame_of(path: Path) -> pd.DataFrame:
    frame = pd.read_parquet(path)
    frame["time"] = frame["origin"] + pd.to_timedelta(frame["lead_minutes"], "min")
    return frame


def truth_of(path: Path, frame: pd.DataFrame) -> np.ndarray:
    """What a file says of the times and sensors of a table of forecasts, looked up by time; the first of two."""
    store = open_store(path)
    values = np.where(store.valid, store.values, np.nan)
    table = pd.DataFrame(values, pd.to_datetime(store.seconds, unit="s"), list(store.sensors.ids))
    table = table[~table.index.duplicated()].stack(future_stack=True)
    return table.reindex(pd.MultiIndex.from_frame(frame[["time", "sensor"]])).to_numpy()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_saved_stands_beside_the_reading_of_its_time(whole: Path, tmp_path: Path, name: str) -> None:
    """And ``predict`` gives the same forecast of every window that is scored."""
    path, save = written(whole, tmp_path / "file.h5", *KINDS[name]), tmp_path / "saved.parquet"
    run = small_run(path, "run", "--batch-size", "256")
    found, frame = api.evaluate(run, split="all", save_forecasts=save), frame_of(save)
    frame = frame.assign(**{column: frame[column].dt.tz_localize(None) for column in ("origin", "time")})
    np.testing.assert_array_equal(frame["truth"].to_numpy(np.float32), truth_of(path, frame).astype(np.float32))
    windows, left_out = found.protocol.windows, found.protocol.windows_left_out
    assert found.protocol.windows_across_gaps == 0
    assert sum(left_out.values()) > 0
    assert frame["origin"].nunique() == sum(windows.values())
    line = next(line for line in protocol_lines(found.protocol) if "split 70/10/20:" in line)
    counts = " / ".join(str(left_out[each]) for each in ("train", "validation", "test"))
    assert f", 0 across a time gap ({counts} " in line

    scored = frame.sort_values(["origin", "lead_minutes"], kind="stable").groupby(["origin"])["forecast"]
    of_issue = {time: values.to_numpy(np.float32) for (time,), values in scored}
    issued = pd.DatetimeIndex(sorted(of_issue))
    clocks = issued.minute % found.protocol.step_minutes
    for clock in np.unique(clocks):  # one that is set right has several
        span = issued[clocks == clock]
        alone = api.predict(run, start=span[0], end=span[-1], every=f"{found.protocol.step_minutes}min")
        made = dict(zip(pd.DatetimeIndex(alone.origin), alone.values, strict=True))
        for time in span:
            np.testing.assert_allclose(made[time].reshape(-1), of_issue[time].clip(min=0), rtol=0, atol=2e-4)


def test_predict_after_a_gap_says_what_it_lacks(gappy: tuple[Path, Path]) -> None:
    """The readings before the gap are not taken for those of the last hour."""
    path, run = gappy
    store = open_store(path)
    before = np.flatnonzero(np.diff(store.seconds) > 3600)[0]
    at = str(store.seconds[before + 4].astype("datetime64[s]"))
    assert "8 of 12 rows" in said_by(api.predict, run, path, at=at)["predict.lacking"]
    assert (api.predict(run, path, at=at).readings <= 4).all()


def test_a_whole_file_loses_no_window(of_whole: Path, whole: Path, tmp_path: Path) -> None:
    """The jitter of a clock is no gap."""
    found = api.evaluate(of_whole).protocol
    assert (sum(found.windows.values()), found.windows_left_out) == (9 * DAY - 23, {})
    assert [line for line in protocol_lines(found) if line.endswith(", 0 across a time gap")]
    path = written(whole, tmp_path / "file.h5", every, lambda rows: rows * 7 % 4)
    assert api.evaluate(of_whole, data=path).protocol.windows_left_out == {}


def test_every_question_sees_the_same_windows(gappy: tuple[Path, Path], tmp_path: Path) -> None:
    path, run = gappy
    other = Path(shutil.copytree(run, tmp_path / "other"))
    found = api.evaluate([run, other], baselines=True, by=("hour", "weekday", "sensor"), drift=True, intervals=True)
    compared = api.evaluate([run, other], split="all", compare=True)
    experiment = open_forecasting(run, ConfigLayers()).experiment
    store, starts = experiment.data.store, experiment.data.windows.test
    assert (np.diff(store.seconds[starts[:, None] + np.arange(24)]) == 300).all()
    count = int(store.valid[starts[:, None] + np.arange(12, 24)].sum())
    seen = [model.overall().count for model in found.models.values()]
    seen += [sum(row.count for row in rows) for tables in found.by.values() for rows in tables.values()]
    seen += [row.count for row in found.coverage[str(run)]["avg_speed"] if row.minutes is None]
    seen += [sum(day.count for day in found.drift[str(run)].days), api.explain(run, split="test").count]
    assert (set(seen), compared.difference.rows[-1].difference) == ({count}, 0)
    assert api.report(run, output=tmp_path / "report.html").evaluation[str(run)] == found[str(run)]
    windows = found.protocol.windows
    assert api.load_run(run).protocol.windows == windows
    assert works("doctor", "--data", path).stdout.count(" / ".join(f"{each:,}" for each in windows.values()))


@pytest.mark.parametrize("mode", ["on_device", "sharded", "workers"])
def test_every_way_of_loading_serves_the_same_windows(gappy: tuple[Path, Path], mode: str) -> None:
    _, run = gappy
    found = api.evaluate(run, loader={"mode": mode, "num_workers": 0 if mode == "workers" else None})
    assert found[str(run)] == api.evaluate(run)[str(run)]


def test_the_copied_reading_of_a_gap_is_not_scored(whole: Path, tmp_path: Path) -> None:
    """Readings that jump over each night: windows across it would be the worst of all, and there is none."""
    path = written(whole, tmp_path / "file.h5", hours(6, 18), np.zeros_like)
    with edited(path, tmp_path / "jumps.h5") as file:
        days = np.arange(len(file["data/features"])) // 144
        file["data/features"][:] = (20 + 10 * (days % 5)).astype(np.float32)[:, None, None]
    assert api.evaluate(baselines=True, data=tmp_path / "jumps.h5")["naive"].overall().mae == 0


def test_training_says_what_it_leaves_out(gappy: tuple[Path, Path], tmp_path: Path) -> None:
    path, run = gappy
    left_out = api.load_run(run).protocol.windows_left_out
    said = said_by(api.train, path, max_epochs=1, run_dir=tmp_path / "run", preset="mlp-small")
    assert said["train.windows-left-out"].startswith(f"{path}: {left_out['train']} ")


def older(run: Path, folder: Path, crossed: int) -> Path:
    """The run as one from before would be: with the windows across gaps."""
    copy = Path(shutil.copytree(run, folder / "older"))
    content = json.loads((copy / "protocol.json").read_text())
    del content["windows_left_out"], content["sha256"]
    content["windows_across_gaps"] = crossed
    (copy / "protocol.json").write_text(json.dumps(content))
    return copy


@pytest.mark.slow
def test_an_older_run_that_was_trained_across_gaps_says_so(gappy: tuple[Path, Path], tmp_path: Path) -> None:
    _, run = gappy
    before = older(run, tmp_path, 1234)
    done = works("evaluate", before, run, "--compare", "--split", "all")
    assert "fit.across-gaps" in done.codes
    assert done.stderr.count("a time gap") == len(re.findall(f"{before}: .* 1,234 windows ", done.stderr)) == 1
    assert api.evaluate(before)[str(before)] == api.evaluate(run)[str(run)]
    for each in (before, run):
        assert api.train(resume=Path(shutil.copytree(each, tmp_path / f"on-{each.name}")), max_epochs=2).best


def test_a_part_that_is_all_gaps_is_refused_with_the_reason(whole: Path, tmp_path: Path) -> None:
    path = written(whole, tmp_path / "file.h5", lambda rows: every(rows)[every(rows) % 16 > 0], np.zeros_like)
    with refuses("data.too-short") as caught:
        api.evaluate(baselines=True, data=path)
    assert re.search(" train .* time gap", str(caught.value))


def bay(whole: Path, path: Path, first: str, jump_s: int, ids: tuple[str, ...]) -> Path:
    """A file of some sensors whose clock is put forward after 1,500 rows."""
    begin = np.datetime64(first, "s").astype(np.int64)
    with edited(whole, path) as file:
        rows = np.arange(len(file["metadata/timestamps"]))
        seconds = begin + 300 * rows + np.where(rows >= 1500, jump_s, 0)
        texts = [str(time).replace("T", " ").encode() for time in seconds.astype("datetime64[s]")]
        file["metadata/timestamps"][:] = texts
        old = file["metadata/vdids"][:]
        file["metadata/vdids"][:] = np.array(ids, "S64")
        for before, now in zip(old, ids, strict=True):
            file["metadata/vd_info"].move(before.decode(), now)
    return path


BAY, OTHERS = ("400001", "400017", "400030", "400040"), ("1", "2", "3", "4")
BEGINS = str(np.datetime64("2017-03-12T03:00") - np.timedelta64(1512 * 5, "m"))  # so that row 1500 follows 01:55


@pytest.mark.parametrize(
    ("first", "jump_s", "ids", "kept"),
    [
        (BEGINS, 3600, BAY, 23),
        (BEGINS, 3600, OTHERS, 0),  # another network
        (BEGINS, 7200, BAY, 0),  # more than the hour is missing
        ("2018-03-05T00:00", 3600, BAY, 0),  # another gap
    ],
)
@pytest.mark.parametrize("split", ["canonical", "strict"])
def test_windows_over_the_hour_that_pems_bay_skips_stay_as_published(
    whole: Path, tmp_path: Path, first: str, jump_s: int, ids: tuple[str, ...], kept: int, split: str
) -> None:
    path = bay(whole, tmp_path / "bay.h5", first, jump_s, ids)
    protocol = api.evaluate(baselines=True, data={"path": path, "split_method": split}).protocol
    kept = kept if split == "canonical" else 0
    assert (protocol.windows_across_gaps, sum(protocol.windows_left_out.values())) == (kept, 23 - kept)
    if kept:
        assert sum(protocol.windows.values()) == 9 * DAY - 23
        assert [line for line in protocol_lines(protocol) if line.endswith(", 23 across a time gap")]
