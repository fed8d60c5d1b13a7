"""The file of a run is the one whose readings it was trained on: a name alone is none, whoever asks and from where."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import socialx as api
from socialx.core.disk import file_signature
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from socialx.serving.server import Runs
from socialx.settings.layers import ConfigLayers
from tests.commands import EXCERPT, cross, edited, keep_rows, refuses, small_file, small_run

DOORS: dict[str, Callable[[Path], object]] = {
    "predict": api.predict,
    "predict a frame": lambda run: api.predict(run, frame()),
    "evaluate": api.evaluate,
    "explain": api.explain,
    "calibrate": api.calibrate,
    "report": api.report,
    "serve": lambda run: Runs(run, ConfigLayers(), False, None).load(run),
    "export": lambda run: api.export(run, "model.safetensors", overwrite=True),
    "load_model": api.load_model,
    "resume": lambda run: api.train(resume=run, max_epochs=2),
    "load_run": lambda run: api.load_run(run),
}
ASKED = [name for name in DOORS if name != "load_run"]  # which looks a run up, and reads no data


def frame() -> pd.DataFrame:
    ids = EXCERPT.read_text().partition("\n")[0].split(",")[1:5]
    return pd.DataFrame(60.0, pd.date_range("2012-05-05", periods=12, freq="5min"), ids)


def other_readings(path: Path) -> None:
    """Those of one cell, in the middle of the training."""
    with edited(path, path.with_suffix(".new")) as file:
        file["data/features"][100, 1, 0] += 1
    path.with_suffix(".new").replace(path)


def other_times(path: Path) -> None:
    with edited(path, path.with_suffix(".new")) as file:
        stamps = [stamp.replace(b"2012-", b"2011-") for stamp in file["metadata/timestamps"][:]]
        file["metadata/timestamps"][:] = stamps
    path.with_suffix(".new").replace(path)


def fewer_rows(path: Path) -> None:
    with edited(path, path.with_suffix(".new")) as file:
        keep_rows(file, slice(0, 380))
    path.with_suffix(".new").replace(path)


def no_data(path: Path) -> None:
    path.write_bytes(b"no HDF5 file")


OTHERS: dict[str, Callable[[Path], None]] = {
    "other readings": other_readings,
    "other times": other_times,
    "fewer rows": fewer_rows,
    "no data": no_data,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as it was trained: data/small.h5 and runs/a, named from the project's folder."""
    place = tmp_path_factory.mktemp("first") / "project"
    (place / "data").mkdir(parents=True)
    small_file(place / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        small_run(Path("data/small.h5"), Path("../runs/a"))
    return place


@pytest.fixture
def place(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that may be changed, and the training took place there."""
    copy = Path(shutil.copytree(project, tmp_path / "project"))
    protocol = copy / "runs/a/protocol.json"
    protocol.write_text(protocol.read_text().replace(str(project), str(copy)))
    (tmp_path / "elsewhere/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return copy


def used(door: str, run: Path) -> Path:
    """The file that a door reads."""
    found: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        from socialx import dataset
        from socialx.tasks import build, user_data
        from socialx.tasks import trained_model as trained

        def seen(path: Path, *arguments: object) -> object:
            found.append(Path(path))
            return open_store(path, *arguments)  # type: ignore[arg-type]

        for module in (dataset, user_data, trained):
            patch.setattr(module, "open_store", seen)
        assert build.read_dataset is dataset.read_dataset
        made = DOORS[door](run)
    return made.settings.data.path if door == "load_run" else found[0]  # type: ignore[attr-defined]


OTHER_DATA = r"small\.h5: .*/runs/(\w+, from 2012-05-03 00:00:00 to 2012-05-0\d |a )"
OTHER_CODES = ("run.other-file", "run.with-other")


@pytest.mark.parametrize(("door", "other"), cross(DOORS, OTHERS, "predict"))
def test_another_file_of_the_same_name_is_not_taken(door: str, other: str, place: Path) -> None:
    here = Path("data/small.h5")
    shutil.copy(place / here, here)
    OTHERS[other](here)
    assert file_signature(used(door, place / "runs/a")) == file_signature(place / here)


@pytest.mark.parametrize(("door", "other"), cross(ASKED, [name for name in OTHERS if name != "no data"], "predict"))
def test_the_file_itself_is_another_now(door: str, other: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OTHERS[other](place / "data/small.h5")
    for folder in (place, Path.cwd()):
        monkeypatch.chdir(folder)
        with pytest.raises(SocialxError, match=OTHER_DATA) as caught:
            DOORS[door](place / "runs/a")
        assert caught.value.code in OTHER_CODES
    if door not in ("resume", "predict a frame"):
        api.predict(place / "runs/a", place / "data/small.h5")  # it was asked for


@pytest.mark.parametrize(("door", "old"), cross(DOORS, ["gone", "another project"], "predict"))
def test_a_run_that_moved_with_its_data_finds_them(door: str, old: str, place: Path) -> None:
    new = place.rename(place.with_name("renamed"))
    if old != "gone":
        shutil.copytree(new, place)
        other_readings(place / "data/small.h5")
    assert file_signature(used(door, new / "runs/a")) == file_signature(new / "data/small.h5")


@pytest.mark.parametrize("door", ["predict", "load_run", "resume"])
def test_a_run_that_was_taken_elsewhere_has_its_file_next_to_it(door: str, place: Path) -> None:
    run = Path(shutil.move(place / "runs/a", place.parent / "run"))
    (place.parent / "data").mkdir()
    shutil.move(place / "data/small.h5", place.parent / "data/small.h5")
    shutil.rmtree(place)
    assert file_signature(used(door, run)) == file_signature(place.parent / "data/small.h5")


@pytest.mark.parametrize("absolute", [False, True])
def test_the_name_in_the_settings_is_of_any_kind(absolute: bool, place: Path) -> None:
    settings = place / "runs/a/settings.yaml"
    if absolute:
        settings.write_text(settings.read_text().replace("path: data/", f"path: {place}/data/"))
    new = place.rename(place.with_name("renamed"))
    assert used("predict", new / "runs/a") == new / "data/small.h5"
    other = Path(shutil.copytree(new / "runs/a", "taken along"))
    shutil.rmtree(new)
    with refuses("run.no-data"):
        api.predict(other)


def grown(path: Path, more: str) -> None:
    """The rows of the training with one more row after them."""
    with edited(path, path.with_suffix(".new")) as file:
        for name in ("data/features", "metadata/timestamps", "metadata/timestamps_epoch"):
            rows = file[name]
            rows.resize(len(rows) + 1, axis=0)
            rows[-1] = rows[-2]
        file["metadata/timestamps"][-1] = more.encode()
        file["metadata/timestamps_epoch"][-1] += 300
    path.with_suffix(".new").replace(path)


def test_a_file_that_grew_is_the_same_file(place: Path) -> None:
    last = open_store(place / "data/small.h5").timestamps[-1].decode()
    grown(place / "data/small.h5", "2012-05-04 09:20:00")
    assert (last, str(api.predict(place / "runs/a").origin[0])) == ("2012-05-04 09:15:00", "2012-05-04T09:20:00")
    api.evaluate(place / "runs/a")


def test_a_run_of_the_first_days_knows_the_whole_file(place: Path) -> None:
    """1 of the 2 days of the file."""
    run = small_run(place / "data/small.h5", place / "runs/days", "--days", "1")
    api.predict(run)
    api.evaluate(run)
    other_readings(place / "data/small.h5")  # of the first day
    with refuses("run.other-file"):
        api.predict(run)


def test_other_files_that_a_run_names_are_those_of_its_training(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = open_store(place / "data/small.h5").sensors.ids
    roads = "from,to,cost\n" + "".join(f"{a},{b},{700 + 10 * i}\n" for i, a in enumerate(ids) for b in ids if a != b)
    (place / "roads.csv").write_text(roads)
    monkeypatch.chdir(place)
    run = small_run(Path("data/small.h5"), place / "runs/b", "--distances", "roads.csv")
    monkeypatch.chdir(place.parent / "elsewhere")
    Path("roads.csv").write_text(roads.replace("700", "9000"))
    assert api.load_run(run).settings.pooling.distances == place / "roads.csv"
    api.train(resume=run, max_epochs=2)
    renamed = place.rename(place.with_name("renamed"))
    assert api.load_run(renamed / "runs/b").settings.pooling.distances == renamed / "roads.csv"


def test_an_output_never_takes_the_place_of_the_file(place: Path) -> None:
    with refuses("output.other-kind"):
        api.export(place / "runs/a", place / "data/small.h5", format="safetensors", overwrite=True)
