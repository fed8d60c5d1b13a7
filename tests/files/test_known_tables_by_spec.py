"""Published tables are read by their columns, in one command without a question."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables.cells import take_sample
from socialx.files.sources.tables.known import TABLES
from socialx.files.sources.tables.propose import Proposal, propose
from socialx.files.store.time_axis import as_text
from tests.data_files import read_table as read

HOURS = ",".join(f"hour_{hour:02d}" for hour in range(24))
QUARTERS = ",".join(f"V{quarter:02d}" for quarter in range(96))
PEMS = "01/31/2024 00:{:02d}:00,{},7,405,N,ML,.5,9,100,{},.05,{}" + ",9,1,.1,60,1" * 2
HEADERS = {
    "METR-LA": ",767541,767542",
    "UTD19": "day,interval,detid,flow,occ,error,city,speed",
    "LibCity": "dyna_id,type,time,entity_id,traffic_flow",
    "NPMRDS": "tmc_code,measurement_tstamp,speed,average_speed,travel_time_seconds",
    "WebTRIS": "SiteId,Report Date,Time Period Ending,Time Interval,Avg mph,Total Volume",
    "PORTAL": "starttime,resolution,detector_id,speed,volume,occupancy,countreadings",
    "trafikkdata.no": "Trafikkregistreringspunkt,Fra,Til,Dato,Fra tidspunkt,Felt,Trafikkmengde",
    "DfT": "count_point_id,direction_of_travel,count_date,hour,cars_and_taxis,all_motor_vehicles",
}
# First time, feature, and a row with places for what changes.
ROWS = {
    "METR-LA": ("2012-03-01 00:00", "avg_speed", "2012-03-01 00:0{row}:00,61.5,62.5"),
    "UTD19": ("2017-05-06 00:00", "avg_speed", "2017-05-06,{seconds},{sensor},60,0.02,0,essen,61.5"),
    "LibCity": ("2012-03-05 00:00", "flow", "1,state,2012-03-05T00:0{row}:00Z,{sensor},61.5"),
    "NPMRDS": ("2012-03-05 00:00", "avg_speed", "{sensor},2012-03-05 00:0{row}:00,61.5,58,61.6"),
    "WebTRIS": ("2012-03-05 00:00", "avg_speed", "{sensor},2012-03-05T00:00:00,00:{ending}:00,{row},61.5,94"),
    "PORTAL": ("2024-11-02 07:00", "avg_speed", "2024-11-02T00:0{row}:00-07:00,00:01:00,{sensor},61.5,9,1.5,3"),
    "trafikkdata.no": ("2024-03-04 00:00", "flow", "{sensor},x,x,2024-03-04,0{row}:00,Totalt,61.5"),
    "DfT": ("2024-03-04 07:00", "flow", "{sensor},N,2024-03-04,{hour},50,61.5"),
}


def proposal(path: Path, content: str, **given: object) -> Proposal:
    path.write_text(content)
    return propose(take_sample(path), ConvertOptions.from_call("convert", path, given))


def grid(path: Path, content: str, **given: object) -> Any:
    proposed = proposal(path, content, **given)
    assert not proposed.questions, [str(question) for question in proposed.questions]
    return read(path, proposed.spec)


def text(header: str, line: str) -> str:
    rows = [
        line.format(row=row, seconds=300 * row, ending=14 + 15 * row, hour=7 + row, sensor=sensor)
        for row in range(3)
        for sensor in ((1, 2) if "{sensor}" in line else (1,))
    ]
    return "\n".join([header, *rows]) + "\n"


@pytest.mark.parametrize("name", HEADERS)
def test_a_published_table_is_read_at_once(tmp_path: Path, name: str) -> None:
    first, feature, row = ROWS[name]
    found = grid(tmp_path / "table.csv", text(HEADERS[name], row))
    assert (as_text(int(found.seconds[0])), found.features) == (f"{first}:00", (feature,))
    assert found.values.shape == (3, 2, 1)
    assert np.allclose(found.values[:, 0], 61.5)


def test_every_table_of_rows_has_a_layout_here() -> None:
    others = {"METR-LA or PEMS-BAY", "PeMS", "VDLive", "Nixtla", "Chronos", "SCATS", "MnDOT", "NSW"}
    assert {table.name for table in TABLES} - others == {*HEADERS} - {"METR-LA"}


def test_pems_has_no_header_and_columns_for_each_lane(tmp_path: Path) -> None:
    rows = [PEMS.format(5 * row, 400000 + sensor, 30 + row, 61.5) for row in range(3) for sensor in (1, 2)]
    for channel, value in (("speed", 61.5), ("flow", 30)):
        found = grid(tmp_path / "table.txt", "\n".join(rows) + "\n", channel=channel)
        assert (found.ids, found.values[0, 0, 0], found.zone) == (("400001", "400002"), value, "America/Los_Angeles")


def test_scats_has_a_column_for_each_quarter_hour(tmp_path: Path) -> None:
    counts = ",".join(map(str, range(-1, 95)))
    table = f"NB_SCATS_SITE,QT_INTERVAL_COUNT,NB_DETECTOR,{QUARTERS},CT_ALARM_24HOUR\n"
    table += "".join(f"2000,2012-03-0{day} 00:00:00,{lane},{counts},0\n" for day in (5, 6) for lane in (1, 2))
    found = grid(tmp_path / "table.csv", table, quantity="flow")
    assert found.ids == ("2000-1", "2000-2")
    assert np.isnan(found.values[0, 0, 0])
    assert found.values[1:96, 0, 0].tolist() == [*range(95)]


def test_nsw_asks_which_rows_where_classes_are_there(tmp_path: Path) -> None:
    header = f"station_key,classification_seq,date,daily_total,{HOURS}\n"
    rows = [
        f"7,{kind},2024-03-0{day}T00:00:00,9," + ",".join(str(hour + kind) for hour in range(24)) + "\n"
        for day in (4, 5)
        for kind in (0, 2)
    ]
    single = grid(tmp_path / "one.csv", header + "".join(rows[::2]), quantity="flow")
    assert single.values[:24, 0, 0].tolist() == [*range(24)]
    asked = proposal(tmp_path / "all.csv", header + "".join(rows), quantity="flow")
    assert asked.questions
    assert "classification_seq" in str(asked.questions[0])


def test_lanes_of_vdlive_are_weighted(tmp_path: Path) -> None:
    table = "VDID,DataCollectTime,LinkID,LaneID,Speed,Occupancy,Volume\n"
    table += "".join(
        f"V{sensor},2012-03-05T00:0{row}:00+08:00,L,{lane},{speed},3,{volume}\n"
        for row in range(3)
        for sensor in (1, 2)
        for lane, speed, volume in ((0, 40, 30), (1, 80, 10), (2, -99, 9))
    )
    assert np.allclose(grid(tmp_path / "table.csv", table).values, 50)


@pytest.mark.parametrize("header", ["unique_id,ds,y", "item_id,timestamp,target"])
def test_names_without_a_quantity_are_asked(tmp_path: Path, header: str) -> None:
    table = text(header, "{sensor},2012-03-05 00:0{row}:00,61.5")
    asked = proposal(tmp_path / "table.csv", table)
    assert asked.questions
    assert header.split(",")[2] in str(asked.questions[0])
    for given in ({"quantity": "flow"}, {"units": "mph"}):
        assert np.allclose(grid(tmp_path / "table.csv", table, **given).values, 61.5)


def test_a_choice_of_quantities_is_asked(tmp_path: Path) -> None:
    table = text("volume,occupancy,sensor,date,time", "8,5.5,{sensor},2024-03-04,00:0{row}:00")
    assert proposal(tmp_path / "table.csv", table).questions
    for channel, value in (("volume", 8), ("occupancy", 5.5)):
        assert np.allclose(grid(tmp_path / "table.csv", table, channel=channel).values, value)


def test_options_that_say_otherwise_win(tmp_path: Path) -> None:
    table = text(HEADERS["NPMRDS"], ROWS["NPMRDS"][2])
    assert np.allclose(grid(tmp_path / "table.csv", table, channel="average_speed").values, 58)


def test_only_totals_of_lanes_are_read(tmp_path: Path) -> None:
    row = ROWS["trafikkdata.no"][2]
    table = text(HEADERS["trafikkdata.no"], row + "\n" + row.replace("Totalt,61.5", "1,20"))
    assert np.allclose(grid(tmp_path / "table.csv", table).values, 61.5)


def test_a_table_like_metr_la_that_holds_counts_is_asked(tmp_path: Path) -> None:
    assert proposal(tmp_path / "table.csv", text(",767541,767542", "2012-03-01 00:0{row}:00,1{row},2{row}")).questions
