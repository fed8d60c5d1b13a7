"""Run one case, or many, and say what is wrong with how the command ended."""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import child, oracles
from tests.fuzz.corpus import Case, Corpus

GROWN = 2 << 30
LINE = 600
SILENT = "silent: "
TRY = "  try: "
TRACES = re.compile(r"Traceback \(most recent call last\)|HDF5-DIAG|Fatal Python error|^\S+:\d+: \w*Warning:", re.M)


@dataclass(frozen=True)
class Result:
    """A case and all that is wrong with how its command ended."""

    case: Case
    outcome: child.Outcome
    wrong: tuple[str, ...]

    @property
    def end(self) -> str:
        """How the command ended."""
        done = self.outcome
        return f"exit {done.code}" if done.code is not None else f"signal {done.signal}" if done.signal else "too late"

    def text(self) -> str:
        """The command, how it ended and what is wrong, for a person."""
        case, done = self.case, self.outcome
        lines = [f"{case.base.name}: {case.target}: {case.how[:200]!a}", f"  socialx {' '.join(case.command.words)!a}"]
        lines.append(f"  {self.end}, {done.seconds:.1f} s, {done.grown >> 20} MiB; repeat: {case.repeat}")
        return "\n".join([*lines, *(f"  WRONG {each!a}" for each in self.wrong)])


def snapshot(folder: Path) -> dict[str, str]:
    """What is in a folder: sha256 of each file, the target of each link, and the kind of all else."""
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        kind = f"link to {path.readlink()}" if path.is_symlink() else "folder" if path.is_dir() else "other"
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else kind
    return found


def run(case: Case, corpus: Corpus, folder: Path) -> Result:
    """Run the command of a case in the empty ``folder``."""
    case.lay_out(folder)
    before, outcome = snapshot(folder), child.command(case.command.words, folder)
    wrong = faults(case, outcome, before, snapshot(folder))
    if outcome.code == 0 and case.command.oracle:
        wrong += _compared(case, corpus, folder, outcome)
    return Result(case, outcome, tuple(wrong))


def faults(case: Case, outcome: child.Outcome, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What is wrong with how a command ended, what it said and what it left in its folder."""
    wrong = []
    if outcome.signal:
        wrong.append(f"ended by signal {outcome.signal}")
    elif outcome.late:
        wrong.append(f"still running after {child.SECONDS:.0f} s")
    elif outcome.code == child.TRACEBACK:
        last = [line for line in outcome.stderr.splitlines() if line.strip()][-1:]
        wrong.append(f"traceback: {last[0][:200] if last else ''}")
    elif outcome.code not in (0, 1, 2, 3):
        wrong.append(f"exit code {outcome.code}")
    else:
        wrong += _said(case, outcome)
    if outcome.grown > GROWN:
        wrong.append(f"memory: {outcome.grown >> 20} MiB more")
    return [*wrong, *_left(case, outcome, before, after)]


def _said(case: Case, outcome: child.Outcome) -> list[str]:
    words, said = case.command.words, outcome.stderr
    found = TRACES.search(said + outcome.stdout)
    wrong = [f"says {found[0][:80]!r}"] if found else []
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    if outcome.code == 0:
        try:
            if "--json" in words or words[0] == "serve":
                json.loads(outcome.stdout, parse_constant=int)  # NaN is none
        except ValueError as error:
            wrong.append(f"not JSON: {str(error)[:100]}")
        return [*wrong, "an error, and exit code 0"] if errors else wrong
    if not errors or (len(errors) > 1 and outcome.code == 1):
        wrong.append(f"{len(errors)} lines of error: {said[-200:]!r}")
    rest = said.split("error: ", 1)[-1].rstrip("\n").split("\n")[1:] if errors else []
    if others := [line for line in rest if not line.startswith(("error: ", TRY))]:
        wrong.append(f"an error of several lines: {others[0][:100]!r}")
    if outcome.code == 1 and not re.search(r"^error: .*: .*\n  try: .*\S", said, re.M):
        wrong.append(f"no place or no advice: {said[:200]!r}")
    for line in errors:
        if len(line.replace(case.named, "")) > LINE:
            wrong.append(f"{len(line)} characters: {line[:100]!r}")
        if not line.isprintable():
            wrong.append(f"not printable: {line[:200]!r}")
        if outcome.code != 1 and line.count(": ") < 2 and TRY not in said:
            wrong.append(f"no advice: {line[:200]!r}")
    if outcome.code in (1, 2) and outcome.stdout and (words[0] not in ("inspect", "backfill") or "--json" in words):
        wrong.append(f"half a result: {outcome.stdout[:100]!r}")
    return wrong


def _left(case: Case, outcome: child.Outcome, before: dict[str, str], after: dict[str, str]) -> list[str]:
    wrong = [f"litter: {name}" for name in after if re.search(r"(^|/)\.[^/]*\.tmp$", name)]
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    free = case.command.writes if outcome.code in (0, 3) else ()
    if outcome.code == 1 and "loss is not finite" in outcome.stderr:  # found out in an epoch, after the start
        free = case.command.writes
    if case.kind == "dangling":  # a link stays, and what it points to is written
        links = [name for name in free if name.endswith(case.named)]
        free = (*free, *(f"{name.rpartition('/')[0]}/nowhere".lstrip("/") for name in links))
    others = {name for name in changed if not any(name == each or name.startswith(f"{each}/") for each in free)}
    victims = {name for name in others if name in before}
    wrong += [f"{SILENT}{name} changed" for name in sorted(victims)]
    wrong += [f"left behind: {name}" for name in sorted(others - victims) if f"litter: {name}" not in wrong]
    return wrong


def _compared(case: Case, corpus: Corpus, folder: Path, outcome: child.Outcome) -> list[str]:
    def compare() -> None:
        print(json.dumps(oracles.check(case, folder, outcome, corpus)))

    done = child.run(compare)
    if done.code == 0:
        return [SILENT + each for each in json.loads(done.stdout)]
    last = done.stderr.strip().splitlines()[-1:]
    return [f"{SILENT}the input cannot be read otherwise: {last[0][:160] if last else done.signal}"]


@dataclass
class Summary:
    """How many cases ended in which way, and the failed ones."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        """The summary as lines of a name and a number."""
        lines = [f"{name:<28}{number:>8,}" for name, number in sorted(self.ends.items())]
        lines.append(f"{'failed cases':<28}{len(self.failures):>8,}\n{'seconds':<28}{self.seconds:>8.0f}")
        return "\n".join(lines)


def run_many(corpus: Corpus, seed: int, cases: Iterable[int], show: Callable[[Result], None] | None = None) -> Summary:
    """Run the cases of these numbers; ``show`` is called with each that failed."""
    summary, started = Summary(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        for number in cases:
            scratch, folder = Path(place, "scratch"), Path(place, "case")
            for each in (scratch, folder):
                shutil.rmtree(each, ignore_errors=True)
                each.mkdir()
            result = run(corpus.case(seed, number, scratch), corpus, folder)
            kind = "drawn: " if result.case.base.name.startswith("drawn") else ""
            summary.ends[kind + result.end] += 1
            if result.wrong:
                summary.failures.append(result)
                if show:
                    show(result)
    summary.seconds = time.monotonic() - started
    return summary
