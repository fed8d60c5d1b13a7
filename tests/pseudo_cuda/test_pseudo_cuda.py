"""The tests of a card run on the pseudo device, each file in a process of its own."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a card"),
]


@pytest.mark.parametrize("name", ["commands", "loaders", "memory", "profile", "steps"])
@pytest.mark.timeout(400)
def test_the_tests_of_a_card_pass(name: str) -> None:
    words = f"-m pytest -p tests.pseudo_cuda.device -m gpu -q -p no:cacheprovider tests/gpu/test_{name}.py"
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"^\.", done.stdout, re.MULTILINE), done.stdout  # not all of them were left out


def test_what_a_card_refuses_is_refused() -> None:
    """Each line is an operation, and what it must raise; the last ones show that the device counts what it saw."""
    script = """
import tests.pseudo_cuda.device
import torch
def refused(call, words):
    try:
        call()
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")
x, host = torch.ones(4, device="cuda"), torch.ones(4)
waits = lambda: sum(torch.ops.pseudo_cuda.waits().values())
refused(lambda: x + host, "same device")
before = waits()
x.sum().item(), x.cpu(), host.to("cuda"), x[x > 0]
assert waits() >= before + 4, torch.ops.pseudo_cuda.waits()
before = waits()
host.pin_memory().to("cuda", non_blocking=True)
assert waits() == before
torch.cuda.set_sync_debug_mode("error")
calls = lambda: x.sum().item(), lambda: x.cpu(), lambda: host.to("cuda"), lambda: x[x > 0], lambda: x[host.long()]
for call in calls:
    refused(call, "synchronizing")
torch.cuda.set_sync_debug_mode("default")
def record(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
graph = record(lambda: x.add_(1))
assert x.tolist() == [1.0] * 4  # what is recorded does not happen
graph.replay(), graph.replay()
assert x.tolist() == [3.0] * 4
def read():
    torch.nn.functional.dropout(x)
    x.sum().item()
refused(lambda: record(read), "previous error")
refused(torch.cuda.empty_cache, "captures_underway")
refused(lambda: torch.nn.functional.dropout(x), "outside graph capture")
"""
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, timeout=100)
