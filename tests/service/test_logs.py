"""Log lines."""

import logging

from mcfuser_service.logs import Lines


def line(message: str, *args: object, **extra: object) -> str:
    known = {"name": "mcfuser_service.http", "levelname": "INFO", "created": 0.5}
    record = logging.makeLogRecord({**known, "msg": message, "args": args, **extra})
    return Lines().format(record)


def test_a_line_has_time_level_logger_message_and_pairs() -> None:
    assert line("job %s", "done", job="ab-1", seconds=1.23456, device="nvidia/l4") == (
        "1970-01-01T00:00:00.500+00:00 info mcfuser_service.http job done "
        "job=ab-1 seconds=1.235 device=nvidia/l4"
    )


def test_values_cannot_forge_lines_or_pairs() -> None:
    forged = line("request", path='/x" status=200\n1970 info fake', empty="")
    assert "\n" not in forged
    assert forged.endswith(r'path="/x\" status=200\n1970 info fake" empty=""')
    assert "\n" not in line("a\nb\rc")
