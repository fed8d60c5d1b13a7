"""The Dockerfile: built and run where a container tool works; its steps are run as a script everywhere."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.slow
TOOL = next((tool for tool in ("docker", "podman") if shutil.which(tool)), None)
WORKS = TOOL is not None and subprocess.run([TOOL, "info"], capture_output=True).returncode == 0


def steps() -> list[tuple[str, str]]:
    """Instruction and argument of each step of the Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def arguments(name: str) -> list[str]:
    return [rest for each, rest in steps() if each == name]


def test_it_does_not_run_as_root_and_holds_no_more_than_the_package() -> None:
    names = [name for name, _ in steps()]
    assert set(names) <= {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert arguments("USER") == ["socialx"]
    (image,) = arguments("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim", image)  # a version, not the newest
    copied = {part for each in arguments("COPY") for part in each.split()[:-1]}
    hidden, *kept = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("**")]
    assert (hidden, {line.removeprefix("!") for line in kept}) == ("*", copied)
    assert all((ROOT / name).exists() for name in copied)


def test_its_steps_install_a_socialx_that_forecasts(tmp_path: Path) -> None:
    """In an environment that sees the torch of this one: no index of torch is asked."""
    environment, source = tmp_path / "venv", tmp_path / "src"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (inside / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    source.mkdir()
    for names in arguments("COPY"):
        *copied, _ = names.split()
        for name in copied:
            whole = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            whole(ROOT / name, source / name)
    defaults = dict(re.fullmatch(r'(\w+)="?([^"]*)"?', each).groups() for each in arguments("ARG"))  # type: ignore[union-attr]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    clean |= defaults | {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    for step in arguments("RUN"):
        if not step.startswith("useradd"):
            done = subprocess.run(["/bin/sh", "-ec", step], cwd=source, env=clean, capture_output=True, text=True)
            assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    done = subprocess.run(["socialx", "predict", "metr-la"], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "207 sensors" in done.stdout
    where = [environment / "bin/python", "-c", "import socialx, fastapi; print(socialx.__file__)"]
    assert str(environment) in subprocess.run(where, cwd=tmp_path, env=clean, capture_output=True, text=True).stdout


@pytest.mark.skipif(not WORKS, reason="no container tool works here")
@pytest.mark.timeout(1200)
def test_the_image_is_built_and_forecasts() -> None:
    assert TOOL is not None
    subprocess.run([TOOL, "build", "--tag", "socialx-test", ROOT], check=True)
    done = subprocess.run([TOOL, "run", "--rm", "socialx-test", "predict", "metr-la"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "207 sensors" in done.stdout
    user = [TOOL, "run", "--rm", "--entrypoint", "id", "socialx-test", "-un"]
    assert subprocess.run(user, capture_output=True, text=True, check=True).stdout == "socialx\n"
