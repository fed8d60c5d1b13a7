"""Ids in Chinese go through every task."""

import json
from pathlib import Path

import h5py
import numpy as np

from socialx.files.store.store import open_store
from tests.commands import SMALL, works

IDS = ("VD-N1-S-103.670-M-LOOP", "VD-N1-N-198-O-SE-21-北上出口-彰化")


def test_ids_in_chinese_go_through_every_task(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = np.datetime64("2024-01-31T00:00") + 5 * np.arange(200).astype("m8[m]")
    table = tmp_path / "table.csv"
    lines = [f"{time},{a:.2f},{b:.2f}" for time, (a, b) in zip(times, 60 + rng.normal(0, 3, (200, 2)), strict=True)]
    table.write_text("\n".join([f"time,{','.join(IDS)}", *lines]) + "\n", encoding="utf-8")
    places = tmp_path / "places.csv"
    places.write_text("id,lat,lon\n" + "".join(f"{vdid},25,{121 + n}\n" for n, vdid in enumerate(IDS)), "utf-8")
    data, run = tmp_path / "data.h5", tmp_path / "run"
    works("convert", "auto", table, "--meta-csv", places, "--units", "km/h", "--output-h5", data, "--validate")
    with h5py.File(data) as file:
        assert file["metadata/vdids"].asstr()[:].tolist() == [*IDS]
        assert h5py.check_string_dtype(file["metadata/vdids"].dtype).encoding == "utf-8"
        assert {*file["metadata/vd_info"]} == {*IDS}
    assert json.loads(works("inspect", data, "--json").stdout)["without_info"] == []
    works("train", "--data", data, "--run-dir", run, "--max-epochs", "1", "--device", "cpu", *SMALL)
    for name in ("f.csv", "f.h5"):
        works("predict", run, "--sensors", IDS[1], "--output", tmp_path / name)
    assert IDS[1] in (tmp_path / "f.csv").read_text(encoding="utf-8")
    with h5py.File(tmp_path / "f.h5") as file:
        assert file["sensors"].asstr()[:].tolist() == [IDS[1]]
    assert json.loads(works("predict", run, "--json").stdout)["sensors"] == [*IDS]
    more = tmp_path / "more.csv"
    more.write_text(f"time,{','.join((*IDS, '新竹'))}\n2024-01-31 16:40,60,61,62\n", encoding="utf-8")
    places.write_text("id,lat,lon\n新竹,25,120\n", encoding="utf-8")
    works("append", data, more, "--meta-csv", places)
    assert open_store(data).sensors.ids == (*IDS, "新竹")
