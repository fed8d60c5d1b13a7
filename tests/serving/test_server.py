"""The command: the line that it prints, the address, the token, Ctrl-C, and the commands of docs/serving.md."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import socialx as api
from tests.commands import ROOT, process, refused, refuses, socialx
from tests.serving.conftest import request_of

PAGE = (ROOT / "docs/serving.md").read_text()
PRETRAINED = ROOT / "socialx/trained/metr-la"
COMMANDS = [
    line
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in re.findall(r"^\$ (.+)$", block, re.MULTILINE)
]


@contextmanager
def started(*arguments: str | Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A server process, its address, and the note that it printed, with its advice."""
    command = [sys.executable, "-m", "socialx", "serve", *map(str, arguments), "--port", "0"]
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own, cwd=ROOT)
    try:
        said = next(line for line in server.stderr if "is served at" in line) + next(server.stderr)
        address = re.search(r"is served at (http://[\d.:]+)/\.\n  try: curl ", said)
        assert address, said
        yield server, address[1], said
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """As they stand, in the folder of the repository, but for the port."""
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    (first, *more), others = ([c for c in COMMANDS if c.startswith("socialx serve ") == its] for its in (True, False))
    for command in more:
        with started(*shlex.split(command)[2:]) as (_, address, _):
            assert httpx.get(address, timeout=60).status_code == 200
    assert sum(line.startswith("curl") for line in others) == 2
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "hour.json").write_text(block)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with started(*shlex.split(first)[2:]) as (_, address, line):
        others.append(line.split("  try: ")[1])
        for typed in others:
            command = typed.replace("http://127.0.0.1:8000", address)
            done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            if typed.startswith("curl"):
                answer = json.loads(done.stdout)
                assert len(answer["forecast"]["avg_speed"][0]) == 12, typed
                assert len(answer["sensors"]) == 207


@pytest.mark.slow
def test_ctrl_c_answers_those_who_wait() -> None:
    """Eight requests that the larger model forecasts one by one, and an interrupt when all have been let in."""
    hour = request_of(PRETRAINED / "last_two_days.h5", slice(-12, None))
    with started(PRETRAINED, "--batch-size", "1") as (server, address, _):
        answers: list[int] = []
        asked = threading.Barrier(9)

        def ask() -> None:
            with httpx.Client(base_url=address, timeout=60) as client:
                client.get("/health")
                asked.wait()
                answers.append(client.post("/forecast", json=hour).status_code)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        asked.wait()
        while let_in(address) < 8:
            time.sleep(0.005)
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
        for thread in threads:
            thread.join()
    assert (server.returncode, said, answers) == (130, "interrupted\n", [200] * 8)


def let_in(address: str) -> int:
    """How many forecasts wait or were given until now."""
    text = httpx.get(f"{address}/metrics", timeout=60).text
    return sum(map(int, re.findall(r'(?:queue_length|requests_total{path="/forecast",status="200"}) (\d+)', text)))


@pytest.mark.slow
def test_the_token_of_the_environment_is_no_setting_and_is_not_printed(run: Path) -> None:
    token = "0123456789abcdef" * 2
    with started(run, SOCIALX_TOKEN=token) as (_, address, line):
        assert token not in line
        assert '"Authorization: Bearer $SOCIALX_TOKEN"' in line
        assert httpx.get(f"{address}/sensors", timeout=60).status_code == 401
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{address}/sensors", headers=headers, timeout=60).status_code == 200
    assert process("config", SOCIALX_TOKEN=token).returncode == 0


def test_what_the_command_cannot_do_is_one_line(run: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = socialx("serve", run, "--port", taken.getsockname()[1])
    assert (result.exit_code, result.codes[-1]) == (2, "serve.bind")
    assert "already in use" in result.stderr
    for arguments, code, word in (
        (["--follow"], "serve.follow", "--data FILE.h5"),
        (["--port", "70000"], "serve.port", "65535"),
        (["--host", "nowhere.invalid"], "serve.bind", "--host"),
        (["--queue", "0"], "serve.low", "--queue 0"),
        (["--max-body", "nan"], "serve.low", "--max-body"),
        (["--alert-program", "no"], "serve.no-threshold", "--alert-below 30"),
        (["--alert-below", "30", "--alert-program", str(tmp_path / "no")], "serve.alert-program", "chmod"),
        (["--token-file", str(tmp_path / "no")], "serve.token-unreadable", str(tmp_path / "no")),
    ):
        assert (error := refused("serve", run, *arguments, code=2)).code == code
        assert word in error
    assert socialx("serve", tmp_path / "no").exit_code == 1


def test_missing_packages_are_named_with_what_installs_them(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with refuses("serve.package") as caught:
        api.serve(run)
    assert "'socialx[serve]'" in str(caught.value)
