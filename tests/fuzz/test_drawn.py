"""Tables of drawn names and shapes are read as they are, or asked; ``python -m tests.fuzz drawn`` draws others."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from tests.fuzz import corpus, drawn, runner


@pytest.mark.slow
def test_drawn_tables_are_read_or_asked() -> None:
    summary = runner.run_many(corpus.Corpus([corpus.DRAWN]), 20260101, range(40))
    assert not summary.failures, "\n".join(result.text() for result in summary.failures)
    assert summary.ends["drawn, plain names: exit 0"] >= 10


@pytest.mark.parametrize("part", ["value", "time", "sensor"])
def test_another_number_time_or_sensor_is_seen(part: str, tmp_path: Path) -> None:
    table = next(table for table in (drawn.draw(1, number) for number in range(99)) if table.values.shape[1] > 1)
    values, times, ids = table.values.copy(), list(table.times), list(table.ids[0])
    path = tmp_path / "out.h5"

    def wrong() -> list[str]:
        with h5py.File(path, "w") as file:
            file["data/features"] = values[..., None]
            file["metadata/vdids"], file["metadata/timestamps"] = ids, times
        return table.wrong(path)

    assert not wrong()
    if part == "value":
        values[-1, 0] += 1
    elif part == "time":
        times[-1] = "2030-01-01 00:00:00"
    else:
        ids[0] = "another"
    assert wrong()[0].startswith(part)
