"""Lines of an engine's output: bounded, in order, found by prefix."""

from __future__ import annotations

import asyncio

from llm_runtime.engines.output import MAX_LINE_BYTES, MAX_LINES, OutputLines, Stream


def test_joins_pieces_and_splits_lines() -> None:
    seen: list[tuple[Stream, str]] = []
    output = OutputLines(lambda stream, line: seen.append((stream, line)))
    output.feed("stdout", b"one\ntw")
    output.feed("stderr", b"warning\r\n")
    output.feed("stdout", b"o\n\nlast")
    assert seen == [("stdout", "one"), ("stderr", "warning"), ("stdout", "two"), ("stdout", "")]
    output.close()
    assert output.last() == ("one", "two", "", "last", "warning")


def test_memory_is_bounded() -> None:
    output = OutputLines()
    for number in range(10 * MAX_LINES):
        output.feed("stderr", b"%d\n" % number)
    output.feed("stdout", b"x" * (3 * MAX_LINE_BYTES + 5))
    output.close()
    stdout = output.last()[:4]
    stderr = output.last()[4:]
    assert [len(line) for line in stdout] == [MAX_LINE_BYTES] * 3 + [5]
    assert stderr == tuple(str(number) for number in range(9 * MAX_LINES, 10 * MAX_LINES))


def test_bytes_that_are_no_text_do_not_hurt() -> None:
    output = OutputLines()
    output.feed("stdout", b"caf\xc3\n")
    assert output.last() == ("caf\ufffd",)


async def test_prefix_is_found_in_the_past_and_in_the_future() -> None:
    output = OutputLines()
    output.feed("stderr", b"LISTENING elsewhere\n")
    waiting = asyncio.create_task(output.line_with_prefix("LISTENING "))
    await asyncio.sleep(0)
    output.feed("stdout", b"loading\nLISTENING here\nLISTENING again\n")
    assert await waiting == "LISTENING here"
    assert await output.line_with_prefix("LISTENING ") == "LISTENING here"
