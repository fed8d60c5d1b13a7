"""Lines and tables of a terminal: nothing is broken inside a word or repeated."""

import io
import re

from rich.console import Console

from socialx.drawing.terminal import print_line
from socialx.files.store.published import PublishedScore
from socialx.scoring.tables import ladder

SENTENCE = "missing: not finite or 0; masked mean over the whole split, per lead time"


def printed(terminal: bool, line: str) -> str:
    out = Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
    print_line(out, line)
    return out.file.getvalue()


def test_a_sentence_wraps_between_words_on_a_terminal() -> None:
    lines = printed(True, SENTENCE).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == SENTENCE


def test_a_sentence_stays_whole_in_a_pipe() -> None:
    assert printed(False, SENTENCE) == SENTENCE + "\n"


def test_a_line_is_no_markup() -> None:
    assert printed(False, "[1] of [bold]a run[/]") == "[1] of [bold]a run[/]\n"


def test_each_source_of_the_ladder_is_named_once() -> None:
    out = Console(file=io.StringIO(), width=80, color_system=None)
    long = "logs of a library with one protocol for all"
    others = [PublishedScore("A", (3.0, 4.0, 5.0), long), PublishedScore("B", (2.0, 3.0, 4.0), long)]
    others.append(PublishedScore("C", (1.0, 2.0, 3.0), "its paper"))
    ladder([(each.model, [f"{mae:.2f}" for mae in each.mae], each.source) for each in others]).print(out)
    text = out.file.getvalue()
    assert text.count(long) == 1
    heads = [part.strip() for part in re.split("[│┃]", text.splitlines()[1])]
    assert heads == ["model", "MAE 15 min", "MAE 30 min", "MAE 60 min", "from"]
    rows = {line.split("│")[0].strip(): line.split("│")[-1].strip() for line in text.splitlines() if "│" in line}
    assert rows == {"A": "[1]", "B": "[1]", "C": "[2]"}
    assert text.splitlines()[-3:-1] == [f"[1] {long}", "[2] its paper"]
