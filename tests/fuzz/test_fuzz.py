"""Corrupted and odd inputs of every reader and every run file: refused in one line, or read as they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import child, corpus, kills, runner

pytestmark = pytest.mark.slow
SEED = 20120301
CASES = 300
FRESH = 100
KILLS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    child.warm_up()
    return corpus.build(tmp_path_factory.mktemp("corpus"))


def shown(summary: runner.Summary, seed: int) -> str:
    """Each failure with the command that repeats it."""
    return "\n".join([f"seed {seed}", *(result.text() for result in summary.failures), summary.table()])


@pytest.mark.timeout(600)
def test_known_cases(found: corpus.Corpus) -> None:
    summary = runner.run_many(found, SEED, range(CASES))
    assert not summary.failures, shown(summary, SEED)
    assert summary.codes["exit 0"] > CASES / 10
    assert summary.codes["exit 1"] > CASES / 4


@pytest.mark.timeout(300)
def test_cases_that_nobody_has_seen(found: corpus.Corpus) -> None:
    seed = random.SystemRandom().randrange(10**6)
    summary = runner.run_many(found, seed, range(FRESH))
    assert not summary.failures, shown(summary, seed)


@pytest.mark.timeout(300)
def test_a_case_is_the_same_alone(found: corpus.Corpus, tmp_path: Path) -> None:
    """What a case is does not depend on the cases before it."""
    first = [found.case(7, number, _empty(tmp_path / f"a{number}")) for number in range(40)]
    again = [found.case(7, number, _empty(tmp_path / f"b{number}")) for number in reversed(range(40))][::-1]
    for one, other in zip(first, again, strict=True):
        assert (one.how, one.command, one.target, one.kind) == (other.how, other.command, other.target, other.kind)
        assert one.content == other.content or one.target.endswith((".h5", ".pt"))


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _wrong(action: Callable[[], object], tmp_path: Path, seconds: float) -> list[str]:
    """What the runner says about a command that does something wrong."""
    (tmp_path / "a.csv").write_text("1,2\n")
    before = runner.snapshot(tmp_path)
    done = child.run(action, tmp_path, seconds)
    case = corpus.Case(
        0, 0, corpus.Base("", {}, ("a.csv",), ()), "a.csv", "", b"", "file", corpus.Command(("convert",)), "a.csv"
    )
    return runner.faults(case, done, before, runner.snapshot(tmp_path))


def _write(name: str, code: int) -> None:
    Path(name).write_text("changed")
    raise SystemExit(code)


def _say(text: str) -> None:
    import sys

    print(text, file=sys.stderr)
    raise SystemExit(1)


def _crash() -> None:
    import os

    os.kill(os.getpid(), 11)


def _hang() -> None:
    import time

    time.sleep(60)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "an exception": (lambda: 1 / 0, "traceback: ZeroDivisionError"),
    "a crash": (_crash, "ended by signal 11"),
    "a hang": (_hang, "still running"),
    "much memory": (lambda: len(bytearray(3 << 30)), "memory: "),
    "another file written": (lambda: _write("a.csv", 0), "silent: a.csv changed"),
    "an output after a refusal": (lambda: _write("out.h5", 1), "left behind: out.h5"),
    "a temporary": (lambda: _write(".out.h5.12.tmp", 0), "litter: .out.h5.12.tmp"),
    "no line of error": (lambda: _say("oh"), "0 lines of error"),
    "an error without advice": (lambda: _say("error: a.csv: broken"), "no advice"),
    "a long error": (lambda: _say(f"error: a.csv: {'x' * 700}: mend it"), "723 characters"),
    "an error of two lines": (lambda: _say("error: a.csv: wrong: mend it\nnow"), "an error of several lines"),
    "what a terminal obeys": (lambda: _say("error: a.csv: \x1b[31m: mend it"), "not printable"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_runner_sees(name: str, tmp_path: Path) -> None:
    action, said = WRONG[name]
    found = _wrong(action, tmp_path, 5 if name == "a hang" else 60)
    assert any(each.startswith(said) for each in found), found


@pytest.mark.timeout(300)
def test_kills(tmp_path: Path) -> None:
    child.warm_up()
    (tmp_path / "made").mkdir()
    seed = random.SystemRandom().randrange(10**6)
    for tally in kills.tallies(tmp_path / "made", tmp_path / "kills", KILLS, random.Random(seed)):
        assert not tally.wrong, (tally.wrong, f"python -m tests.fuzz kills -n {KILLS} --seed {seed}")
        assert tally.kills >= KILLS
