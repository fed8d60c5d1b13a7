"""One thread per test process: two that wait for each other beside other work are slower than one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no reason to fail: tests never assert wall time.
settings.register_profile("socialx", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("socialx")

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when triton is imported, which counting the operations of a step does; its kernels run in its interpreter here.
# On a card they are compiled.
if not Path("/dev/nvidia0").exists():
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
