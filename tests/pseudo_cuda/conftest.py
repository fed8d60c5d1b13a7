"""Whoever names this folder alone wants its tests, which are slow."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
USUAL = "not slow and not gpu"  # of pyproject.toml


def pytest_configure(config: pytest.Config) -> None:
    named = [Path(each.partition("::")[0]).resolve() for each in config.args]
    if config.option.markexpr == USUAL and all(HERE in (path, *path.parents) for path in named):
        config.option.markexpr = "not gpu"
