"""``python -m tests.fuzz``: many cases, one case, kills, or drawn tables alone.

python -m tests.fuzz -n 5000 [--seed S]
python -m tests.fuzz --seed S --case K
python -m tests.fuzz kills -n 50
python -m tests.fuzz drawn -n 200 [--seed S] [--case K]
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz import child, corpus, kills, runner


def main() -> int:
    """Parse the command line and run what it asks for; 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("what", nargs="?", choices=["cases", "kills", "drawn"], default="cases")
    parser.add_argument("-n", type=int, help="cases, by default 2,000; kills of each command, by default 50")
    parser.add_argument("--seed", type=int, help="by default another one each time")
    parser.add_argument("--case", type=int, help="run this one alone, and print all about it")
    parser.add_argument("--keep", type=Path, help="lay out the case in this new folder, too")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    child.warm_up()
    if given.what == "kills":
        return kills.main(given.n or 50, seed)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        found = corpus.Corpus([corpus.DRAWN]) if given.what == "drawn" else corpus.build(Path(folder))
        if given.case is None:
            numbers = range(given.n or 2000)
            print(f"{len(numbers)} cases of seed {seed}", flush=True)
            summary = runner.run_many(found, seed, numbers, lambda result: print(result.text(), flush=True))
            print(summary.table())
            return 1 if summary.failures else 0
        case = found.case(seed, given.case, Path(scratch))
        if given.keep:
            given.keep.mkdir(parents=True)
            case.lay_out(given.keep)
        with tempfile.TemporaryDirectory() as place:
            result = runner.run(case, found, Path(place))
    print(result.text())
    print(f"--- stdout\n{result.outcome.stdout[:3000]}\n--- stderr\n{result.outcome.stderr[-6000:]}")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
