"""The log stream: whole lines from many threads, and nobody waits or fails for its sake."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from llm_runtime.telemetry.log_sink import GATHER_S, MAX_GATHERED, PIPE_SLICE, LineSink


class Disk(io.BytesIO):
    """Unbuffered; takes at most `part` bytes at a time and refuses all when full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.part = 10**9
        self.room = 10**9

    def fileno(self) -> int:
        raise OSError("no descriptor")

    def write(self, data: Any) -> int:
        taken = bytes(data)[: min(self.part, self.room)]
        if self.full or not taken:
            raise OSError(28, "No space left on device")
        self.room -= len(taken)
        return super().write(taken)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def lost(number: int) -> dict[str, Any]:
    return {"level": "error", "event": "log.lost", "lines": number}


class Counting(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        return super().write(data)


def test_a_line_is_one_write() -> None:
    disk = Counting()
    LineSink(disk).write(line(a=1))
    assert disk.writes == [b'{"a": 1}\n']


async def test_the_first_goes_at_once_and_those_that_follow_go_together() -> None:
    disk = Counting()
    sink = LineSink(disk)
    for number in range(10):
        sink.gather(line(number=number))
    assert disk.lines == [{"number": 0}]
    await asyncio.sleep(2 * GATHER_S)
    assert disk.lines == [{"number": number} for number in range(10)]
    assert len(disk.writes) == 2
    await asyncio.sleep(2 * GATHER_S)
    sink.gather(line(number="rare"))
    assert disk.lines[-1] == {"number": "rare"}


async def test_what_is_written_at_once_comes_after_what_was_gathered() -> None:
    disk = Counting()
    sink = LineSink(disk)
    for number in range(3):
        sink.gather(line(number=number))
    sink.write(line(number="at once"))
    assert disk.lines == [{"number": 0}, {"number": 1}, {"number": 2}, {"number": "at once"}]
    await asyncio.sleep(2 * GATHER_S)
    assert len(disk.writes) == 2


async def test_only_so_many_are_gathered() -> None:
    disk = Counting()
    sink = LineSink(disk)
    for number in range(2 + MAX_GATHERED):
        sink.gather(line(number=number))
    assert len(disk.lines) == 2 + MAX_GATHERED
    assert len(disk.writes) == 2


async def test_gathered_lines_that_find_no_room_are_each_counted() -> None:
    disk = Disk()
    sink = LineSink(disk)
    disk.full = True
    for number in range(4):
        sink.gather(line(number=number))
    sink.flush()
    assert sink.num_lost == 4
    disk.full = False
    sink.write(line(event="back"))
    assert disk.lines == [lost(4), {"event": "back"}]


async def test_gathered_lines_are_not_cut_where_others_write_to_the_same_pipe() -> None:
    writes: list[bytes] = []

    class Recording(io.FileIO):
        def write(self, data: Any) -> int:
            writes.append(bytes(data))
            return super().write(data) or 0

    read_end, write_end = os.pipe()
    with Recording(write_end, "w") as pipe:
        sink = LineSink(pipe)
        for number in range(MAX_GATHERED):
            sink.gather(line(number=number, fill="x" * 300))
        sink.flush()
        assert len(read_available(read_end).splitlines()) == MAX_GATHERED
    os.close(read_end)
    assert 2 < len(writes) < MAX_GATHERED
    assert all(data.endswith(b"\n") and len(data) <= PIPE_SLICE for data in writes)


def test_gathered_lines_are_not_lost_with_their_loop() -> None:
    disk = Counting()
    sink = LineSink(disk)

    async def tell(*numbers: int) -> None:
        for number in numbers:
            sink.gather(line(number=number))

    asyncio.run(tell(0, 1))
    assert disk.lines == [{"number": 0}]
    time.sleep(3 * GATHER_S)
    asyncio.run(tell(2))
    assert disk.lines == [{"number": 0}, {"number": 1}, {"number": 2}]
    sink.gather(line(number=3))  # where no loop runs
    sink.gather(line(number=4))
    sink.flush()
    assert disk.lines[3:] == [{"number": 3}, {"number": 4}]


def test_without_a_loop_nothing_waits() -> None:
    disk = Counting()
    sink = LineSink(disk)
    for number in range(3):
        sink.gather(line(number=number))
    assert len(disk.writes) == 3


def test_what_a_full_disk_refuses_is_counted_and_told_later() -> None:
    disk = Disk()
    sink = LineSink(disk)
    disk.full = True
    for number in range(3):
        sink.write(line(number=number))
    assert sink.num_lost == 3
    disk.full = False
    sink.write(line(event="back"))
    sink.write(line(event="more"))
    assert disk.lines == [lost(3), {"event": "back"}, {"event": "more"}]
    assert sink.num_lost == 0


def test_a_line_the_disk_took_in_part_is_ended_before_the_next() -> None:
    disk = Disk()
    sink = LineSink(disk)
    disk.room = 5
    sink.write(line(event="torn"))
    disk.room = 10**9
    sink.write(line(event="whole"))
    torn, *rest = disk.getvalue().splitlines()
    assert torn == b'{"eve'
    assert [json.loads(one) for one in rest] == [lost(1), {"event": "whole"}]


def test_a_write_taken_in_parts_makes_a_whole_line() -> None:
    disk = Disk()
    disk.part = 3
    LineSink(disk).write(line(event="whole"))
    assert disk.lines == [{"event": "whole"}]


def test_a_closed_stream_ends_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as stream:
        sink = LineSink(stream)
        sink.write(line(a=1))
    sink.write(line(a=2))
    assert sink.num_lost == 1


def test_a_pipe_nobody_reads_any_more_ends_nothing() -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "wb", buffering=0) as pipe:
        sink = LineSink(pipe)
        os.close(read_end)
        sink.write(line(a=1))
        assert sink.num_lost == 1


def read_available(descriptor: int) -> bytes:
    data = b""
    while select.select([descriptor], [], [], 0)[0]:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data


@pytest.mark.parametrize("length", [50, 3 * PIPE_SLICE])
def test_a_reader_that_stands_still_blocks_nobody_and_gets_whole_lines_later(length: int) -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "wb", buffering=0) as pipe:
        sink = LineSink(pipe, max_pending_bytes=200_000)
        num_lines = 600_000 // length
        for number in range(num_lines):
            sink.write(line(number=number, fill="x" * length))
        num_lost = sink.num_lost
        assert 0 < num_lost < num_lines
        data = read_available(read_end)
        while True:
            sink.write(line(number="later"))
            more = read_available(read_end)
            data += more
            if sink.num_lost == 0 and b"log.lost" in data:
                break
    data += read_available(read_end)
    os.close(read_end)
    seen = [json.loads(one) for one in data.splitlines()]
    numbers = [one["number"] for one in seen if isinstance(one.get("number"), int)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) + num_lost == num_lines
    assert [one for one in seen if one.get("event") == "log.lost"] == [lost(num_lost)]


def test_lines_of_many_threads_do_not_mix() -> None:
    read_end, write_end = os.pipe()
    chunks: list[bytes] = []

    def drain() -> None:
        while chunk := os.read(read_end, 65536):
            chunks.append(chunk)

    reader = threading.Thread(target=drain)
    reader.start()
    with open(write_end, "wb", buffering=0) as pipe:
        _write_from_threads(pipe)
    reader.join()
    os.close(read_end)
    _check(b"".join(chunks))


def test_lines_of_many_threads_do_not_mix_in_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as stream:
        _write_from_threads(stream)
    _check((tmp_path / "log").read_bytes())


def _write_from_threads(stream: BinaryIO) -> None:
    sink = LineSink(stream, max_pending_bytes=10**8)

    def write(name: int) -> None:
        for number in range(200):
            sink.write(line(name=name, number=number, fill="y" * (number * 40)))

    writers = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    while sink.pending_bytes:
        select.select([], [stream], [], 1.0)
        sink.flush()


def _check(data: bytes) -> None:
    seen = [json.loads(one) for one in data.splitlines()]
    assert len(seen) == 800
    for name in range(4):
        assert [one["number"] for one in seen if one["name"] == name] == list(range(200))
