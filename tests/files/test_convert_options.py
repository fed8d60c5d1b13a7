"""The options of ``convert`` and ``append`` are the fields of ``ConvertOptions``: flags, arguments and refusals
follow."""

import inspect
from pathlib import Path

import pytest

import socialx
from socialx.core.errors import SettingsError
from socialx.files.sources.request import ConvertOptions, options
from tests.data_files import refusal, speeds, timestamps, write_csv


def test_the_arguments_are_those_of_the_commands() -> None:
    for task in ("convert", "append"):
        names = set(inspect.signature(getattr(socialx, task)).parameters)
        assert {option.name for option in options(task).values()} <= names
    assert "ids" not in options("append")
    assert inspect.signature(socialx.convert).parameters["drop"].default == ()


def test_an_argument_that_is_none_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9))
    refusal(lambda: socialx.convert("csv", data, tmp_path / "out.h5", unit="mph"), "argument", "units?")
    with pytest.raises(SettingsError, match="argument"):
        socialx.append(tmp_path / "out.h5", data, ids="ids.txt")
    with pytest.raises(SettingsError, match="several"):
        socialx.convert("csv", [], tmp_path / "out.h5")


@pytest.mark.parametrize(
    ("argument", "value", "code", "word"),
    [
        ("freq", "5 parsecs", "option.minutes", ""),
        ("time_format", "today", "option.time-format", ""),
        ("quantity", "colour", "option.quantity", "occupancy"),
        ("units", " ", "option.units", ""),
        ("missing", "inf", "option.missing", ""),
        ("missing", "nan", "option.missing", ""),
        ("missing", "0,zero", "option.missing", ""),
        ("timezone", "Europe/Pari", "option.zone", "Europe/Paris"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_option(argument: str, value: str, code: str, word: str) -> None:
    flag = f"--{argument.replace('_', '-')} "
    assert refusal(lambda: ConvertOptions.from_call("convert", "data.csv", {argument: value}), flag, word).code == code


def test_values_are_read_by_their_option() -> None:
    given = {
        "freq": "5min",
        "channel": 2,
        "quantity": "Speed",
        "missing": "-1,none,0",
        "drop": "a",
        "meta_csv": "at.csv",
    }
    request = ConvertOptions.from_call("convert", ["a.csv", "b.csv"], given | {"units": None})
    assert (request.data, request.more, request.meta_csv) == (Path("a.csv"), (Path("b.csv"),), Path("at.csv"))
    assert (request.step_s, request.channel, request.quantity) == (300, "2", "avg_speed")
    assert (request.missing, request.drop, request.units) == ((-1.0, 0.0), ("a",), None)
    assert [
        ConvertOptions.from_call("convert", "a", {"missing": value}).missing
        for value in (None, "none", float("nan"), 3)
    ] == [None, (), (), (3.0,)]
