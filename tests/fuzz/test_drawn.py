"""Drawn tables are read as their description says, proved or asked; ``python -m tests.fuzz drawn`` draws others."""

from pathlib import Path

import h5py
import pandas as pd
import pytest

from tests.fuzz import corpus, drawn, runner


@pytest.mark.slow
def test_drawn_tables_are_read_or_asked() -> None:
    summary = runner.run_many(corpus.Corpus([corpus.DRAWN]), 20260101, range(40))
    assert not summary.failures, "\n".join(result.text() for result in summary.failures)
    assert summary.ends["drawn: exit 0"] >= 10


def written(path: Path, frame: pd.DataFrame) -> None:
    with h5py.File(path, "w") as file:
        file["data/features"] = frame.to_numpy("f4")[..., None]
        file["metadata/vdids"], file["metadata/timestamps"] = list(frame.columns), list(map(str, frame.index))


@pytest.mark.parametrize("change", ["value", "time", "sensor"])
def test_another_number_time_or_sensor_is_seen(change: str, tmp_path: Path) -> None:
    table = next(table for table in (drawn.draw(1, number) for number in range(99)) if table.name == "data.csv")
    for name, content in table.files().items():
        (tmp_path / name).write_bytes(content)
    right = drawn.by_pandas(tmp_path / table.name, table.spec)
    written(tmp_path / "out.h5", right)
    assert not drawn.differing(tmp_path / "out.h5", tmp_path / table.name, table.spec)
    if change == "value":
        right.iloc[-1, 0] += 1
    elif change == "time":
        right.index = right.index.shift(1, "D")
    else:
        right.columns = ["another", *right.columns[1:]]
    written(tmp_path / "out.h5", right)
    assert drawn.differing(tmp_path / "out.h5", tmp_path / table.name, table.spec)
