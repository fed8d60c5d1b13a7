"""An error is one line that a terminal can show, however strange what it quotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from socialx.cli.error_flags import write
from socialx.core.errors import Argument, Command, Message, SocialxError, printable, sample, shortened
from tests.commands import refused


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\tb", "a\u2028b", "a\x00b", "a\udce9b", "a\r\nb"])
def test_what_ends_a_line_or_commands_a_terminal_is_escaped(text: str) -> None:
    for message in (
        Message(Path("x.csv"), text, "mend it"),
        Message(text, "wrong", "mend it"),
        Message("x", "y", text),
    ):
        assert message.line().isprintable()
        assert message.line().isascii()
    assert str(SocialxError(Path("x.csv"), text, "mend it")).isprintable()


def test_letters_of_any_alphabet_stay() -> None:
    assert printable("caf\u00e9 \u65b0 \U0001f600") == "caf\u00e9 \u65b0 \U0001f600"


@pytest.mark.parametrize("text", ["{key}: 1", "pooling:\n  {key}: 1", "model: {key}"])
def test_settings_of_any_length_are_quoted_in_short(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text.replace("{key}", "x" * 5000))
    assert len(refused("config", "-c", tmp_path / "mine.yaml", code=2).replace(str(tmp_path), "")) < 600


def test_only_the_beginning_of_something_long_is_quoted() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc..."
    assert sample(["x" * 5000, "b"]) == f"{'x' * 60}..., b"
    line = Message(Path("x.csv"), "y" * 5000, "mend it", sample=["x" * 5000] * 9).line()
    assert line.startswith("x.csv: yyy")
    assert line.endswith("...: mend it")
    assert len(line) < 500


def test_marked_arguments_and_commands_are_written_for_who_reads() -> None:
    remedy = (
        f"add {Argument('data.path', Path('a b.h5'))}, or {Command('backfill', 'x.h5', rewrite=True, meta_csv=None)}"
    )
    message = Message(Argument("overwrite", True), "wrong", remedy)
    python = "overwrite=True: wrong: add data={'path': 'a b.h5'}, or socialx.backfill('x.h5', rewrite=True)"
    assert message.line() == python
    shell = message.line(lambda part: write("train", part))
    assert shell == "--overwrite: wrong: add --data 'a b.h5', or socialx backfill x.h5 --rewrite"


@pytest.mark.parametrize(
    ("task", "key", "value", "typed"),
    [
        ("train", "loader.mode", "sharded", "--mode sharded"),
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
    assert Message("x", "\x0enot JSON\x0f", "mend it").line() == "x: \\x0enot JSON\\x0f: mend it"


def test_a_file_of_settings_is_loaded_in_python() -> None:
    command = Command("train", settings=Path("runs/a/settings.yaml"))
    assert str(Message("", "", command)) == "socialx.train(settings=socialx.load_settings(['runs/a/settings.yaml']))"


def test_settings_of_one_section_are_one_argument_in_python() -> None:
    command = Command("train", **{"data.path": Path("a.h5"), "preset": "mlp-small", "data.horizon": 288})
    assert str(Message("", "", command)) == "socialx.train(data={'path': 'a.h5', 'horizon': 288}, preset='mlp-small')"
