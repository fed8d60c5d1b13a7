"""One thread per test process: two that wait for each other beside other work are slower than one."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no reason to fail: tests never assert wall time.
settings.register_profile("socialx", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("socialx")

os.environ.setdefault("OMP_NUM_THREADS", "1")

for name in [n for n in os.environ if n.startswith("SOCIALX_")]:
    del os.environ[name]  # a developer's own settings must not change what is tested


MOST_CPU_S, NOISE = 1.0, 3.0  # of a fast test, a dearer one is marked slow; what other programs add to it at most
PACE_S = 0.06  # what ``pace`` measures on the processor that the limit was set on


def cpu_s() -> float:
    """Seconds of the processor that this process took, and those of its children that have ended."""
    return sum(os.times()[:4])


def pace() -> float:
    """How much slower this processor is now than the one that the limit was set on; at least 1."""
    before = cpu_s()
    sum(i * i for i in range(1_000_000))
    return max(1.0, (cpu_s() - before) / PACE_S)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[object]:
    """A fast test takes little of the processor, whatever the clock says; the first to need a library pays for it."""
    before, loaded = cpu_s(), len(sys.modules)
    result = yield
    spent, marked = cpu_s() - before, {"slow", "gpu"} & {mark.name for mark in pyfuncitem.iter_markers()}
    daily = "slow" in pyfuncitem.config.option.markexpr and "coverage" not in sys.modules  # CI does more beside it
    if daily and spent > MOST_CPU_S and not marked and len(sys.modules) < loaded + 50:
        most = MOST_CPU_S * NOISE * pace()
        assert spent <= most, f"mark the test slow, or make it cheaper: {spent:.1f} s of the processor, over {most:.1f}"
    return result


def pytest_configure(config: pytest.Config) -> None:
    from tests.commands import KEPT

    if not hasattr(config, "workerinput"):  # which processes of pytest-xdist have, and they get this variable
        os.environ[KEPT] = tempfile.mkdtemp(prefix="socialx-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    from tests.commands import KEPT

    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(KEPT), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """Typer's tree of commands is built once, and no file waits for the disk; no message holds a finished one."""
    from functools import cache

    import typer.testing
    from typer.main import get_command

    from socialx.core.errors import Message
    from tests.commands import registered

    plain = Message.__init__

    def alone(self: Message, *parts: object, **options: object) -> None:
        assert not any("\n  try: " in str(part) for part in parts), "one finished message stands inside another"
        plain(self, *parts, **options)  # type: ignore[arg-type]

    registered()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Message, "__init__", alone)
        patch.setattr(typer.testing, "_get_command", cache(get_command))
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread, whatever the environment says."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 rows of four sensors; shared by all tests, so none may change it."""
    from tests.commands import small_file

    return small_file(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def excerpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole excerpt of the repository as a file; shared as well."""
    from tests.commands import EXCERPT, LOCATIONS, kept, works

    words = ("convert", "metr-la", EXCERPT, "--meta-csv", LOCATIONS, "--output-h5")
    place = kept("excerpt", lambda place: works(*words, place / "metr_la.h5"))
    return Path(shutil.copy(place / "metr_la.h5", tmp_path_factory.mktemp("excerpt")))


@pytest.fixture(scope="session")
def trained(data: Path) -> Path:
    """A small model that was trained on ``data`` for one epoch; shared as well."""
    from tests.commands import small_run

    return small_run(data)


@pytest.fixture
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``trained`` that a test may change."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("copy") / "run"))
