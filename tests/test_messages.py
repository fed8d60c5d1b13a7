"""Each message has a code that stays, and tests/messages.txt is the list of all sentences, to be read as a diff."""

import ast

import pytest

from tests import messages


def test_every_message_has_a_code() -> None:
    calls = [(path, call) for path, _, call in messages.calls()]
    assert len(calls) > 500
    assert [f"{path}: {ast.unparse(call)}" for path, call in calls if not _is_coded(call)] == []


def _is_coded(call: ast.Call) -> bool:
    """Whether the first argument is a code, or the code of a message that is told again."""
    name = messages.code(call)
    return bool(messages.CODE.fullmatch(name)) if name else ast.unparse(call.args[0]).endswith((".code", "(code"))


def test_the_list_of_messages_is_as_in_the_code() -> None:
    if messages.TEXTS.read_text() != messages.listing():
        pytest.fail("run: python -m tests.messages, and read the difference")
