"""One thread per test process: two that wait for each other beside other work are slower than one."""

import os

from hypothesis import HealthCheck, settings

# A loaded machine is no reason to fail: tests never assert wall time.
settings.register_profile("socialx", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("socialx")

os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in [n for n in os.environ if n.startswith("SOCIALX_")]:
    del os.environ[name]  # a developer's own settings must not change what is tested
