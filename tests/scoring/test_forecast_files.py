"""Forecasts in a file, of a model that nobody here knows: scored as a run is, on the windows that it has."""

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx as api
from socialx.core.errors import Message, SettingsError
from socialx.core.progress import Note
from socialx.scoring.results import ModelScores
from socialx.scoring.tables import verdicts
from tests.commands import refused, refuses, small_file, small_run, socialx, works


@pytest.fixture(scope="module")
def saved(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All forecasts of the test split of a run, as evaluate saves them."""
    path = tmp_path_factory.mktemp("saved") / "all.parquet"
    api.evaluate(trained, save_forecasts=path)
    return path


def table(saved: Path) -> pd.DataFrame:
    """The few columns that other people write."""
    return pd.read_parquet(saved)[["origin", "sensor", "lead_minutes", "forecast"]]


def told(*arguments: object, **options: object) -> tuple[api.evaluate, list[Message]]:
    said: list[Message] = []
    listen = lambda event: said.append(event.message) if isinstance(event, Note) else None  # noqa: E731
    return api.evaluate(*arguments, progress=listen, **options), said


# --- the numbers ----------------------------------------------------------------------------------------------------


def alike(found: ModelScores, scores: ModelScores, rel: float = 1e-6) -> None:
    """Batches of a file are of other sizes than those of a model, so that sums have another order."""
    for minutes in (*range(5, 65, 5), None):
        assert vars(found.by_minutes()[minutes]) == pytest.approx(vars(scores.by_minutes()[minutes]), rel=rel)


@pytest.mark.parametrize("part", ["test", "validation", "all"])
@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_saved_forecasts_have_the_scores_of_their_run(run: Path, tmp_path: Path, suffix: str, part: str) -> None:
    path = tmp_path / f"saved{suffix}"
    api.evaluate(run, split=part, save_forecasts=path)
    found, said = told([run, path], split=part, baselines=True, by=("hour", "sensor"))
    alike(found[path], found[run])
    for by in ("hour", "sensor"):
        rows = zip(found.by[str(path)][by], found.by[str(run)][by], strict=True)
        assert all((row.key, row.count) == (other.key, other.count) for row, other in rows)
        assert [row.mae for row in found.by[str(path)][by] if row.count] == pytest.approx(
            [row.mae for row in found.by[str(run)][by] if row.count], rel=1e-6
        )
    assert found.protocol.period is None
    assert not [line for line in said if str(path) in line]
    alike(api.evaluate(path, data=api.load_run(run).settings.data.path, split=part)[path], found[run])


@pytest.mark.parametrize(("suffix", "split"), [(".csv", "canonical"), (".h5", "strict"), (".parquet", "canonical")])
def test_what_predict_wrote_has_the_scores_of_its_run(data: Path, tmp_path: Path, suffix: str, split: str) -> None:
    """A CSV has four decimals of each value."""
    run = small_run(data, tmp_path / "run", "--split-method", split)
    path = tmp_path / f"made{suffix}"
    works("predict", run, "--start", "2012-05-03 01:00", "--every", "5min", "--output", path)
    of_run, of_file = api.evaluate(run)[run], api.evaluate(path, data={"path": data, "split_method": split})[path]
    alike(of_file, of_run, 1e-4 if suffix == ".csv" else 1e-6)


def with_others(frame: pd.DataFrame) -> pd.DataFrame:
    """Forecasts that were issued at times that are not scored."""
    return pd.concat([frame.assign(origin=frame["origin"] - pd.Timedelta("30D"), forecast=1e6), frame])


WAYS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "shuffled": lambda f: f.sample(frac=1, random_state=0),
    "times": lambda f: f.assign(time=f.origin + pd.to_timedelta(f.lead_minutes, "min")).drop(columns="lead_minutes"),
    "time and horizon": lambda f: f.assign(time=f.origin + pd.to_timedelta(f.lead_minutes, "min")),
    "a zone": lambda f: f.assign(origin=f.origin.dt.tz_convert("UTC")),
    "others": with_others,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_may_be_written_in_several_ways(run: Path, saved: Path, tmp_path: Path, way: str) -> None:
    path = tmp_path / "mine.csv"
    WAYS[way](table(saved)).to_csv(path, index=False)
    found = api.evaluate([run, path])
    assert found[path].overall().mae == pytest.approx(found[run].overall().mae, rel=1e-6)


def test_a_better_model_wins_and_is_no_reference(run: Path, saved: Path, tmp_path: Path) -> None:
    frame = pd.read_parquet(saved)
    frame["forecast"] = (frame["truth"] + 1).fillna(0)
    path = tmp_path / "mine.parquet"
    frame.drop(columns=["truth", "unit"]).to_parquet(path)
    found = api.evaluate([run, path], baselines=True, split="test")
    assert found[path].overall().mae == pytest.approx(1, rel=1e-5)
    assert [line for line in verdicts(found) if line.startswith(f"{path}: MAE 1 mph") and "% better" in line]
    assert not [line for line in verdicts(found) if "baseline (mine.parquet" in line]
    assert socialx("evaluate", run, path, "--fail-above", "all=0.5").exit_code == 3
    result = works("evaluate", path, "--data", api.load_run(run).settings.data.path, "--fail-above", "all=1.5")
    assert "1.0000" in result.stdout


def test_two_models_are_compared_by_days(tmp_path: Path) -> None:
    run = small_run(small_file(tmp_path, 6 * 288), tmp_path / "run", "--model", "linear")
    part = {"split": "all"}
    path = tmp_path / "saved.h5"
    api.evaluate(run, save_forecasts=path, **part)
    difference = api.evaluate([path, run], compare=True, **part).difference
    assert difference is not None
    assert (difference.first, difference.second, difference.rows[-1].difference) == (str(path), str(run), 0)


# --- what it does not have ------------------------------------------------------------------------------------------


def test_windows_that_a_file_lacks_are_left_out_for_all_models_and_said(run: Path, saved: Path, tmp_path: Path) -> None:
    frame = table(saved)
    issues = np.sort(frame["origin"].unique())
    frame = frame[frame["origin"] != issues[0]]
    one = (frame["origin"] == issues[1]) & (frame["lead_minutes"] == 5)
    frame.loc[one & (frame["sensor"] == frame["sensor"].iloc[0]), "forecast"] = np.nan
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    found, said = told([run, path], baselines=True)
    windows = len(issues)
    (part,) = [message.text() for message in said if message.code == "split.part"]
    assert part.startswith(f"{path}: {windows - 2} of {windows} windows")
    assert found.protocol.period is not None
    assert found.protocol.period.windows == windows - 2
    assert len({model.overall().count for model in found.models.values()}) == 1
    same = api.evaluate(run, start=str(issues[2] + np.timedelta64(5, "m")).replace("T", " ")[:19])
    assert (found[run], found[path].overall().mae) == (same[run], pytest.approx(same[run].overall().mae, rel=1e-6))
    printed = works("evaluate", run, path).stdout.replace("\n", " ")
    assert f"scored: the {windows - 2} windows" in printed
    assert "mine.csv" in printed.split("scored: the")[1]


def test_a_period_is_kept(run: Path, saved: Path) -> None:
    begins = str(np.sort(table(saved)["origin"].unique())[10] + np.timedelta64(5, "m")).replace("T", " ")[:19]
    found, said = told([run, saved], start=begins)
    assert found[saved] == found[run] == api.evaluate(run, start=begins)[run]
    assert not [line for line in said if str(saved) in line]


def odd(frame: pd.DataFrame, horizon: object) -> pd.DataFrame:
    """Another horizon in one row."""
    frame = frame.astype({"lead_minutes": object})
    frame.iloc[3, frame.columns.get_loc("lead_minutes")] = horizon
    return frame


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda f: f.rename(columns={"forecast": "speed"}), "given.lacks-column", "column forecast"),
        (lambda f: f.drop(columns="lead_minutes"), "given.lacks-column", "lead_minutes or time"),
        (lambda f: f.assign(sensor="S" + f["sensor"].astype(str)), "given.foreign", "4 of 4 sensors"),
        (lambda f: f.assign(unit="km/h"), "given.other-unit", "km/h, .* in mph"),
        (lambda f: f.assign(lead_minutes=f["lead_minutes"] // 5), "given.lead", "1, 2, 3 min"),
        (lambda f: f.assign(lead_minutes=f["lead_minutes"] * 2), "given.lead", "70, 80, 90 min (.|\\n)*'horizon': 24"),
        (lambda f: pd.concat([f, f.iloc[:3]]), "given.repeat", "3 "),
        (lambda f: f.assign(origin=f["origin"].dt.strftime("%d/%m/%Y %H:%M")), "given.times", "column origin"),
        (lambda f: f.assign(forecast="fast"), "given.no-numbers", "column forecast"),
        (lambda f: pd.concat([f, f["forecast"]], axis=1), "given.column-twice", "column forecast"),
        (
            lambda f: f.assign(origin=[str(t)[: 19 + 6 * (i % 2)] for i, t in enumerate(f["origin"])]),
            "given.some-offsets",
            "column origin",
        ),
        (lambda f: f[f["sensor"] != f["sensor"].iloc[0]], "split.sensors", "1 of 4 sensors"),
        (lambda f: f[f["lead_minutes"] == 15], "split.steps", "of 12 steps"),
        (lambda f: f.assign(origin=f["origin"] + pd.Timedelta("90D")), "split.no-forecast", "test split"),
        (lambda f: f.iloc[:0], "given.empty", ""),
        *(
            (lambda f, bad=bad: odd(f, bad), "given.no-numbers", "1 .* column lead_minutes")
            for bad in ("", "inf", "nan")
        ),
        (
            lambda f: odd(f.assign(time=f.origin + pd.to_timedelta(f.lead_minutes, "min")), 60),
            "given.lead-differs",
            "1 row",
        ),
        (lambda f: f.assign(target="flow"), "given.foreign", "1 of 1 targets"),
        (lambda f: f.assign(forecast=True), "given.no-numbers", "column forecast"),
    ],
)
def test_a_file_that_cannot_be_scored_is_refused(
    run: Path, saved: Path, tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], code: str, words: str
) -> None:
    path = tmp_path / "mine.csv"
    change(table(saved)).to_csv(path, index=False)
    with refuses(code) as caught:
        api.evaluate([run, path])
    assert str(path) in str(caught.value)
    assert re.search(words, str(caught.value))


def test_files_that_hold_no_forecasts_are_named(data: Path, run: Path, tmp_path: Path) -> None:
    assert (said := refused("evaluate", data, "--data", data)).code == "given.readings"
    assert "--data" in said
    assert refused("evaluate", tmp_path / "nothing.csv", "--data", data).code == "given.missing"
    (tmp_path / "text.csv").write_text("")
    (tmp_path / "text.parquet").write_text("a,b")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for path in tmp_path.iterdir():
        assert str(path) in refused("evaluate", path, "--data", data)


def test_a_file_is_never_replaced_by_the_scores_of_it(run: Path, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    table(saved).to_csv(path, index=False)
    before = path.read_bytes()
    refused("evaluate", run, path, "--save-scores", path, "--overwrite")
    assert path.read_bytes() == before


def test_what_only_a_run_has_is_not_asked_of_a_file(data: Path, run: Path, saved: Path) -> None:
    assert list(api.evaluate([run, saved], intervals=True).coverage) == [str(run)]
    with refuses("score.only-files", SettingsError):
        api.evaluate(saved, data, intervals=True)


def test_truth_values_are_no_forecasts(run: Path, saved: Path, tmp_path: Path) -> None:
    """In Parquet too, where they have a type of their own."""
    path = tmp_path / "made.parquet"
    table(saved).assign(forecast=True).to_parquet(path)
    with refuses("given.no-numbers") as caught:
        api.evaluate([run, path])
    assert "column forecast" in str(caught.value)
