"""examples/every-night.sh: three nights of real rows, two that fail, and a server that follows."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import socialx as api
from socialx.files.store.store import open_store
from socialx.serving.endpoints import Service, make_service
from socialx.serving.server import Runs
from socialx.settings.layers import ConfigLayers
from tests.commands import LOCATIONS, ROOT, cut_csv, small_run, works

DAY = 288  # rows
KNOWN = 5  # days that the first run is trained on
REAL = Path(sys.executable).parent
SCORES = '{"scores": {"current": {"avg_speed": {"all": {"mae": 3.5}}}}}'  # of evaluate with --json


def night(folder: Path, rows: str, day: str, programs: Path = REAL) -> subprocess.CompletedProcess[str]:
    """As cron runs it, in the folder of the file; programs: where ``socialx`` is looked up first."""
    path = f"{programs}:{REAL}:{os.environ['PATH']}"
    command = [ROOT / "examples/every-night.sh", "live.h5", rows, day]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)


def socialx_that(folder: Path, text: str) -> Path:
    """A folder with a script that takes the place of the command."""
    folder.mkdir()
    script = folder / "socialx"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("does", "code", "service"),
    [
        ("exit 0", 0, "day"),
        ("exit 3", 0, "first"),
        ("exit 1", 1, "first"),
        ("exit 2", 2, "first"),
        ("exit 4", 4, "first"),
        ("exit 127", 127, "first"),
        ("kill -KILL $$", 137, "first"),
        ("kill -TERM $$", 143, "first"),
    ],
)
@pytest.mark.parametrize("step", ["append", "--drift", "train", "--json", "--fail-above"])
def test_only_a_larger_error_is_no_failure(step: str, does: str, code: int, service: str, tmp_path: Path) -> None:
    """Whatever a step ends with; 3 of the last one alone says that the new run was scored and is not better."""
    if step != "--fail-above":
        code, service = (3, "first") if does == "exit 3" else (code, service)
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/current").symlink_to("first")
    steps = f"""case "$*" in *--json*) echo '{SCORES}' ;; esac\ncase "$*" in *{step}*) {does} ;; esac"""
    done = night(tmp_path, "rows.csv", "day", socialx_that(tmp_path / "bin", steps))
    assert (done.returncode, str((tmp_path / "runs/current").readlink())) == (code, service)
    assert re.fullmatch("" if code else f"every-night: {service} .*\n", done.stdout)
    assert (f"every-night: stopped, {service} " in done.stderr) == bool(code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "evaluate", "said"),
    [
        ("echo damaged > $new/best.safetensors", "", "weights are unreadable"),
        ("rm $new/best.safetensors $new/last.pt", "", "has no weights"),
        ("rm $new/settings.yaml", "", "not a run folder"),
        ("rm -r $new", "", "not a run folder"),
        ("echo {} > $new/protocol.json", "", "not a protocol"),
        (":", "exec > /dev/full;", "No space left"),
    ],
)
def test_a_new_run_that_cannot_be_scored_is_a_failure(
    train: str, evaluate: str, said: str, run: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "runs/first")
    (tmp_path / "runs/current").symlink_to("first")
    (tmp_path / "live.h5").symlink_to(data)
    programs = socialx_that(
        tmp_path / "bin",
        f"""new=runs/day
        case "$*" in
        train*) cp -r runs/first $new; {train} ;;
        *--json*) echo '{SCORES}' ;;
        *--fail-above*) {evaluate} exec {REAL}/socialx "$@" ;;
        esac""",
    )
    done = night(tmp_path, "rows.csv", "day", programs)
    assert done.returncode not in (0, 3)
    assert said in done.stderr
    assert "stopped, first " in done.stderr.splitlines()[-1]
    assert str((tmp_path / "runs/current").readlink()) == "first"


def followed(service: Service) -> tuple[str, str]:
    """After one look: the run that forecasts, and when the latest forecast was issued."""

    async def look() -> None:
        async with service.running():
            await service.renew()
            assert service.served.latest is not None
            await service.served.latest.look(service.worker.ask)

    asyncio.run(look())
    assert service.reason == ""
    assert service.served.latest is not None
    return service.served.run, service.served.latest.answer.decode().partition('"origin":["')[2][:19]


@pytest.mark.slow
def test_three_nights_and_two_that_fail(tmp_path: Path) -> None:
    head, *lines = cut_csv(tmp_path / "all.csv", (KNOWN + 4) * DAY, 6).read_text().splitlines()
    (tmp_path / "known.csv").write_text("\n".join([head, *lines[: KNOWN * DAY]]) + "\n")
    days = [lines[place * DAY][:10] for place in range(KNOWN, KNOWN + 4)]
    for place, day in enumerate(days, KNOWN):
        (tmp_path / f"{day}.csv").write_text("\n".join([head, *lines[place * DAY : (place + 1) * DAY]]) + "\n")
    live, current = tmp_path / "live.h5", tmp_path / "runs/current"
    works("convert", "metr-la", tmp_path / "known.csv", "--meta-csv", LOCATIONS, "--output-h5", live)
    small_run(live, tmp_path / "runs/first", "--learning-rate", "0.003")
    current.symlink_to("first")
    runs = Runs(current, ConfigLayers.from_call(None, {"data": live}), True, None)
    service = make_service(runs.load(current), 64)
    service.newer = runs.newer

    for day in days[:3]:
        before, done = str(current.readlink()), night(tmp_path, f"{day}.csv", day)
        assert done.returncode == 0, done.stderr
        after = str(current.readlink())
        old, new = (api.evaluate(tmp_path / "runs" / each, live).headline() for each in (before, day))
        kept = float(new.rsplit(" ", 1)[1]) <= float(old.rsplit(" ", 1)[1])
        assert after == (day if kept else before)
        assert f"{after} is in service" in done.stdout
        assert "of the readings" in done.stdout  # yesterday's verdict
        assert api.load_run(tmp_path / "runs" / day).protocol.last_time == f"{day} 23:55:00"
        assert followed(service) == (after, f"{day} 23:55:00")

    before, rows = str(current.readlink()), len(open_store(live).seconds)
    (tmp_path / "bad.csv").write_text((tmp_path / f"{days[3]}.csv").read_text().replace(",", ";", 1))
    (tmp_path / "runs" / days[3]).write_text("in the way")  # the training cannot begin
    for name, said, total in (
        ("bad.csv", "error: ", rows),
        (f"{days[2]}.csv", "the nearest", rows),
        (f"{days[3]}.csv", days[3], rows + DAY),
    ):
        done = night(tmp_path, name, days[3])
        assert done.returncode != 0
        assert said in done.stderr
        assert f"stopped, {before} " in done.stderr.splitlines()[-1]
        assert (str(current.readlink()), len(open_store(live).seconds)) == (before, total)
    assert followed(service) == (before, f"{days[3]} 23:55:00")  # the file has grown, the run is the old one
