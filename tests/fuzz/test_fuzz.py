"""Corrupted and odd inputs of every reader and every run file: refused in one line, or read as they are.

The cases here are always the same; ``make fuzz`` draws others.
"""

import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import child, corpus, kills, runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 20120301
CASES = 200


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    child.warm_up()
    return corpus.build(tmp_path_factory.mktemp("corpus"))


def test_known_cases(found: corpus.Corpus) -> None:
    summary = runner.run_many(found, SEED, range(CASES))
    assert not summary.failures, "\n".join([*(result.text() for result in summary.failures), summary.table()])
    assert summary.ends["exit 0"] > CASES / 10
    assert summary.ends["exit 1"] > CASES / 4


def test_a_case_is_the_same_alone(found: corpus.Corpus, tmp_path: Path) -> None:
    """What a case is does not depend on the cases before it."""
    first = [found.case(7, number, _empty(tmp_path / f"a{number}")) for number in range(40)]
    again = [found.case(7, number, _empty(tmp_path / f"b{number}")) for number in reversed(range(40))][::-1]
    for one, other in zip(first, again, strict=True):
        assert (one.how, one.command, one.target, one.kind) == (other.how, other.command, other.target, other.kind)
        assert one.content == other.content or one.target.endswith(".h5")


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _write(name: str, code: int) -> None:
    Path(name).write_text("changed")
    raise SystemExit(code)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(1)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "an exception": (lambda: 1 / 0, "traceback: ZeroDivisionError"),
    "a crash": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "ended by signal 11"),
    "a hang": (lambda: time.sleep(60), "still running"),
    "much memory": (lambda: mmap.mmap(-1, 128 << 20).write(bytes(128 << 20)), "memory: "),
    "another file written": (lambda: _write("a.csv", 0), "silent: a.csv changed"),
    "an output after a refusal": (lambda: _write("out.h5", 1), "left behind: out.h5"),
    "a temporary": (lambda: _write(".out.h5.12.tmp", 0), "litter: .out.h5.12.tmp"),
    "no line of error": (lambda: _say("oh"), "0 lines of error"),
    "an error without advice": (lambda: _say("error: a.csv: broken"), "no place or no advice"),
    "a long error": (lambda: _say(f"error: a.csv: {'x' * 700}.\n{runner.TRY}mend it"), "715 characters"),
    "an error of two lines": (
        lambda: _say(f"error: a.csv: wrong.\n{runner.TRY}mend it\nnow"),
        "an error of several lines",
    ),
    "what a terminal obeys": (lambda: _say(f"error: a.csv: \x1b[31m.\n{runner.TRY}mend it"), "not printable"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_runner_sees(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    action, said = WRONG[name]
    monkeypatch.setattr(runner, "GROWN", 64 << 20)
    (tmp_path / "a.csv").write_text("1,2\n")
    before = runner.snapshot(tmp_path)
    done = child.run(action, tmp_path, 1 if name == "a hang" else 60)
    case = corpus.Case(0, 0, corpus.Base("", {}, ("a.csv",), ()), "a.csv", "", b"", corpus.command("convert"), "a.csv")
    wrong = runner.faults(case, done, before, runner.snapshot(tmp_path))
    assert any(each.startswith(said) for each in wrong), wrong


def test_kills(tmp_path: Path) -> None:
    """One kill of each command, and four of those that write what is costly to lose."""
    child.warm_up()
    for tally in kills.tallies(tmp_path, 1, random.Random(SEED)):
        assert not tally.wrong, (tally.wrong, f"python -m tests.fuzz kills -n 1 --seed {SEED}")
        assert tally.kills >= 1
