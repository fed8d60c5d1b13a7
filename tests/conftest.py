"""One thread per test process: two that wait for each other beside other work are slower than one."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in [n for n in os.environ if n.startswith("SOCIALX_")]:
    del os.environ[name]  # a developer's own settings must not change what is tested
