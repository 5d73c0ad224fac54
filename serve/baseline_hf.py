"""Hugging Face Transformers behind OpenAI's API, one request at a time: the control for comparisons.

    python serve/baseline_hf.py --model FOLDER [--port 8001]

Run it with a Python that has torch, transformers, uvicorn, pydantic and orjson, such as that of `.venv-vllm`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from llm_runtime.engines.hf.host import main

if __name__ == "__main__":
    main()
