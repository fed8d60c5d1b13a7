"""The package does not grow: who adds lines, files, floors, flags or settings takes as many away."""

from collections import defaultdict
from functools import cache, partial
from pathlib import Path

import pytest
from typer.main import get_command_from_info

from benchmarks.walk import order, room
from socialx.cli.flags import GENERAL
from socialx.settings.schema import KEYS
from tests.commands import ROOT, registered
from tests.test_architecture import PATHS, inner, parsed

__all__ = ["parsed"]  # a fixture

# Without the module that ``make docs`` writes from the settings.
MODULE_FILES = sorted({*(ROOT / "socialx").rglob("*.py")} - {ROOT / "socialx/settings/arguments.py"})


def lines(files: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in files)


def floors() -> int:
    """How many rooms stand above each other at most, a room above those that it imports."""
    below = defaultdict(set)
    for module in set(PATHS) - {"__main__"}:  # which only calls the command line
        below[room(module)] |= {room(other) for other in inner(module)} - {room(module)}

    @cache
    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=0)

    return max(map(floor, below))


def flags() -> int:
    """Options of all commands; one that several take counts in each, a switch and its opposite once.

    Those of every command are made in one place, and count once.
    """
    made = partial(get_command_from_info, pretty_exceptions_short=True, rich_markup_mode=None)
    options = [each for command in registered() for each in made(command).params if each.param_type_name == "option"]
    return len(options) - (len(registered()) - 1) * len(GENERAL)


# A change that lowers a number lowers it here too.
SIZES = {
    "lines of socialx/": (lambda: lines(MODULE_FILES), 33450),
    "lines of socialx/files/": (lambda: lines(sorted((ROOT / "socialx/files").rglob("*.py"))), 8809),
    "files of socialx/": (lambda: len(MODULE_FILES), 177),
    "lines of tests/": (lambda: lines(sorted((ROOT / "tests").rglob("*.py"))), 37929),
    "lines of propose.py": (lambda: lines([ROOT / "socialx/files/sources/tables/propose.py"]), 516),
    "lines of benchmarks/": (lambda: lines(sorted((ROOT / "benchmarks").rglob("*.py"))), 3470),
    "lines of the import order": (lambda: len(order()) - 1, 12),
    "floors": (floors, 9),
    "settings": (lambda: len(KEYS), 65),
    "flags": (flags, 338),  # predict takes what convert asks for a table
}


@pytest.mark.parametrize("what", SIZES)
def test_the_package_does_not_grow(what: str) -> None:
    count, most = SIZES[what]
    assert count() <= most, f"{what}: take as many away as you add"
