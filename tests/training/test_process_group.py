"""Several processes train as one: the same weights, one voice, one clear line where one of them dies."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from socialx.core.errors import SocialxError, python
from socialx.core.precision import Precision
from socialx.training import launch
from socialx.training.learner import Learner
from socialx.training.loop import TrainState
from socialx.training.process_group import SINGLE, ProcessGroup, RemoteRankError, group_from_env
from tests.commands import ROOT, SMALL, refuses, small_file, small_run
from tests.networks import CPU, example, forecaster, network, trainer

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "160",
    "NO_COLOR": "1",
    "HOME": "/",
}
EQUAL = ["--max-epochs", "5", "--dropout", "0"]
LONG = ["--max-epochs", "8", "--batch-size", "4"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 200)


@pytest.fixture(scope="module")
def one(data: Path) -> Path:
    """20 steps of one process; the last batch of each epoch has padding."""
    return small_run(data, "one", *EQUAL, "--batch-size", "32")


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    """Eight epochs of two processes that nobody stops."""
    trained(sys.executable, *words(data, data.parent / "whole", *LONG, "--devices", "2"))
    return data.parent / "whole"


def words(data: Path, run: Path, *more: str) -> list[str]:
    given = ["train", "--data", str(data), "--run-dir", str(run), "--log-every-n-steps", "5", *SMALL, *more]
    return ["-m", "socialx", *given]


def start(*command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def trained(*command: str | Path) -> str:
    code, _, err = finished(start(*command))
    assert code == 0, err
    return err


def weights(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(run / "last.pt", weights_only=True)["learner"]["model"]
    return found


def furthest(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def rank_of(pid: int) -> int | None:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(entry[5:]) for entry in entries if entry.startswith(b"RANK=")), None)


def kill_one(launcher: subprocess.Popen[str], run: Path, rank: int, epochs: int) -> None:
    """SIGKILL the process of this rank after so many epochs."""
    for _ in range(1200):
        if (run / "metrics.csv").exists() and len((run / "metrics.csv").read_text().splitlines()) > epochs:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("no epoch ended")
    (pid,) = [pid for pid in descendants(launcher.pid) if rank_of(pid) == rank]
    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


AT_EXIT = """
import atexit, os, sys
from pathlib import Path

def tell():
    for thread in Path("/proc/self/task").iterdir():
        print("at exit:", (thread / "comm").read_text(), file=sys.stderr)

if "RANK" in os.environ:
    atexit.register(tell)
"""


@pytest.mark.slow
def test_no_thread_of_the_group_outlives_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of gloo sometimes abort a process that ends."""
    (tmp_path / "sitecustomize.py").write_text(AT_EXIT)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    said = trained(sys.executable, *words(data, tmp_path / "run", "--max-epochs", "1", "--devices", "2"))
    assert said.count("at exit: python") == 2
    assert "gloo" not in said


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_processes_take_the_steps_of_one(devices: int, one: Path, data: Path, tmp_path: Path) -> None:
    """At one global batch."""
    small = ["--batch-size", str(32 // devices), "--devices", str(devices), "--verbose"]
    said = trained(sys.executable, *words(data, tmp_path / "many", *EQUAL, *small))
    assert torch.load(one / "last.pt", weights_only=True)["learner"]["steps"] == 20
    assert furthest(one, tmp_path / "many") < 1e-5
    assert f"{32 // devices} windows x {devices} processes = 32 " in said
    assert said.count("epoch   1/5") == 1
    assert (one / "intervals.safetensors").exists()
    assert (tmp_path / "many/intervals.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_job_and_the_run_goes_on(rank: int, whole: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    job = start(sys.executable, *words(data, run, *LONG, "--devices", "2"))
    kill_one(job, run, rank, 2)
    code, _, said = finished(job)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code == 1
    assert len(errors) == 1, said
    assert re.search(f"process {rank} of 2 .* SIGKILL", errors[0])
    assert "Traceback" not in said
    trained(sys.executable, "-m", "socialx", "train", "--resume", run, "--devices", "2")
    assert furthest(whole, run) == 0


@pytest.mark.parametrize(("command", "goes_on"), [("train", True), ("profile", False)])
def test_only_a_training_that_was_killed_goes_on(command: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise ChildFailedError("socialx", {1: SimpleNamespace(exitcode=-signal.SIGKILL, timestamp=0)})

    monkeypatch.setattr(launch, "elastic_launch", lambda *_: killed)
    monkeypatch.setattr(ChildFailedError, "format_msg", lambda _: "")
    with refuses("train.killed") as caught:
        launch.launch(2, [command])
    assert re.search("process 1 of 2 .* SIGKILL", str(caught.value))
    assert ("--resume" in str(caught.value) or "resume=" in str(caught.value)) == goes_on


@pytest.mark.slow
def test_torchrun_restarts_a_job_that_goes_on(whole: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    job = start(*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", *words(data, run, *LONG))
    kill_one(job, run, 1, 2)
    code, _, said = finished(job)
    assert code == 0, said
    assert furthest(whole, run) == 0


@pytest.mark.slow
def test_an_interrupted_job_goes_on(data: Path, tmp_path: Path) -> None:
    options = ["--max-epochs", "40", "--batch-size", "4", "--devices", "2"]
    run = tmp_path / "run"
    job = start(sys.executable, *words(data, run, *options))
    for _ in range(1200):
        if (run / "metrics.csv").exists():
            break
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    code, _, said = finished(job)
    assert code == 130, said
    assert "Traceback" not in said
    assert f"train --resume {run} --devices 2\n" in said
    code, _, said = finished(start(sys.executable, "-m", "socialx", "train", "--resume", run))
    assert code == 1
    assert "by 2 processes, " in said


@pytest.mark.slow
def test_a_restart_takes_no_run_of_another_job(data: Path, tmp_path: Path) -> None:
    run = small_run(data, tmp_path / "run", "--batch-size", "16")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    again = words(data, run, "--max-epochs", "3", "--batch-size", "16")
    code, _, said = finished(start(*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", *again))
    assert code == 1
    assert said.count("holds a run already") == 2, said  # of the start and of the restart
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


OTHER_MEMORY = """
import os, sys
from socialx.dataset import loaders
loaders.free_bytes = lambda device: 10**8 if os.environ["RANK"] == "0" else 2 * 10**5
loaders.SHARD_SHARE = 0.5
from socialx.cli import main
main()
"""


@pytest.mark.slow
def test_processes_that_see_other_amounts_of_memory_share_one_order(tmp_path: Path) -> None:
    """One has the whole series, the other takes shards: both must draw the windows of the first one's order."""
    data = small_file(tmp_path, 2600)
    (tmp_path / "train.py").write_text(OTHER_MEMORY)
    linear = ["--model", "linear", "--max-epochs", "2"]
    small_run(data, "one", *linear, "--batch-size", "64")
    command = [*TORCHRUN, "--nproc-per-node", "2", tmp_path / "train.py", *words(data, tmp_path / "two", *linear)[2:]]
    trained(*command, "--batch-size", "32", "--mode", "sharded")
    states = [torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("one", "two")]
    first, second = (state["progress"]["shard"] for state in states)
    assert first == second == 0
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-5


GRADIENTS = """
import torch
from socialx.core.precision import Precision
from socialx.training.learner import Learner
from socialx.training.process_group import SINGLE, init_process_group
from tests.networks import CPU, example, forecaster, network, trainer

def step(group, examples):
    chosen = trainer(learning_rate=1e-3, gradient_clip_val=1.0)
    made = Learner(forecaster(social=2), network(), Precision("32-true", CPU), chosen, group)
    update, gradients = made._update, []
    made._update = lambda: (gradients.extend(p.grad.clone() for p in made.model.parameters()), update())
    return [made.step(examples), *gradients]

with init_process_group() as group:
    batches = [example(seed=2), example(seed=5)]
    batches[1].target.valid[:, 3:] = False  # of one share fewer count
    for shared, alone in zip(step(group, batches[group.rank:][:1]), step(SINGLE, batches), strict=True):
        torch.testing.assert_close(shared, alone, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    (tmp_path / "gradients.py").write_text(GRADIENTS)
    trained(*TORCHRUN, "--nproc-per-node", "2", tmp_path / "gradients.py")


SLOW_VOICE = """
import os, time
if os.environ.get("RANK") == "0":
    import typer
    echo = typer.echo
    typer.echo = lambda *words, **options: (time.sleep(2), echo(*words, **options))
"""


@pytest.mark.slow
@pytest.mark.parametrize("voice", ["", SLOW_VOICE], ids=["at once", "slowly"])
def test_what_is_wrong_is_said_once(voice: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that says it is the last one to end."""
    (tmp_path / "sitecustomize.py").write_text(voice)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    code, out, said = finished(start(sys.executable, *words(data, tmp_path / "run", "--devices", "2", "--width", "9")))
    assert code == 2
    assert said.count("error: ") == 1, said
    assert not out
    assert not (tmp_path / "run").exists()


# --- in this process ------------------------------------------------------------------------------------------------


def test_alone_nothing_is_exchanged() -> None:
    assert SINGLE.all_reduce(torch.tensor(3)).item() == 3
    assert SINGLE.any_rank(True)
    assert not SINGLE.any_rank(False)
    assert SINGLE.broadcast_object([3, "runs/a b\u00e9"]) == [3, "runs/a b\u00e9"]
    with pytest.raises(SocialxError, match="wrong"), SINGLE.all_or_none():
        raise SocialxError("test.said", "here", "wrong")


def test_who_this_process_is_stands_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert group_from_env() == SINGLE
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_RESTART_COUNT", "1")):
        monkeypatch.setenv(name, value)
    assert group_from_env() == ProcessGroup(3, 4, 1)
    assert not group_from_env().is_rank_zero
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # what torchrun says where nobody named the job
    assert group_from_env().job == ""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert group_from_env() == ProcessGroup(3, 4, 1, "job 7", 2)


def test_the_command_that_goes_on_has_as_many_processes() -> None:
    run = Path("runs/a")
    assert python(SINGLE.resume_command(run)) == "socialx.train(resume='runs/a')"
    assert ProcessGroup(0, 4).resume_command(run).options == {"resume": run, "devices": 4}
    assert ProcessGroup(0, 4, machines=2).resume_command(run).options == {"resume": run}


def test_what_all_have_found_is_said_by_the_first() -> None:
    error = SocialxError("test.said", "training", "the loss is not finite")
    with pytest.raises(SocialxError, match="not finite"):
        SINGLE.fail(error)
    with pytest.raises(RemoteRankError) as caught:
        ProcessGroup(1, 2).fail(error)
    assert caught.value.lines() == []


@pytest.mark.parametrize(
    ("state", "code", "says"),
    [
        (TrainState(batch=9, ranks=2), "resume.batches", "batch 9 of 8"),
        (TrainState(batch=3, ranks=4), "resume.processes", "start 4 processes"),
        (TrainState(epoch=2, best_epoch=1), "resume.processes", "by 1 processes"),
    ],
)
def test_the_rest_of_an_epoch_needs_the_same_batches(state: TrainState, code: str, says: str, tmp_path: Path) -> None:
    with refuses(code) as caught:
        state.refuse_other_batches(tmp_path / "last.pt", 8, 2)
    assert says in str(caught.value)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_step_of_several_processes_sums_once_and_is_the_step(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all have the same batches, the mean is that of one."""
    sums = []

    def all_reduce(group: ProcessGroup, tensor: Tensor) -> Tensor:
        sums.append(tensor)
        return tensor.mul_(group.world_size)

    monkeypatch.setattr(ProcessGroup, "all_reduce", all_reduce)
    ends = []
    for ranks in (1, 3):
        chosen = trainer(learning_rate=1e-2, weight_decay=1e-3, gradient_clip_val=1.0)
        made = Learner(forecaster(social=2), network(), Precision(precision, CPU), chosen, ProcessGroup(0, ranks))
        ends.append(torch.stack([made.step([example(seed=seed), example(seed=9)]) for seed in range(4)]))
    assert len(sums) == 4
    allowed = 1e-3 if precision == "32-true" else 1e-2  # half precision differs between processors
    torch.testing.assert_close(*ends, rtol=allowed, atol=allowed)
