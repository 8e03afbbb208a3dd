"""Messages of confined processes survive the way through a line of JSON."""

from __future__ import annotations

import pytest

from mcfuser.process.messages import (
    Answered,
    Exhausted,
    Message,
    Refused,
    Told,
    from_json,
    to_json,
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [Told({"stage": "search"}), Answered({"report": {"ä": [1, None]}}), Answered({"tell": 1}),
     Refused("ModelError", "the model has\nno operators"), Exhausted()],
)  # fmt: skip
def test_a_message_is_one_line_and_reads_as_itself(message: Message) -> None:
    line = to_json(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert from_json(line) == message


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"stopped": "time"}', b"nonsense"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        from_json(line)
