"""An engine with children of its own: prints the pids as one JSON list (itself first), then waits.

Arguments: `deaf` makes all of them ignore SIGTERM, `stopped` stops them as SIGSTOP does,
`leave` makes the engine itself exit with code 3 once the list is printed. One grandchild stays in
the session, one leaves it, as workers of real engines do.
"""

from __future__ import annotations

import json
import os
import signal
import sys

flags = set(sys.argv[1:])


def grandchild(*, own_session: bool) -> int:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.read(read_fd, 1)
        return pid
    if own_session:
        os.setsid()
    os.write(write_fd, b"x")
    while True:
        signal.pause()


if "deaf" in flags:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pids = [os.getpid(), grandchild(own_session=False), grandchild(own_session=True)]
if "stopped" in flags:
    for pid in pids[1:]:
        os.kill(pid, signal.SIGSTOP)
print(json.dumps(pids), flush=True)
if "leave" in flags:
    os._exit(3)
if "stopped" in flags:
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    signal.pause()
