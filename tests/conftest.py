"""One thread per test process: two that wait for each other beside other work are slower than one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no reason to fail: tests never assert wall time.
settings.register_profile("socialx", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("socialx")

os.environ.setdefault("OMP_NUM_THREADS", "1")


def has_card(devices: Path = Path("/dev")) -> bool:
    """Whether a card is there: under any number, or as WSL2 names it."""
    return any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()


# Read when triton is imported, which counting the operations of a step does; its kernels run in its interpreter here.
# On a card they are compiled.
if not has_card():
    os.environ.setdefault("TRITON_INTERPRET", "1")
for name in [n for n in os.environ if n.startswith("SOCIALX_")]:
    del os.environ[name]  # a developer's own settings must not change what is tested


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
    from tests.commands import EXCERPT, LOCATIONS, works

    output = tmp_path_factory.mktemp("excerpt") / "metr_la.h5"
    works("convert", "metr-la", EXCERPT, "--meta-csv", LOCATIONS, "--output-h5", output)
    return output


@pytest.fixture(scope="session")
def trained(data: Path) -> Path:
    """A small model that was trained on ``data`` for one epoch; shared as well."""
    from tests.commands import small_run

    return small_run(data)


@pytest.fixture
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``trained`` that a test may change."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("copy") / "run"))
