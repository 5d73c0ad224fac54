"""A process that owns an engine and can be killed: starts `family` under its guard, prints the pids
(guard first) as one JSON list, then waits. Arguments: state directory, flags of `family`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from llm_runtime.engines.process import EngineProcess, ProcessSpec


async def main() -> None:
    command = (sys.executable, str(Path(__file__).with_name("family.py")), *sys.argv[2:])
    spec = ProcessSpec("family", command, dict(os.environ), Path(sys.argv[1]), grace_s=0.2)
    process = await EngineProcess.start(spec)
    pids = json.loads(await process.output.line_with_prefix("["))
    print(json.dumps([process.pid, *pids]), flush=True)
    await process.wait()


asyncio.run(main())
