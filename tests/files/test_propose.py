"""What the head of a table proves, and what is asked with a command that reads the table."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from socialx.core.errors import SettingsError
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.cells import take_sample
from socialx.files.sources.tables.propose import Proposal, propose
from socialx.files.sources.tables.templates import pattern
from socialx.files.store.time_axis import as_text
from tests.data_files import read_table as read

ROWS, IDS = 60, ("D1", "D2")
SPEEDS = np.round(60 + 8 * np.sin(np.arange(ROWS * 2) / 9).reshape(ROWS, 2) + 0.13, 1)
COUNTS = np.arange(ROWS * 2).reshape(ROWS, 2) * 7 % 91 + 3
TIMES = [f"2024-03-{4 + row // 24:02d} {row % 24:02d}:00:00" for row in range(ROWS)]
Propose = Callable[..., tuple[Proposal, Path]]


@pytest.fixture
def proposed(tmp_path: Path) -> Propose:
    """Return a function that proposes how a text is read, with the options of ``convert``."""

    def read(text: str, ids: Sequence[str] = (), encoding: str = "utf-8", **given: object) -> tuple[Proposal, Path]:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding)
        return propose(take_sample(path), ConvertOptions.from_call("convert", path, given), ids), path

    return read


def wide(
    values: np.ndarray = SPEEDS, names: Sequence[str] = IDS, time: str = "time", times: Sequence[str] = TIMES
) -> str:
    rows = [[when, *map(str, row)] for when, row in zip(times, values.tolist(), strict=False)]
    return "\n".join(map(",".join, [[time, *names], *rows])) + "\n"


def long(names: str, *columns: Sequence[object], values: np.ndarray = SPEEDS) -> str:
    """A row per time and sensor: time, sensor, further ``columns`` by row, reading."""
    rows = [
        [when, vdid, *(str(column[2 * row + at]) for column in columns), str(values[row, at])]
        for row, when in enumerate(TIMES)
        for at, vdid in enumerate(IDS)
    ]
    return "\n".join(map(",".join, [[names], *rows])) + "\n"


def grid(proposal: Proposal, path: Path) -> Any:
    assert not proposal.questions, [str(message) for message in proposal.questions]
    return read(path, proposal.spec)


def is_read(found: Any, values: np.ndarray = SPEEDS) -> None:
    assert (found.ids, as_text(int(found.seconds[0]))) == (IDS, TIMES[0])
    assert np.allclose(found.values[..., 0], values[: len(found.seconds)])


def command(proposal: Proposal) -> dict[str, Any]:
    """Return the arguments of the one command that is printed."""
    *others, last = (message.advice() for message in proposal.questions)
    assert not any(others)
    assert last.startswith("socialx convert auto")
    given = dict[str, list[str]]()
    for word in shlex.split(last)[4:]:
        if word.startswith("--"):
            values = given.setdefault(word[2:].replace("-", "_"), [])
        else:
            values.append(word)
    del given["output_h5"]
    return {name: values if len(values) > 1 else values[0] if values else True for name, values in given.items()}


def seen(proposal: Proposal) -> str:
    return " ".join(str(message) for message in proposal.questions)


# Proved.


NAMED = {
    "columns named by ids": (wide(), IDS, {}),
    "a column of ids": (long("time,place,speed"), IDS, {}),
    "the user, each column": (wide(), (), {"channel": "{sensor}"}),
    "the user": (long("time,place,other,speed", range(2 * ROWS)), (), {"sensor_column": "place", "channel": "speed"}),
}


@pytest.mark.parametrize(("text", "ids", "given"), NAMED.values(), ids=NAMED)
def test_sensors_have_names(text: str, ids: Sequence[str], given: dict[str, str], proposed: Propose) -> None:
    is_read(grid(*proposed(text, ids, **given)))


def test_ids_in_another_spelling(proposed: Propose) -> None:
    assert grid(*proposed(wide(names=("0401", "402")), (401, "402.0"))).ids == ("0401", "402")


GERMAN = [f"{day[8:10]}.{day[5:7]}.{day[:4]} {day[11:16]}" for day in TIMES]


def german(*above: str, header: str = "Zeit;D1;D2", below: Sequence[str] = ()) -> str:
    rows = [f"{when};{one:.1f};{two:.1f}".replace(".", ",") for when, (one, two) in zip(GERMAN, SPEEDS, strict=True)]
    rows = [row.replace(when.replace(".", ","), when) for row, when in zip(rows, GERMAN, strict=True)]
    return "\n".join([*above, header, *rows, *below]) + "\n"


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (german(), None),
        (german("Verkehrszählung Mühlhausen;;", "Amt für Verkehr", ""), None),
        (german(below=["Summe;3600,5;3601,0", "Mittelwert;60,1;60,2"]), None),
        (german(header="Zeit;D1 [km/h];D2 [km/h]"), "km/h"),
        (german("Export", header="Zeit;D1;D2\n;km/h;km/h"), "km/h"),
    ],
    ids=["plain", "titles", "totals", "units in names", "units below"],
)
def test_a_german_export_with_positions_is_read_at_once(proposed: Propose, text: str, unit: str | None) -> None:
    proposal, path = proposed(text, IDS, "cp1252")
    is_read(grid(proposal, path))
    assert proposal.spec is not None
    assert proposal.spec.units.get("avg_speed") == unit


def test_lanes_behind_ids_are_combined(proposed: Propose) -> None:
    values = np.repeat(SPEEDS, 2, axis=1) + np.array([-2, 2, -2, 2])
    is_read(grid(*proposed(wide(values.round(1), ("D1_L1", "D1_L2", "D2_L1", "D2_L2")), IDS)))


def test_a_column_of_lanes_weighs_by_flow(proposed: Propose) -> None:
    rows = [f"{when},D1,{lane},{speed},{flow}" for when in TIMES for lane, speed, flow in ((1, 40, 30), (2, 80, 10))]
    found = grid(*proposed("time,site,lane,speed,flow\n" + "\n".join(rows), ("D1", "D9"), channel="speed"))
    assert np.allclose(found.values, 50)


def test_what_stands_beside_is_no_reading(proposed: Propose) -> None:
    beside = ([50, 80] * ROWS, [48.5, 48.6] * ROWS, [11.5, 11.6] * ROWS, [3] * 2 * ROWS)
    is_read(grid(*proposed(long("time,place,limit,lat,lon,month,speed", *beside), IDS)))


def test_a_table_with_positions_keeps_them(proposed: Propose) -> None:
    text = long("time,place,lat,lon,speed", [48.5, 48.6] * ROWS, [11.5, 11.6] * ROWS)
    assert grid(*proposed(text, sensor_column="place")).positions == {"D1": (48.5, 11.5), "D2": (48.6, 11.6)}


@pytest.mark.parametrize("labels", [[f"{hour:02d}:00" for hour in range(24)], [f"{hour}:00:00" for hour in range(24)]])
def test_clocks_in_names_beside_a_date(proposed: Propose, labels: list[str]) -> None:
    rows = [f"2024-03-0{day},{at}," + ",".join(str(hour + day) for hour in range(24)) for day in (4, 5) for at in IDS]
    found = grid(*proposed(f"date,place,{','.join(labels)}\n" + "\n".join(rows), IDS, quantity="flow"))
    assert found.values[:, 0, 0].tolist() == [hour + day for day in (4, 5) for hour in range(24)]


def test_times_in_names(proposed: Propose) -> None:
    rows = [f"{vdid}," + ",".join(map(str, SPEEDS[:, at])) for at, vdid in enumerate(IDS)]
    is_read(grid(*proposed(f"place,{','.join(TIMES)}\n" + "\n".join(rows), IDS)))


@pytest.mark.parametrize(
    ("names", "cells"),
    [
        ("date,clock", [f"{time[:10]},{time[11:16]}" for time in TIMES]),
        ("date,hour", [f"{time[:10]},{int(time[11:13])}" for time in TIMES]),
        ("date,hour", [f"{time[:10]},{int(time[11:13]) + 1}" for time in TIMES]),
        ("Year,Month,Day,Hour", [f"2024,3,{int(time[8:10])},{int(time[11:13])}" for time in TIMES]),
        ("timestamp", [str(1709510400 + 3600 * row) for row in range(ROWS)]),
        ("timestamp", [str(1709510400000 + 3600000 * row) for row in range(ROWS)]),
        ("Tid", [str(45355 + row / 24) for row in range(ROWS)]),
        ("period", [f"{time} - {time[11:]}" for time in GERMAN]),
        ("time", [f"{time[:10]}T{time[11:]}Z" for time in TIMES]),
        ("Date", [f"3/{4 + row // 24}/2024 {(row % 12) or 12}:00 {'AP'[row % 24 > 11]}M" for row in range(ROWS)]),
    ],
    ids=["date, clock", "hours from 0", "hours to 24", "parts", "seconds", "ms", "Excel", "intervals", "UTC", "AM"],
)
def test_forms_of_times(proposed: Propose, names: str, cells: list[str]) -> None:
    said = {"time_format": "%m/%d/%Y %I:%M %p"} if names == "Date" else {}
    is_read(grid(*proposed(wide(time=names, times=cells), IDS, **said)))


# Asked.


AMERICAN = [f"{time[5:7]}/{time[8:10]}/{time[:4]} {time[11:16]}" for time in TIMES]
BOTH = wide(np.stack([SPEEDS, COUNTS], 2).reshape(ROWS, 4), ("D1_speed", "D1_flow", "D2_speed", "D2_flow"))


@pytest.mark.parametrize(
    ("text", "ids", "added"),
    [
        (wide(), (), {"channel": "{sensor}"}),
        (wide(names=("D1 (mph)", "D2 (mph)")), (), {"channel": "{sensor} (mph)"}),
        (long("time,station,speed"), (), {"sensor_column": "station"}),
        (long("time,station,number,speed", range(2 * ROWS)), (), {"sensor_column": "station"}),
        (long("time,station,volume,speed", COUNTS.ravel().tolist()), IDS, {"channel": "speed"}),
        (BOTH, IDS, {"channel": "{sensor}_speed"}),
        (BOTH, (), {"channel": "{sensor}_speed"}),
        (wide(times=AMERICAN), IDS, {"time_format": "%m/%d/%Y %H:%M"}),
    ],
    ids=["wide", "with units", "long", "row numbers", "two quantities", "wide, two", "two, no ids", "day or month"],
)
def test_the_printed_command_reads_the_table(proposed: Propose, text: str, ids: Sequence[str], added: dict) -> None:
    said = command(proposed(text, ids, without_positions=True)[0])
    assert said == {"without_positions": True, **added}
    is_read(grid(*proposed(text, ids, **said)))


@pytest.mark.parametrize(("first", "stem"), [(0, "H"), (1, "")])
def test_hours_in_names_are_asked(proposed: Propose, first: int, stem: str) -> None:
    names = ",".join(f"{stem}{hour:0{2 * bool(stem)}d}" for hour in range(first, first + 24))
    rows = [f"2024-03-0{day},{vdid}," + ",".join(str(hour) for hour in range(24)) for day in (4, 5) for vdid in IDS]
    text = f"date,place,{names}\n" + "\n".join(rows)
    said = command(proposed(text, IDS, quantity="flow")[0])
    assert said["channel"] == f"{stem}{{time}}"
    assert grid(*proposed(text, IDS, **said)).values[:, 1, 0].tolist() == [*range(24)] * 2


def test_lanes_in_names_are_asked(proposed: Propose) -> None:
    rows = [f"{when},{vdid},30,10,40,80" for when in TIMES for vdid in IDS]
    text = "time,station,flow1,flow2,speed1,speed2\n" + "\n".join(rows)
    said = command(proposed(text, channel="speed")[0])
    assert said == {"channel": "speed{lane}", "sensor_column": "station"}
    assert np.allclose(grid(*proposed(text, **said)).values, 50)


def test_a_day_above_twelve_proves_the_order(proposed: Propose) -> None:
    later = [f"{int(time[8:10]) + 11}/{time[5:7]}/{time[:4]} {time[11:16]}" for time in TIMES]
    assert as_text(int(grid(*proposed(wide(times=later), IDS)).seconds[0])) == "2024-03-15 00:00:00"


@pytest.mark.parametrize(("values", "quantity"), [(COUNTS, "flow"), (SPEEDS / 100, "occupancy")])
def test_what_does_not_look_like_speeds_is_asked(proposed: Propose, values: np.ndarray, quantity: str) -> None:
    text = wide(values.round(3))
    assert command(proposed(text, IDS)[0]) == {"quantity": quantity}
    assert not proposed(text, IDS, quantity=quantity)[0].questions
    assert not proposed(text, IDS, units="mph")[0].questions


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (wide(names=("mean", "max")), ("mean", "max")),
        (wide(COUNTS, ("0-30", "31-50")), ("0-30", "31-50")),
        (wide(COUNTS, ("1", "2")), ("1", "2")),
        (wide(COUNTS, ("cars", "lorries")), ("cars", "lorries")),
        (long("time,vehicle,count", values=COUNTS), ("vehicle", "--table")),
        (wide(time="", names=("0.5", "0.7")).partition("\n")[2], ("2024-03-04",)),
        (wide(times=[f"{time[:10]} x" for time in TIMES]), ("--time-column",)),
        (long("time,class,count", values=COUNTS).replace("D1", "1").replace("D2", "2"), ("class",)),
        (
            "date," + ",".join(map(str, range(1, 25))) + "\n2024-03-04" + ",7.5" * 24 + "\n2024-03-05" + ",7.7" * 24,
            ("'1'",),
        ),
    ],
    ids=[
        *("statistics", "classes of speed", "few numbers", "classes", "kinds of rows", "no header", "no times"),
        *("classes like ids", "hours like ids"),
    ],
)
def test_a_guess_is_no_command(proposed: Propose, text: str, names: Sequence[str]) -> None:
    proposal, _ = proposed(text, range(1, 30) if {*names} & {"class", "'1'"} else ())
    assert proposal.questions
    asked = " ".join(message.text() for message in proposal.questions)
    assert "socialx convert" not in asked
    assert all(name in asked for name in names), asked


@pytest.mark.parametrize(("column", "cells"), [("direction", "NS"), ("quantity", ("flow", "speed"))])
def test_rows_that_differ_by_a_kind_name_its_column(proposed: Propose, column: str, cells: Sequence[str]) -> None:
    rows = [f"{when},{vdid},{kind},{speed + 7 * (kind == cells[1])}" for when, row in zip(TIMES, SPEEDS, strict=True)
            for vdid, speed in zip(IDS, row, strict=True) for kind in cells]  # fmt: skip
    proposal, _ = proposed(f"time,place,{column},value\n" + "\n".join(rows), IDS)
    assert proposal.questions
    assert f"'{column}'" in seen(proposal)
    if column == "direction":
        assert command(proposal)["sensor_column"] == ["place", "direction"]


def test_thousands_or_decimals_are_asked(proposed: Propose) -> None:
    text = wide(COUNTS + 1000).replace(",1", ";1.").replace(",", ";")
    proposal, _ = proposed(text, IDS, quantity="flow")
    assert "--decimal" in " ".join(message.advice() for message in proposal.questions)
    assert np.allclose(grid(*proposed(text, IDS, quantity="flow", decimal=",")).values[..., 0], COUNTS + 1000)


def test_a_total_beside_sensors_is_asked(proposed: Propose) -> None:
    text = wide(np.c_[SPEEDS, SPEEDS.sum(1)].round(1), (*IDS, "Total"))
    said = command(proposed(text, IDS, without_positions=True)[0])
    assert said["drop"] == "Total"
    is_read(grid(*proposed(text, IDS, **said)))
    assert not proposed(text, IDS)[0].questions  # the positions, which lack it, are asked for later


@pytest.mark.parametrize("option", ["time_column", "sensor_column", "drop", "channel"])
def test_an_option_that_names_no_column(proposed: Propose, option: str) -> None:
    with pytest.raises(SettingsError, match="D1"):
        proposed(wide(), **{option: "nowhere"})


def test_templates_are_literals_and_groups() -> None:
    assert re.fullmatch(pattern("a.b {sensor}"), "a.b S1")
    assert not re.fullmatch(pattern("a.b {sensor}"), "axb S1")
    assert pattern("speed (km/h)") == "speed (km/h)"
