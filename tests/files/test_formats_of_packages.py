"""A package adds a format to convert by an entry point: the reader of the how-to page, in a distribution of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.commands import ROOT, process
from tests.documents import blocks
from tests.examples_to_extend import example

PAGE = ROOT / "docs/how-to/add-a-file-format.md"
READER, SPEEDS = example("json_lines.py"), example("speeds.jsonl")
(ENTRY,) = blocks(PAGE, "toml")
NAMED = 'FORMATS = (Format("{}", "lines", _recognise, _read, takes=frozenset()),)'


def install(folder: Path, name: str, module: str, code: str) -> None:
    """A distribution as pip would leave it: a module, and the metadata with its entry point."""
    file = folder / (module.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[socialx.formats]\n{name} = {module}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages beside a file that one of them reads."""
    (tmp_path / "speeds.jsonl").write_text(SPEEDS)
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


def convert(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(site)])
    return process("convert", *arguments, cwd=site.parent, PYTHONPATH=path)


WRITE = ("speeds.jsonl", "--without-positions", "--output-h5", "speeds.h5")


@pytest.mark.parametrize("kind", ["auto", "json-lines"])
def test_a_package_adds_a_format(kind: str, site: Path) -> None:
    assert ENTRY == '[project.entry-points."socialx.formats"]\ncity = "city_formats.json_lines"\n'
    install(site, "city", "city_formats.json_lines", READER)
    done = convert(site, kind, *WRITE)
    assert done.returncode == 0, done.stderr
    assert "wrote speeds.h5: speeds, 3 rows x 2 sensors" in done.stdout
    with h5py.File(site.parent / "speeds.h5") as file:
        np.testing.assert_array_equal(file["data/features"][:, :, 0], [[51.5, np.nan], [52, 48.5], [52.5, 48]])


def test_without_the_package_the_file_is_unknown(site: Path) -> None:
    done = convert(site, "json-lines", *WRITE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: json-lines: this is an unknown data set or format" in done.stderr


UNUSABLE = {
    "absent": ("import no_such_package\n", "cannot be imported (No module named 'no_such_package')"),
    "syntax": ("def f(:\n", "cannot be imported (invalid syntax"),
    "raises": ("raise RuntimeError('of another version\\nof socialx')\n", "cannot be imported (of another version)"),
    "without": ("number = 1\n", "has no attribute 'FORMATS')"),
    "else": ("FORMATS = ['json-lines']\n", "FORMATS of else_formats holds something else"),
}


def test_a_package_that_cannot_be_used_is_one_line(site: Path) -> None:
    for name, (code, _) in UNUSABLE.items():
        install(site, name, f"{name}_formats", code)
    install(site, "city", "city_formats.json_lines", READER)
    done = convert(site, "auto", *WRITE)
    assert done.returncode == 0, done.stderr
    for name, (_, reason) in UNUSABLE.items():
        (note,) = re.findall(rf"(?m)^note: package {name}: .*\.\n  try: .*$", done.stderr)
        assert note.startswith(f"note: package {name}: the formats are left out, because ")
        assert reason in note
        assert note.endswith("\n  try: update or remove the package")


def test_a_name_that_exists_is_not_replaced(site: Path) -> None:
    taken = {"other_a": "auto", "other_b": "csv", "other_c": "metr-la"}
    for package, name in taken.items():
        install(site, package, package, READER[: READER.index("FORMATS =")] + NAMED.format(name))
    done = convert(site, "auto", *WRITE)
    assert done.returncode == 1
    *notes, error = re.findall(r"(?m)^(\w.*\.)\n  try: (.*)$", done.stderr)
    left_out = "note: package {}: the format {} is left out, because convert has another of that name."
    assert sorted(notes) == [(left_out.format(*each), "rename it in the package") for each in taken.items()]
    assert "line 1, speeds holds an object" in error[0]


def test_two_packages_with_one_name(site: Path) -> None:
    install(site, "city", "city_formats.json_lines", READER)
    install(site, "other", "other_formats", READER)
    done = convert(site, "auto", *WRITE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the format json-lines is left out") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["convert", "--help"], ["config"]])
def test_other_commands_run_no_code_of_packages(arguments: list[str], site: Path) -> None:
    install(site, "other", "other_formats", f"open({str(site / 'ran')!r}, 'w').close()\nFORMATS = ()\n")
    path = os.pathsep.join([str(ROOT), str(site)])
    code = "import sys, runpy, atexit\natexit.register(lambda: print('@', *sys.modules))\n"
    code += f"sys.argv[1:] = {arguments!r}\n"
    code += "runpy.run_module('socialx', run_name='__main__')\n"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rsplit("@", 1)[1].split()
    assert "socialx.cli" in loaded
    assert not {"socialx.files.sources.recognition", "other_formats"} & set(loaded)
    assert not (site / "ran").exists()
