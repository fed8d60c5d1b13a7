"""A training that was killed before its first save: what is left in its folder, and how it begins again."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from socialx.training.run_folder import RunFolder
from tests.commands import SMALL, refused, socialx, works


class _Begun(Exception):
    """The first step would come next."""


@pytest.fixture(scope="module")
def states(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder of a run after each of its writes, before the first save; no folder, and an empty one."""
    folder = tmp_path_factory.mktemp("states")
    (folder / "empty").mkdir()
    found = [folder / "none", folder / "empty"]

    def kept(name: str) -> Any:
        write = getattr(RunFolder, name)

        def then_copy(self: RunFolder, *arguments: Any) -> None:
            write(self, *arguments)
            found.append(Path(shutil.copytree(self.path, folder / f"{len(found)}")))

        return then_copy

    def first_save(*_: Any) -> None:
        raise _Begun

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_text", "write_climatology"):
            patch.setattr(RunFolder, name, kept(name))
        patch.setattr(RunFolder, "write_last", first_save)
        with pytest.raises(_Begun):
            works("train", "--data", data, "--run-dir", folder / "run", "--max-epochs", "1", *SMALL)
    return found


def test_all_writes_before_the_first_save_are_seen(states: list[Path]) -> None:
    last = {path.name for path in states[-1].iterdir()}
    assert {"settings.yaml", "protocol.json", "environment.json", "climatology.safetensors"} <= last
    assert not {"last.pt", "best.safetensors"} & last
    assert len(states) >= len(last) + 2


def test_a_resumption_says_how_to_begin_again(
    states: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise _Begun

    monkeypatch.setattr("socialx.tasks.train.fit", begin)
    for state in states:
        folder = tmp_path / state.name
        if state.exists():
            shutil.copytree(state, folder)
        error = refused("train", "--resume", folder)
        assert f"--run-dir {folder} --overwrite" in error
        command = error.partition("start again: socialx ")[2]
        words = shlex.split(command) if command else ["train", "--data", data, *SMALL]
        assert bool(command) == (folder / "settings.yaml").exists()
        with pytest.raises(_Begun):
            socialx(*words, *([] if command else ["--run-dir", folder, "--overwrite"]))


def test_it_is_the_same_training(states: list[Path], run: Path) -> None:
    works(*shlex.split(refused("train", "--resume", states[-1]).partition("start again: socialx ")[2]))
    one, other = (RunFolder(folder).read_weights().fingerprint for folder in (states[-1], run))
    assert one == other


def test_weights_are_never_replaced_by_it(run: Path) -> None:
    (run / "last.pt").unlink()
    assert "--overwrite" not in refused("train", "--resume", run)
