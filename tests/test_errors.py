"""An error is a sentence and what to try, which a terminal can show, however strange what they quote."""

import ast
from functools import partial
from pathlib import Path

import pytest

from socialx.cli.error_flags import write
from socialx.core.errors import Argument, Command, Message, SocialxError, printable, sample, shortened, spelling
from tests.commands import ROOT, refused


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\tb", "a\u2028b", "a\x00b", "a\udce9b", "a\r\nb"])
def test_what_ends_a_line_or_commands_a_terminal_is_escaped(text: str) -> None:
    for message in (
        Message("test.said", Path("x.csv"), text, "mend it"),
        Message("test.said", text, "wrong", "mend it"),
        Message("test.said", "x", "y", text),
    ):
        assert message.line().isprintable()
        assert message.line().isascii()
    assert str(SocialxError("test.said", Path("x.csv"), text, "mend it")).replace("\n", "").isprintable()


def test_no_message_holds_a_backslash_and_an_n() -> None:
    """A library's error of several lines becomes one line."""
    message = Message("test.said", Path("x.csv"), "no model: first\n  second\r\n\nthird\n", "mend\nit", sample=["a\nb"])
    assert str(message) == "x.csv: no model: first second third (a b).\n  try: mend it"


def test_an_error_of_the_package_has_one_base() -> None:
    """With a second, such as ValueError, a handler of that one would wrap the finished message into another."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "socialx").rglob("*.py")]
    kinds = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {kind.name: list(map(ast.unparse, kind.bases)) for kind in kinds}
    errors = [of for of in bases.values() if any(base.endswith(("Error", "Exception", "Warning")) for base in of)]
    assert len(errors) > 5
    assert [of for of in errors if len(of) > 1] == []


def test_letters_of_any_alphabet_stay() -> None:
    assert printable("caf\u00e9 \u65b0 \U0001f600") == "caf\u00e9 \u65b0 \U0001f600"


@pytest.mark.parametrize("text", ["{key}: 1", "pooling:\n  {key}: 1", "model: {key}"])
def test_settings_of_any_length_are_quoted_in_short(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text.replace("{key}", "x" * 5000))
    assert len(refused("config", "-c", tmp_path / "mine.yaml", code=2).replace(str(tmp_path), "")) < 600


def test_only_the_beginning_of_something_long_is_quoted() -> None:
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "abc...")
    assert sample(["x" * 5000, "b"]) == f"{'x' * 60}..., b"
    line = Message("test.said", Path("x.csv"), "y" * 5000, "mend it", sample=["x" * 5000] * 9).line()
    assert line.startswith("x.csv: yyy")
    assert line.endswith("... Try: mend it")
    assert len(line) < 500


def test_arguments_and_commands_are_written_for_who_reads() -> None:
    def made() -> Message:
        remedy = f"add {Argument('data.path', Path('a b.h5'))}, or {Command('backfill', 'x.h5', rewrite=True)}"
        return Message("test.said", Argument("overwrite", True), "wrong", remedy)

    message = made()
    python = "overwrite=True: wrong. Try: add data={'path': 'a b.h5'}, or socialx.backfill('x.h5', rewrite=True)"
    assert (message.line(), str(message)) == (python, python.replace(" Try:", "\n  try:"))
    with spelling(partial(write, "train")):
        shell = made().text()
    assert shell == "--overwrite: wrong.\n  try: add --data 'a b.h5', or socialx backfill x.h5 --rewrite"


def test_a_sentence_has_one_full_stop_and_a_message_may_have_no_place() -> None:
    texts = [("x", "y"), ("", "y."), ("", "did you mean z?"), ("x", "")]
    assert [str(Message("test.said", *each)) for each in texts] == ["x: y.", "y.", "did you mean z?", "x."]


def test_paths_below_the_current_folder_are_typed_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path, typed in (("here/a.h5", "a.h5"), ("here/-a.h5", None), ("b.h5", None)):
        command = Command("inspect", tmp_path / path, **{"data.path": tmp_path / path})
        typed = typed or str(tmp_path / path)
        assert write("train", command) == f"socialx inspect {typed} --data {typed}"
        advice = Message("test.said", "", "", command).advice()
        assert advice == f"socialx.inspect({typed!r}, data={{'path': {typed!r}}})"


@pytest.mark.parametrize(
    ("task", "key", "value", "typed"),
    [
        ("train", "loader.mode", "sharded", "--mode sharded"),
        ("train", "pooling.adaptive_adjacency_rank", 0, "--set pooling.adaptive_adjacency_rank=0"),  # of no command
        ("predict", "loader.mode", "sharded", "--set loader.mode=sharded"),
        ("predict", "model.encoder_batch", None, "--set model.encoder_batch"),
        ("doctor", "pooling.require_locations", False, "--set pooling.require_locations=off"),
        ("predict", "model.zero_shot", True, "--zero-shot"),  # of train
        ("convert", "data.days", None, "--days"),
    ],
)
def test_a_setting_is_written_as_the_command_takes_it(task: str, key: str, value: object, typed: str) -> None:
    assert write(task, Argument(key, value)) == typed


def test_a_mark_of_somebody_else_is_escaped() -> None:
    assert Message("test.said", "x", "\x0enot JSON\x0f", "mend").line() == "x: \\x0enot JSON\\x0f. Try: mend"


def test_a_file_of_settings_is_loaded_in_python() -> None:
    command = Command("train", settings=Path("runs/a/settings.yaml"))
    assert (
        Message("test.said", "", "", command).advice()
        == "socialx.train(settings=socialx.load_settings(['runs/a/settings.yaml']))"
    )


def test_settings_of_one_section_are_one_argument_in_python() -> None:
    command = Command("train", **{"data.path": Path("a.h5"), "preset": "mlp-small", "data.horizon": 288})
    advice = Message("test.said", "", "", command).advice()
    assert advice == "socialx.train(data={'path': 'a.h5', 'horizon': 288}, preset='mlp-small')"
