"""docs/troubleshooting.md: its commands run in the page's order, and print the messages that it quotes."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from socialx.cli.error_flags import write
from socialx.core.errors import spelling
from socialx.core.precision import Precision
from socialx.settings.layers import load_settings
from socialx.tasks.build import build
from socialx.tasks.memory import TRAINING, make_memory_error
from tests.commands import EXCERPT, LOCATIONS, ROOT, socialx, works
from tests.documents import blocks, commands

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/troubleshooting.md"
TEXTS = blocks(PAGE, "text")
SMALLER = {"MODEL__WIDTH": 8, "MODEL__BLOCKS": 1, "MODEL__SLSTM_AT": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files of four sensors, one of which is silent at the end, with and without positions; and a small run."""
    where = tmp_path_factory.mktemp("city")
    lines = [line.split(",")[:5] for line in EXCERPT.read_text().splitlines()]
    header, rows = lines[0], lines[1:]
    tables = {
        "city": [row if number < 380 else [*row[:4], "0"] for number, row in enumerate(rows[:400])],
        "next": rows[500:700],
        "dark": [row if number < 270 else [row[0], *"0000"] for number, row in enumerate(rows[:300])],
        "three": [row[:4] for row in rows[:300]],
    }
    for name, table in tables.items():
        (where / f"{name}.csv").write_text("".join(",".join(row) + "\n" for row in [header[: len(table[0])], *table]))
    known = LOCATIONS.read_text().splitlines()
    (where / "places.csv").write_text("\n".join(known) + "\n")
    two = [line for line in known[1:] if line.split(",")[1] in header[1:3]]
    (where / "two_places.csv").write_text("\n".join([known[0], *two]) + "\n")
    (where / "dates.csv").write_text("time;a;b\n" + "".join(f"01/02/2024 00:{5 * m:02};50;60\n" for m in range(6)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.setenv("SOCIALX_TRAINER__DEVICE", "cpu")
        patch.setenv("SOCIALX_TRAINER__MAX_EPOCHS", "1")
        for name, value in SMALLER.items():
            patch.setenv(f"SOCIALX_{name}", str(value))
        for name in tables:
            works("convert", "csv", f"{name}.csv", *converting(), "--output-h5", f"{name}.h5")
        works("train", "--data", "city.h5", "--run-dir", "runs/first")
        yield where


def converting() -> list[str]:
    return ["--meta-csv", "places.csv", "--name", "city", "--units", "mph"]


def pattern(quoted: str) -> str:
    """``...`` is any text of a line; a table's spaces do not count."""
    return r"[^\n]*".join([r"\s+".join(map(re.escape, part.split())) for part in quoted.split("...")])


@pytest.mark.timeout(300)
def test_the_commands_print_what_the_page_quotes(folder: Path) -> None:
    assert len(commands(PAGE)) > 15
    for command, quoted in commands(PAGE):
        if "--device cuda" in command and torch.cuda.is_available():
            continue
        result = socialx(*shlex.split(command)[1:])
        said = "\n".join(" ".join(line.split()) for line in (result.stdout + result.stderr).splitlines())
        assert quoted, f"$ {command}: the page quotes nothing"
        for line in quoted:
            assert re.search(f"^{pattern(line)}", said, re.MULTILINE), f"$ {command}\n{said}\nhas not\n{line}"
        failed = any(line.startswith("error:") for line in quoted)
        assert (result.exit_code != 0) == failed, f"$ {command}: exit code {result.exit_code}"


def raising(text: str) -> Callable[..., None]:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError(text)

    return fail


def without_memory(patch: pytest.MonkeyPatch) -> str:
    patch.setattr("socialx.train", raising("DefaultCPUAllocator: can't allocate memory"), raising=False)
    return socialx("train", "--data", "city.h5").stderr


def without_a_compiler(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(torch, "compile", lambda *arguments, **options: raising("no compiler"))
    return socialx("train", "--data", "city.h5", "--compile", "default", "--run-dir", "runs/compiled").stderr


def of_a_large_model(patch: pytest.MonkeyPatch) -> str:
    return socialx("train", "--data", "city.h5", "--width", "136", "--run-dir", "runs/large").stderr


def of_a_full_card(patch: pytest.MonkeyPatch) -> str:
    experiment = build(load_settings(data={"path": "city.h5"}))
    on_a_card = replace(experiment, precision=Precision("32-true", torch.device("cuda:0")))
    with spelling(partial(write, "train")):
        error = make_memory_error(on_a_card, TRAINING, 64)
    return "\n".join(f"error: {each.text()}" for each in error.messages)


@pytest.mark.parametrize("said", [of_a_large_model, of_a_full_card, without_memory, without_a_compiler])
def test_messages_of_other_machines_are_those_of_the_code(
    said: Callable[[pytest.MonkeyPatch], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = said(monkeypatch)
    assert sum(bool(re.search(f"^{pattern(text)}$", found, re.MULTILINE)) for text in TEXTS) == 1, found


def test_every_message_has_such_a_test() -> None:
    assert len(TEXTS) == 4


def test_what_the_page_must_explain_is_there() -> None:
    for word in ("out of memory", "profile", "not finite", "refused", "positions are joined", "looks constant"):
        assert word in PAGE.read_text()
    for word in ("not that of the run", "first step takes", "No CUDA device"):
        assert word in PAGE.read_text()
