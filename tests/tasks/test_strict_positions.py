"""From the command line: who may hear whom where positions are missing or wrong, and by listed roads in their place.

What pooling needs and a file does not have is refused before training begins; what is done without it is said once.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from socialx.core.errors import FallbackWarning
from socialx.files.sources.positions.neighbours import read_distances
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import build
from socialx.tasks.opened import open_forecasting
from tests.commands import SMALL, edited, refused, small_file, small_run, socialx, works

QUICK = [*SMALL, "--max-epochs", "1", "--batch-size", "32"]
SENSORS = 5
LOST = 1  # which of them


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 150, SENSORS)


def ids_of(data: Path) -> list[str]:
    with h5py.File(data) as file:
        return [vdid.decode() for vdid in file["metadata/vdids"][:]]


def changed(data: Path, folder: Path, change: Callable[[h5py.Group, str], None]) -> Path:
    """A copy whose vd_info was changed by ``change(vd_info, id of the lost sensor)``."""
    copy = folder / "changed.h5"
    with edited(data, copy) as file:
        change(file["metadata/vd_info"], ids_of(data)[LOST])
    return copy


def set_to(name: str, value: Any) -> Callable[[h5py.Group, str], None]:
    def change(info: h5py.Group, vdid: str) -> None:
        info[vdid].attrs[name] = value

    return change


def remove(info: h5py.Group, vdid: str) -> None:
    del info[vdid]


def remove_attribute(info: h5py.Group, vdid: str) -> None:
    del info[vdid].attrs["position_lon"]


def set_to_null_island(info: h5py.Group, vdid: str) -> None:
    info[vdid].attrs["position_lat"] = info[vdid].attrs["position_lon"] = 0.0


def remove_all(info: h5py.Group, vdid: str) -> None:
    del info.parent["vd_info"]


def put_in_place(value: Any) -> Callable[[h5py.Group, str], None]:
    def change(info: h5py.Group, vdid: str) -> None:
        parent = info.parent
        del parent["vd_info"]
        parent["vd_info"] = value

    return change


ONE_LOST = {
    "no group": remove,
    "no longitude": remove_attribute,
    "NaN": set_to("position_lat", np.nan),
    "infinite": set_to("position_lon", -np.inf),
    "latitude 95": set_to("position_lat", 95.0),
    "longitude 181": set_to("position_lon", 181.0),
    "0, 0": set_to_null_island,
    "an array": set_to("position_lat", [34.0, 35.0]),
    "empty": set_to("position_lat", h5py.Empty("f8")),
    "a word": set_to("position_lon", "west"),
}
ALL_LOST = {
    "no vd_info": remove_all,
    "numbers": put_in_place(np.zeros(3)),
    "a table": put_in_place(np.zeros((3, 2))),
    "a text": put_in_place(np.bytes_("none")),
}


@pytest.mark.parametrize("case", [*ONE_LOST, *ALL_LOST])
def test_sensors_without_a_position_are_named_before_training(case: str, data: Path, tmp_path: Path) -> None:
    lost = changed(data, tmp_path, {**ONE_LOST, **ALL_LOST}[case])
    error = refused("train", "--data", lost, "--run-dir", tmp_path / "run", *QUICK)
    ids = ids_of(data)
    found, named = (1, ids[LOST]) if case in ONE_LOST else (5, f"{', '.join(ids[:3])}, ...")
    assert error.code == "places.missing"
    assert error.startswith(f"error: {lost}: {found} of 5 sensors ")
    assert f" ({named})" in error
    assert f" backfill {lost} --meta-csv " in error
    assert not (tmp_path / "run").exists()


def test_the_command_that_is_named_gives_the_position_back(data: Path, tmp_path: Path) -> None:
    lost, meta = changed(data, tmp_path, set_to("position_lat", np.nan)), tmp_path / "meta.csv"
    places = [f"{vdid},{34 + 0.01 * n},-118.2\n" for n, vdid in enumerate(ids_of(data))]
    meta.write_text("sensor_id,latitude,longitude\n" + "".join(places))
    works("backfill", lost, "--meta-csv", meta)
    assert "no position" not in works("train", "--data", lost, "--run-dir", tmp_path / "run", *QUICK).stderr


@contextmanager
def falls_back(code: str, says: str = "") -> Iterator[None]:
    """A fallback of this code comes in the block."""
    with pytest.warns(FallbackWarning, match=says) as warned:
        yield
    assert code in [each.message.message.code for each in warned if isinstance(each.message, FallbackWarning)]


def pooled(run: Path) -> Tensor:
    """What the first social layer of a trained run adds to every sensor: [B,N,E]."""
    experiment = open_forecasting(run, ConfigLayers()).experiment
    seen: list[Tensor] = []
    pooling: nn.Module = experiment.model.eval().social[0].pooling
    pooling.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    with torch.no_grad():
        experiment.model(next(experiment.data.loader("test", 4).epoch(0)).batch)
    return seen[0]


@pytest.mark.parametrize("kind", ["attention", "attention_mlp", "mean", "weighted_mean", "max"])
def test_without_strict_a_warning_comes_once_and_nothing_is_pooled(kind: str, data: Path, tmp_path: Path) -> None:
    lost, run = changed(data, tmp_path, set_to("position_lat", 95.0)), tmp_path / "run"
    result = works("train", "--data", lost, "--run-dir", run, "--no-require-locations", "--pooling", kind, *QUICK)
    assert result.stderr.count(f"warning: {lost}: ") == 1
    assert re.search(rf"{lost}: 1 of 5 sensors .*\({ids_of(data)[LOST]}\)", result.stderr)
    assert "places.missing-alone" in result.codes
    assert "error" not in result.stderr
    with falls_back("places.missing-alone"):
        states = pooled(run)
    assert states.shape == (4, 5, 8)
    assert (states[:, LOST] == 0).all()
    assert (states.any(-1).sum(), works("evaluate", run).stderr.count(f"warning: {lost}: ")) == (4 * 4, 1)


def test_without_any_position_no_sensor_uses_another(data: Path, tmp_path: Path) -> None:
    lost, run = changed(data, tmp_path, remove_all), tmp_path / "run"
    result = works("train", "--data", lost, "--run-dir", run, "--no-require-locations", *QUICK)
    assert result.stderr.count(f"warning: {lost}: ") == 1
    with falls_back("places.missing-alone", "5 of 5"):
        assert not pooled(run).any()


@pytest.mark.parametrize("options", [["--pooling", "none"], ["--pooling", "self_only"], ["--model", "linear"]])
def test_a_model_without_neighbours_needs_no_positions(options: list[str], data: Path, tmp_path: Path) -> None:
    lost, run = changed(data, tmp_path, remove_all), tmp_path / "run"
    assert "position" not in works("train", "--data", lost, "--run-dir", run, *options, *QUICK).stderr
    works("evaluate", run)
    if "self_only" in options:
        assert pooled(run).any(-1).all()  # every sensor uses itself


def roads(data: Path, folder: Path, *more: str, metres: float = 900) -> Path:
    """A road that leads from each of the first four sensors to the next one; the fifth is on no road."""
    ids = ids_of(data)
    rows = [f"{ids[n]},{ids[n + 1]},{metres}" for n in range(3)]
    path = folder / "roads.csv"
    path.write_text("\n".join(["from,to,cost", *rows, *more]) + "\n")
    return path


def test_listed_roads_need_no_positions(data: Path, tmp_path: Path) -> None:
    lost, run = changed(data, tmp_path, remove_all), tmp_path / "run"
    path = roads(data, tmp_path, "1,2,300", f"{ids_of(data)[0]},2,300")  # others' sensors are left out
    result = works("train", "--data", lost, "--run-dir", run, "--distances", path, *QUICK)
    assert ("roads.alone" in result.codes, result.stderr.count(f"warning: {path}: ")) == (True, 1)
    assert re.search(rf"{path}: 1 of 5 sensors .*\({ids_of(data)[4]}\)", result.stderr)
    with falls_back("roads.alone"):
        states = pooled(run)
    assert states[:, :4].any(-1).all()
    assert (states[:, 4] == 0).all()
    works("evaluate", run)


def test_roads_decide_and_not_positions(data: Path, tmp_path: Path) -> None:
    ids = ids_of(data)
    settings = {"data.path": str(data), "pooling.distances": str(roads(data, tmp_path)), "model.width": 8}
    s = ConfigLayers().over({**settings, "model.blocks": 1, "model.slstm_at": ""}).load().settings
    with falls_back("roads.alone"):
        geometry = build(s).model.social[0].pooling.geometry
    listened = [
        {ids[j] for j, there in zip(index, exists, strict=True) if there}
        for index, exists in zip(geometry.index.tolist(), geometry.exists.tolist(), strict=True)
    ]
    assert listened == [{ids[1]}, {ids[0], ids[2]}, {ids[1], ids[3]}, {ids[2]}, set()]
    assert geometry.distance[geometry.exists].tolist() == pytest.approx([0.9] * 6)
    assert geometry.offsets[geometry.exists].any(-1).all()


# What makes a faulty list, the code of the refusal, and facts that it tells.
FAULTS: dict[str, tuple[Any, ...]] = {
    "missing": (lambda data, at: at / "nowhere.csv", "file.missing", "nowhere.csv: ", "from,to,cost"),
    "a folder": (lambda data, at: at, "file.folder"),
    "empty": (lambda data, at: text(at, ""), "file.empty", "from,to,cost"),
    "binary": (lambda data, at: data, "places.no-table", "from,to,cost"),
    "columns": (lambda data, at: text(at, "a,b,c\n1,2,3\n"), "roads.columns", "a, b, c.", "from,to"),
    "two costs": (lambda data, at: text(at, "from,to,cost,Cost\n1,2,3,4\n"), "roads.columns", " cost, cost."),
    "a word": (lambda data, at: roads(data, at, "7,8,far"), "roads.no-number", "'far'", "line 5"),
    "no cost": (lambda data, at: roads(data, at, "7,8"), "roads.cells", "line 5 has 2", "from,to,cost"),
    "a blank line before": (lambda data, at: roads(data, at, "", "7,8,-4"), "roads.no-number", "'-4'", "line 6"),
    "no header": (lambda data, at: text(at, "1,2,300\n\n3,4,x\n"), "roads.no-number", "'x'", "line 3"),
    "negative": (lambda data, at: roads(data, at, "7,8,-4"), "roads.no-number", "'-4'", "line 5"),
    "infinite": (lambda data, at: roads(data, at, "7,8,inf"), "roads.no-number", "'inf'", "line 5"),
    "NaN": (lambda data, at: roads(data, at, "7,8,nan"), "roads.no-number", "'nan'", "line 5"),
    "too many cells": (lambda data, at: roads(data, at, "7,8,9,10"), "roads.cells", "line 5", "from,to,cost"),
    "others": (lambda data, at: text(at, "from,to,cost\n1,2,300\n3,4,500\n"), "roads.no-pair", " 1, 3; "),
    "no rows": (lambda data, at: text(at, "from,to,cost\n"), "roads.no-pair", " no rows"),
    "km": (lambda data, at: roads(data, at, metres=0.9), "roads.no-metres", " 0.9,", "1000"),
}


def text(folder: Path, content: str) -> Path:
    path = folder / "roads.csv"
    path.write_text(content)
    return path


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_list_of_roads_is_one_line(case: str, data: Path, tmp_path: Path) -> None:
    make, code, *says = FAULTS[case]
    path = make(data, tmp_path)
    error = refused("train", "--data", data, "--run-dir", tmp_path / "run", "--distances", path, *QUICK)
    assert (error.code, error.startswith(f"error: {path}: ")) == (code, True)
    assert all(words in error for words in says)
    assert not (tmp_path / "run").exists()


def test_the_header_of_a_list_may_be_missing(data: Path, tmp_path: Path) -> None:
    """As in DCRNN's distances_bay_2017.csv."""
    path, ids = roads(data, tmp_path), ids_of(data)
    with_header = read_distances(path, ids)
    path.write_text(path.read_text().removeprefix("from,to,cost\n") + "\n")
    for found, expected in zip(read_distances(path, ids), with_header, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert with_header[2].tolist() == [0.9] * 3


def test_the_limit_between_metres_and_kilometres(data: Path, tmp_path: Path) -> None:
    for metres, code in ((19.9, 1), (20, 0)):
        path = roads(data, tmp_path, metres=metres)
        result = socialx("train", "--data", data, "--run-dir", tmp_path / f"{code}", "--distances", path, *QUICK)
        assert result.exit_code == code, result.stderr


def test_the_list_is_noted_in_the_run(data: Path, tmp_path: Path) -> None:
    path, run = roads(data, tmp_path), tmp_path / "run"
    small_run(data, run, "--distances", path)
    assert json.loads((run / "settings_sources.json").read_text())["pooling.distances"] == "--distances"
    assert f"distances: {path}" in (run / "settings.yaml").read_text()
    path.unlink()
    error = refused("evaluate", run)
    assert (error.code, f" {path}: " in error) == ("file.missing", True)


def test_a_run_goes_on_with_its_roads_wherever_they_are_now(data: Path, tmp_path: Path) -> None:
    path, run = roads(data, tmp_path), tmp_path / "run"
    small_run(data, run, "--distances", path)
    moved, changed_list = path.rename(tmp_path / "moved.csv"), tmp_path / "changed.csv"
    changed_list.write_text(moved.read_text().replace(",900", ",901"))
    for given, says in ((changed_list, f"{changed_list}: {run} .* other "), ("", f"{run} .* with distances, ")):
        result = socialx("train", "--resume", run, "--max-epochs", "2", "--distances", given)
        assert (result.exit_code, result.codes[-1]) == (1, "run.with-other")
        assert re.search(says, result.stderr)
    works("train", "--resume", run, "--max-epochs", "2", "--distances", moved)
    straight = small_run(data, tmp_path / "straight")
    result = socialx("train", "--resume", straight, "--max-epochs", "2", "--distances", moved)
    assert (result.exit_code, result.codes[-1]) == (1, "run.without")
    assert re.search(rf"{straight} .* distances\.\n.* --distances ", result.stderr)


def test_scores_along_other_roads_than_in_training_say_so(data: Path, tmp_path: Path) -> None:
    path, run = roads(data, tmp_path), tmp_path / "run"
    small_run(data, run, "--distances", path)
    assert "fit.other-roads" not in socialx("evaluate", run).codes
    straight = socialx("evaluate", run, "--distances", "")
    assert "fit.other-roads" in straight.codes
    assert re.search(f"{run}: .* straight lines", straight.stderr)
    path.write_text(path.read_text().replace(",900", ",901"))
    assert re.search(f"{run}: .* other roads", socialx("evaluate", run).stderr)


def test_roads_without_effect_are_not_read(data: Path, tmp_path: Path) -> None:
    path, run = roads(data, tmp_path), tmp_path / "run"
    result = works("train", "--data", data, "--run-dir", run, "--distances", path, "--pooling", "none", *QUICK)
    assert "settings.unread" in result.codes
    assert {"--neighbours,", "--distances,", "pooling.adaptive_adjacency_rank."} <= {*result.stderr.split()}
    path.unlink()
    works("evaluate", run)
