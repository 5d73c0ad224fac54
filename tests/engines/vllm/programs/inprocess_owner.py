"""A process with vLLM's engine inside: prints the pids of everything below it as one JSON list, then waits
to be killed. Arguments: state directory, weights."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from llm_runtime.engines import proctable
from llm_runtime.engines.vllm.command import ServedModel
from llm_runtime.engines.vllm.inprocess import VllmInProcessBackend
from tests.engines.vllm.support import CONFIG, host


async def main() -> None:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    backend = VllmInProcessBackend(
        CONFIG, host(Path(sys.argv[1])), num_slots=2, model=ServedModel("m", sys.argv[2]), model_created=1
    )
    await backend.start(lambda: None)
    pids = proctable.descendants(os.getpid(), proctable.table())
    print(f"PIDS {json.dumps(pids)}", flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main())
