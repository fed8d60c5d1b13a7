"""The description of a table: read from a file, kept as JSON, and refused where it says nothing that can be read."""

from pathlib import Path

import pytest

from socialx.core.errors import SettingsError
from socialx.files.sources.tables.spec import TableSpec, load, parse, read_name
from socialx.files.store.quantities import SPEED

FULL = TableSpec(
    {"speed": r"(?P<sensor>.+)_L(?P<lane>\d)", "flow": r"q(?P<sensor>.+)_L(?P<lane>\d)"},
    time=("date", "it's"),
    form="%d.%m.%Y %H:%M",
    shift_s=-900,
    zone="Europe/Berlin",
    units={"speed": "km/h"},
    missing=(-1.0, 0.5),
    below=0.0,
    only={"city": "essen"},
    never={"error": "1"},
    drop=("no", "007"),
    separator="\t",
    encoding="cp1252",
    skip=2,
    weights=r"q(?P<lane>\d)",
)


def test_a_description_comes_back_from_a_file_and_from_json(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    for spec in (FULL, TableSpec({"flow": "q"}, ("time",)), TableSpec({"flow": "q"}, ("time",), missing=())):
        path.write_text(spec.as_yaml())
        assert (load(path), parse(spec.as_json())) == (spec, spec)


def test_names_of_quantities_are_those_that_people_type() -> None:
    spec = TableSpec({"speed": "v"}, ("time",), units={"speed": "mph"})
    assert (spec.features, spec.units) == ((SPEED,), {SPEED: "mph"})


def test_a_file_may_say_one_name_or_several(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("values: {flow: q}\nstart: 2024-01-01\nstep_s: 300\nsensor: road\nmissing: -1\n")
    assert load(path) == TableSpec({"flow": "q"}, sensor=("road",), start="2024-01-01", step_s=300, missing=(-1.0,))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("time: [time]", "values"),
        ("values: {speed: v}", "times"),
        ("values: {weather: v}\ntime: t", "weather"),
        ("values: v\ntime: t", "values"),
        ("values: {speed: v}\ntime: [1, 2]", "time"),
        ("values: {speed: v}\ntime: t\nstep_s: 1.5", "step_s"),
        ("values: {speed: v}\ntime: t\nskip: -1", "skip"),
        ("values: {speed: v}\ntime: t\nskip: true", "skip"),
        ("values: {speed: v}\ntime: t\nname: 7", "name"),
        ("values: {speed: v}\ntime: t\nmissing: [a]", "missing"),
        ("values: {speed: v}\ntime: t\nbelow: .nan", "below"),
        ("values: {speed: v}\ntime: t\nbelow: low", "below"),
        ("values: {speed: v}\ntime: t\ndecimal: ;", "decimal"),
        ("values: {speed: v}\ntime: t\ndecimal: ','\nthousands: ','", "decimal"),
        ("values: {speed: v}\ntime: t\nencoding: latin99", "latin99"),
        ("values: {speed: v}\ntime: t\nencoding: hex", "hex"),
        ("values: {speed: v}\ntime: t\nzone: Mars", "Mars"),
        ("values: {speed: v}\ntime: t\nlatitude: lat", "longitude"),
        ("values: {speed: v}\nseconds: s", "date"),
        ("values: {speed: v}\ntime: t\nsensr: s", "sensr"),
        ("- a", "list"),
        ("values: [", "YAML"),
        ("\0", "YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_with_a_remedy(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=word) as raised:
        load(path)
    message = raised.value.messages[0]
    assert str(path) in message.where
    assert message.remedy or "YAML" in message.problem or "list" in message.problem


@pytest.mark.parametrize(
    "pattern",
    [
        "(?P<sensor>.+)" + "a" * 200,
        "(?P<sensor>(a+)+)b",
        "(?P<road>.+)",
        "(?P<sensor>.+)(?P<sensor>.+)",
        "(?P<sensor>.+).*",
        "(?P<sensor>.+)(?=a)",
        r"(?P<sensor>.+)\1",
        "(?P<sensor>.+)(?P<lane>.+)(?P<time>.+)",
        "(?P<sensor>a?a?a?)",
        "(?P<sensor>",
        "(?P<sensor>[z-a])",
    ],
)
def test_a_pattern_is_plain_text_and_named_groups(pattern: str) -> None:
    with pytest.raises(SettingsError) as raised:
        TableSpec({"speed": pattern}, ("time",))
    assert raised.value.messages[0].remedy


def test_a_pattern_reads_a_name_as_a_whole() -> None:
    assert read_name(r"speed(?P<lane>\d)", "speed2") == ("", "2", "")
    assert read_name(r"(?P<sensor>.+)_L(?P<lane>\d)", "A 1_L2") == ("A 1", "2", "")
    assert read_name(r"V(?P<time>\d\d)", "V07") == ("", "", "07")
    assert read_name(r"V(?P<time>\d\d)", "V007") is None
    assert read_name("V07", "V07") == ("", "", "")
    assert read_name("(?P<sensor>.+)", "a" * 300) is None
    assert read_name(r"(?P<sensor>\w+)\.v(?P<lane>[ab])?", "x.v") == ("x", "", "")
