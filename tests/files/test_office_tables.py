"""Tables as people keep them: titles, units, several sheets, notes, and what is refused of them with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import socialx
from tests.commands import small_file
from tests.data_files import refusal


@pytest.mark.parametrize("kind", ["auto", "export"])
def test_no_file_is_one_line(kind: str, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty", tmp_path / "out.h5"
    empty.mkdir()
    city = small_file(tmp_path)
    refusal(lambda: socialx.convert(kind, empty, out, without_positions=True), str(empty), "folder")
    refusal(lambda: socialx.append(city, empty), "no file in this folder", task="append")
    refusal(lambda: socialx.convert(kind, [], out, without_positions=True), "no file in it")
    refusal(lambda: socialx.append(city, []), "no file in it", task="append")
