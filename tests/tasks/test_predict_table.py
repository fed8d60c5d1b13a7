"""``predict`` of a table: the forecast of the file that convert makes of it, told in the names that the user knows."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import FallbackWarning, SettingsError, SocialxError
from socialx.core.progress import Note, Work
from socialx.forecast.forecast import Forecast, Observed
from tests.commands import EXCERPT, LOCATIONS, ROOT, STARTS, Said, cut_csv, printed, refused, refuses, small_run, works
from tests.commands import socialx as command
from tests.data_files import write_frame
from tests.frames import IDS, places_of
from tests.older_files import v0

ROWS = 600


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder with a table and its locations; a folder of temporary files that must be empty at the end."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("COLUMNS", "1000")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    table().to_csv("export.csv")
    places_of(IDS, folder / "places.csv")
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_left(here: Path) -> object:
    before = set(here.iterdir())
    yield
    assert list((here.parent / "temporary").glob("socialx-predict-*")) == []
    assert not [each for each in here.iterdir() if each not in before and each.suffix == ".tmp"]


def table(rows: int = ROWS) -> pd.DataFrame:
    """Speeds in km/h every five minutes, some of them missing."""
    rng = np.random.default_rng(0)
    values = rng.uniform(40, 110, (rows, len(IDS))).round(1)
    values[rng.random(values.shape) < 0.05] = np.nan
    index = pd.date_range("2024-03-04 00:00", periods=rows, freq="5min", name="time")
    return pd.DataFrame(values, columns=list(IDS), index=index)


SAID = ["--meta-csv", "places.csv", "--units", "km/h", "--timezone", "Europe/Berlin"]
OPTIONS = {"meta_csv": "places.csv", "units": "km/h", "timezone": "Europe/Berlin"}


def same(one: Forecast, other: Forecast) -> None:
    """All that a forecast holds, but for the files that were read."""
    for field in fields(Forecast):
        found, wanted = (getattr(each, field.name) for each in (one, other))
        if isinstance(found, Observed):
            np.testing.assert_array_equal(found.times, wanted.times)
            found, wanted = found.values, wanted.values
        if isinstance(found, np.ndarray):
            np.testing.assert_array_equal(found, wanted)
        elif field.name != "inputs":
            assert found == wanted, field.name


def told(call: Callable[..., object], *arguments: object, **options: object) -> Said:
    """All that is said on the way: notes, names of work, warnings, and the error at the end."""
    said: list[str] = []

    def listen(event: object) -> None:
        said.append(str(event.message) if isinstance(event, Note) else str(getattr(event, "name", "")))

    with printed() as codes, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        try:
            call(*arguments, progress=listen, **options)
        except SocialxError as error:
            said += [str(error), repr(error)]
        said += [str(each.message) for each in caught]
    return Said.of("\n".join(said), codes)


# --- the numbers ----------------------------------------------------------------------------------------------------


def test_it_is_the_forecast_of_the_converted_file() -> None:
    facts = {"meta_csv": "places.csv", "units": "km/h", "timezone": "Europe/Berlin"}
    socialx.convert("auto", "export.csv", "kept/export.h5", **facts)
    found = socialx.predict("zero-shot", "export.csv", **OPTIONS)
    same(found, socialx.predict("zero-shot", "kept/export.h5"))
    assert (found.units, found.dataset, found.timezone) == (("km/h",), "export", "Europe/Berlin")


def test_it_is_so_on_the_command_line() -> None:
    works("convert", "auto", "export.csv", *SAID, "--output-h5", "kept/export.h5")
    result = works("predict", "zero-shot", "--data", "export.csv", *SAID, "--json")
    kept = works("predict", "zero-shot", "--data", "kept/export.h5", "--json")
    assert json.loads(result.stdout) == json.loads(kept.stdout)
    printed = works("predict", "zero-shot", "--data", "export.csv", *SAID).stdout
    assert printed == works("predict", "zero-shot", "--data", "kept/export.h5").stdout
    for name, data in (("one", ["export.csv", *SAID]), ("other", ["kept/export.h5"])):
        works("predict", "zero-shot", "--data", *data, "--at", "2024-03-05 08:00", "--output", f"{name}.csv")
    assert Path("one.csv").read_bytes() == Path("other.csv").read_bytes()


def test_the_settings_may_name_the_table(here: Path) -> None:
    wanted = socialx.predict("zero-shot", "export.csv", **OPTIONS)
    same(socialx.predict("zero-shot", data={"path": "export.csv"}, **OPTIONS), wanted)
    Path("mine.yaml").write_text("data:\n  path: export.csv\n")
    for words in (["--config", "mine.yaml"], ["--set", "data.path=export.csv"]):
        found = json.loads(works("predict", "zero-shot", *words, *SAID, "--json").stdout)
        np.testing.assert_array_equal(found["forecast"]["avg_speed"], wanted.values[..., 0])


def test_a_run_of_one_network_takes_a_table_of_it(here: Path) -> None:
    csv = cut_csv(here / "METR-LA.csv", 400)
    socialx.convert("auto", csv, "mine.h5", meta_csv=LOCATIONS)
    run = small_run(here / "mine.h5")
    same(socialx.predict(run, csv, meta_csv=LOCATIONS), socialx.predict(run, "mine.h5"))
    shown = works("predict", run, "--data", csv, "--meta-csv", LOCATIONS, "--at", "2012-05-04 08:00")
    assert "2012-05-04 08:00" in shown.stdout


def test_an_hdf5_file_of_pandas_is_a_table_and_its_name_is_kept_apart(here: Path) -> None:
    cut = pd.read_csv(cut_csv(here / "METR-LA.csv", 400), index_col=0)
    write_frame(here / "store.h5", list(cut.index), cut.to_numpy(), ids=tuple(cut.columns))
    before = Path("store.h5").read_bytes()
    result = works("predict", "zero-shot", "--data", "store.h5", "--meta-csv", LOCATIONS, "--units", "mph", "--json")
    assert Path("store.h5").read_bytes() == before
    done = kept(result.stderr)
    assert done[-2:] == ["--output-h5", "store_converted.h5"]
    works(*done[1:])
    same_file = works("predict", "zero-shot", "--data", "store_converted.h5", "--json")
    assert json.loads(result.stdout)["forecast"] == json.loads(same_file.stdout)["forecast"]


def test_what_the_suffix_says_does_not_matter(here: Path) -> None:
    wanted = socialx.predict("zero-shot", "export.csv", **OPTIONS).values
    (here / "named.h5").write_bytes((here / "export.csv").read_bytes())
    np.testing.assert_array_equal(socialx.predict("zero-shot", "named.h5", **OPTIONS).values, wanted)
    works("convert", "auto", "export.csv", *SAID, "--output-h5", "made.h5")
    (here / "made.h5").rename("made.csv")
    np.testing.assert_array_equal(socialx.predict("zero-shot", "made.csv").values, wanted)


# --- what is said ----------------------------------------------------------------------------------------------------


def kept(said: str) -> list[str]:
    """The words of the command that keeps the file."""
    return shlex.split(re.search(r"\n  try: (socialx convert auto .*)", said)[1])


def test_a_note_says_how_to_keep_the_file_with_what_was_typed(here: Path) -> None:
    (here / "a b").mkdir()
    (here / "export.csv").rename("a b/my export.csv")
    result = works("predict", "zero-shot", "--data", "a b/my export.csv", *SAID)
    wanted = ["socialx", "convert", "auto", "a b/my export.csv", *SAID, "--output-h5", "a b/my export.h5"]
    assert kept(result.stderr) == wanted
    works(*wanted[1:])
    assert works("predict", "zero-shot", "--data", "a b/my export.h5").stdout == result.stdout
    found = told(socialx.predict, "zero-shot", "a b/my export.csv", meta_csv="places.csv", units="km/h")
    options = "meta_csv='places.csv', units='km/h', output='a b/my export.h5'"
    assert f"socialx.convert('auto', 'a b/my export.csv', {options})" in found


def test_the_notes_of_convert_are_shown_with_commands_that_work(here: Path) -> None:
    table().assign(weekday=table().index.day_of_week, note="dry").to_csv("export.csv")
    typed = ["export.csv", *SAID]
    of_convert = works("convert", "auto", *typed, "--output-h5", "x.h5").stderr.splitlines()
    done = works("predict", "zero-shot", "--data", *typed)
    said = done.stderr
    lines = [line for line in of_convert if line.startswith("note: export.csv: ")]
    assert any("weekday" in line for line in lines), of_convert
    assert all(line in said for line in lines)
    assert ("convert.code-missing" in done.codes, "--missing none" in said) == (True, True)
    works(*kept(said)[1:])
    assert Path("export.h5").exists()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({}, "predict.old", "export.csv: .*2024-03-06 01:55:00"),
        ({"at": "2024-03-05 00:02"}, "predict.row", "export.csv .*2024-03-05 00:02:00"),
        ({"at": "2030-01-01"}, "predict.late", "export.csv .*2024-03-06"),
        ({"sensors": "nowhere"}, "forecast.no-sensor", "nowhere"),
        ({"interval": 0.9}, "intervals.source", "export.csv before"),
        ({"units": None}, "fit.other-data", "export.csv: .* mph\\."),
    ],
)
def test_nothing_names_the_temporary_file(options: dict[str, object], code: str, says: str, here: Path) -> None:
    said = told(socialx.predict, "zero-shot", "export.csv", **OPTIONS | options)
    assert code in said.codes
    assert re.search(says, said)
    assert str(here.parent / "temporary") not in said.replace(f"in {here.parent / 'temporary'}", "")
    assert "readings.h5" not in said
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (OPTIONS | options).items() if value is not None]
    done = command("predict", "zero-shot", "--data", "export.csv", *words)
    assert "readings.h5" not in done.output
    assert "Traceback" not in done.output


def test_a_command_of_a_later_failure_names_the_file_as_it_may_be_kept(here: Path) -> None:
    csv = cut_csv(here / "METR-LA.csv", 400)
    run = small_run(Path(socialx.convert("auto", csv, here / "mine.h5", meta_csv=LOCATIONS).output))
    error = command("predict", run, "--data", csv, "--meta-csv", LOCATIONS, "--at", "2012-06-27").stderr
    assert re.search(rf"{csv} .* 2012-05-04 09:15:00", error)
    assert "socialx train --data METR-LA.h5" in error


def test_a_doubt_in_the_forecast_names_the_table(here: Path) -> None:
    """A file of counts keeps its zeros, and a run of the same network was trained without."""
    csv = cut_csv(here / "METR-LA.csv", 400)
    socialx.convert("auto", csv, "mine.h5", meta_csv=LOCATIONS, missing="none")
    found = socialx.predict(small_run(here / "mine.h5"), csv, meta_csv=LOCATIONS)
    assert found.notes
    assert found.notes[0].startswith(f"{csv}: ")
    said = works("predict", here / "run", "--data", csv, "--meta-csv", LOCATIONS).stderr
    table = ["--data", csv.name, "--meta-csv", str(LOCATIONS), "--missing", "none"]
    way = shlex.join(["socialx", "predict", "run", *table])
    assert way in said
    assert "fit.missing-values" not in works(*shlex.split(way)[1:]).codes


def test_a_frame_is_named_so(data: Path, run: Path) -> None:
    from socialx.files.store.store import open_store

    store = open_store(data)
    frame = pd.DataFrame(store.values, pd.to_datetime(store.seconds, unit="s"), list(store.sensors.ids)).iloc[-40:]
    said = told(socialx.predict, run, frame)
    assert ("predict.old" in said.codes, "the frame: " in said) == (True, True)
    assert "temporary file of" not in said
    said = told(socialx.predict, run, frame, at="2012-05-04 09:02")
    assert said.codes[-1] == "predict.row"
    assert re.search(r"the frame .* 2012-05-04 09:02:00\.", said)


def test_a_frame_with_locations_is_a_table_for_a_run_of_zero_shot() -> None:
    wanted = socialx.predict("zero-shot", "export.csv", **OPTIONS)
    found = socialx.predict("zero-shot", table(), **OPTIONS)
    np.testing.assert_array_equal(found.values, wanted.values)
    found = socialx.predict("zero-shot", table().tz_localize("Europe/Berlin"), meta_csv="places.csv", units="km/h")
    np.testing.assert_array_equal(found.values, wanted.values)
    assert (found.timezone, found.units) == ("Europe/Berlin", ("km/h",))
    said = told(socialx.predict, "zero-shot", table(), **OPTIONS)
    assert "predict.copied" in said.codes
    assert re.search(r"frame .*\n.*\('auto', 'FRAME'", said)
    assert "temporary file of" not in said
    said = told(socialx.predict, "zero-shot", table().reset_index(drop=True), **OPTIONS)
    assert said.codes[-1] == "table.question"
    assert re.search("the frame: .* times", said)
    assert "temporary file of" not in said
    said = told(socialx.predict, "zero-shot", table())
    assert said.code == "frame.no-places"
    assert re.search("the frame: .*\n.* meta_csv='LOCATIONS.csv'", said)


def test_no_forecast_replaces_a_table_of_readings(here: Path) -> None:
    found = socialx.predict("zero-shot", "export.csv", **OPTIONS)
    for name in ("export.csv", "places.csv"):
        before = Path(name).read_bytes()
        with refuses("output.other-kind"):
            found.to_csv(name, overwrite=True)
        error = refused("predict", "zero-shot", "--data", "export.csv", *SAID, "--overwrite", "--output", name)
        assert (error.code, Path(name).read_bytes()) == ("output.other-kind", before)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_table_without_positions_is_refused_with_the_flag(here: Path) -> None:
    (here / "places.csv").rename(here.parent / "places.csv")  # which convert would find beside the table
    asked = command("predict", "zero-shot", "--data", "export.csv", "--units", "km/h").stderr
    way = "socialx predict zero-shot --data export.csv --channel '{sensor}' --units km/h"
    assert way in asked
    done = command(*shlex.split(way)[1:])
    other = "socialx convert auto export.csv --units km/h --channel '{sensor}' --without-positions"
    other += " --output-h5 export.h5"
    assert done.codes[-1] == "convert.no-positions"
    assert all(way in done.stderr for way in (" --meta-csv LOCATIONS.csv, ", f" {other} "))
    with refuses("convert.no-positions") as caught:
        socialx.predict("zero-shot", "export.csv", units="km/h", channel="{sensor}")
    assert all(way in str(caught.value) for way in (" meta_csv='LOCATIONS.csv', ", " socialx.convert("))
    works(*shlex.split(other)[1:])


def test_dates_with_two_answers_are_refused_with_commands_that_work(here: Path) -> None:
    days = table(60)
    days.index = days.index.strftime("%d/%m/%Y %H:%M")
    days.index.name = "time"
    days.to_csv("export.csv")
    error = command("predict", "zero-shot", "--data", "export.csv", *SAID).stderr.rstrip()
    made = command(*shlex.split(error[error.index("socialx convert") :])[1:])
    assert "--time-format" in error
    assert made.exit_code == 0, error
    works("predict", "zero-shot", "--data", "export.h5")


def test_rows_without_dates_are_refused_with_one_command(here: Path) -> None:
    np.save(here / "speeds.npy", table().fillna(0).to_numpy())
    words = ("--data", "speeds.npy", "--meta-csv", "places.csv", "--channel", "speed")
    error = command("predict", "zero-shot", *words).stderr.rstrip()
    way = "socialx convert auto speeds.npy --meta-csv places.csv --channel speed"
    way += " --first-time 'YYYY-MM-DD HH:MM:SS' --freq 5min"
    assert f"add {way} --output-h5 speeds.h5" in error


def test_a_wrong_value_of_a_flag_is_one_line(here: Path) -> None:
    for flag, value, code in (
        ("--units", "furlongs", "units.no-speed"),
        ("--timezone", "Europe/Atlantis", "option.zone"),
        ("--meta-csv", "none.csv", "file.missing"),
    ):
        result = command("predict", "zero-shot", "--data", "export.csv", "--meta-csv", "places.csv", flag, value)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, result.output
        assert (result.codes[-1], result.stdout) == (code, "")
        assert value in errors[0]


def test_a_file_of_socialx_takes_nothing_that_is_said_of_a_table(here: Path) -> None:
    works("convert", "auto", "export.csv", *SAID, "--output-h5", "made.h5")
    for flag, value, way in (
        ("--meta-csv", "places.csv", "--meta-csv places.csv"),
        ("--units", "km/h", "--units km/h"),
        ("--timezone", "Europe/Berlin", "--timezone Europe/Berlin"),
    ):
        error = refused("predict", "zero-shot", "--data", "made.h5", flag, value, code=2)
        assert error.code == "predict.option"
        assert f" socialx backfill made.h5 {way}\n" in error
        works("backfill", "made.h5", *way.split())


def test_an_older_file_of_socialx_is_one_too(here: Path) -> None:
    v0(here / "old.h5")
    assert "socialx backfill old.h5" in refused("predict", "zero-shot", "--data", "old.h5")
    assert "socialx backfill old.h5" in refused("predict", "zero-shot", "--data", "old.h5", "--units", "mph", code=2)


def test_what_is_said_of_no_table_is_refused(run: Path) -> None:
    error = refused("predict", run, "--units", "mph", code=2)
    assert (error.code, "--data FILE.csv" in error) == ("predict.option", True)
    with refuses("predict.option", SettingsError) as caught:
        socialx.predict(run, table(), meta_csv="places.csv")
    assert all(fact in str(caught.value) for fact in ("meta_csv='places.csv'", " a frame "))


def test_what_is_no_run_or_no_file_is_told_before_a_table_is_read(here: Path) -> None:
    assert refused("predict", here, "--data", "export.csv", *SAID).code == "run.not"
    error = refused("predict", "zero-shot", "--data", "none.csv", *SAID)
    assert (error.code, "none.csv: " in error) == ("file.missing", True)
    forecast = here / "forecast.h5"
    works("predict", "zero-shot", "--data", "export.csv", *SAID, "--output", forecast)
    assert refused("predict", "zero-shot", "--data", forecast).code == "convert.forecast-file"


def test_a_full_or_missing_temporary_folder_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **options: object) -> object:
        raise FileNotFoundError(2, "nothing usable")

    with monkeypatch.context() as patch:
        patch.setattr("socialx.tasks.user_data.TemporaryDirectory", fails)
        error = refused("predict", "zero-shot", "--data", "export.csv", *SAID)
    assert error.code == "predict.no-space"
    assert re.match(r"error: TMPDIR: .* \(nothing usable\)\.\n", error)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    done = command("predict", "zero-shot", "--data", "export.csv", *SAID)
    assert done.codes[-1] == "output.failed"
    assert all(fact in done.stderr for fact in (f" export.csv in {here.parent / 'temporary'}: ", "(No space "))


# --- nothing is left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["reading export.csv", "predict"])
def test_an_interruption_leaves_no_temporary_file(work: str, here: Path) -> None:
    seen: list[str] = []

    def stop(event: object) -> None:
        if isinstance(event, Work):
            seen.append(event.name)
            if event.name == work:
                assert list((here.parent / "temporary").glob("socialx-predict-*"))
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        socialx.predict("zero-shot", "export.csv", **OPTIONS, progress=stop)
    assert work in seen
    assert not Path("export.h5").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_no_temporary_file(here: Path) -> None:
    """In a process of its own, at the moment when the temporary file is there."""
    place = here.parent / "temporary"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    words = ["predict", "--verbose", "zero-shot", "--data", str(EXCERPT), "--meta-csv", str(LOCATIONS)]
    typed = [sys.executable, "-c", STARTS, *words]
    process = subprocess.Popen(typed, env=env, stderr=subprocess.PIPE, text=True, cwd=here)
    assert process.stderr is not None
    for line in process.stderr:  # its notes begin when convert does
        if "socialx convert auto" in line:
            assert list(place.glob("*/*.h5"))
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=110)
    assert process.returncode == 130, rest
    assert "interrupted" in rest
