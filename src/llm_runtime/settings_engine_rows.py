"""The settings table's lines about models and engines, which are most of it."""

from __future__ import annotations

import types
from collections.abc import Mapping

from llm_runtime.settings_row import Row

ENGINE_ROWS: Mapping[str, Row] = types.MappingProxyType(
    {
        "model.path": Row(
            "A GGUF file or a folder of safetensors, as the engine wants it; a model of the hub that was "
            "pulled (`hf:ORG/NAME[:FILE]`); or one that ships with the project.",
            "MODEL_PATH",
        ),
        "model.name": Row(
            "What clients ask for and see; by default the builtin's name or the file's stem.", "MODEL_NAME"
        ),
        "model.default_max_tokens": Row(
            "Cap on generated tokens when a request names none.", "DEFAULT_MAX_TOKENS"
        ),
        "engines.backend": Row("Which engine serves.", "BACKEND"),
        "engines.native_backend_concurrency": Row(
            "Sequences at once in an engine that batches by itself; unset: llama.cpp 8, vLLM 128, an "
            "upstream by URL 256.",
            "NATIVE_BACKEND_CONCURRENCY",
        ),
        "engines.mock.prefill_latency_ms": Row(
            "Mock engine: milliseconds before the first token, once per batch.", "PREFILL_LATENCY_MS"
        ),
        "engines.mock.decode_latency_ms": Row(
            "Mock engine: milliseconds per decoding step, shared by the batch.", "DECODE_LATENCY_MS"
        ),
        "engines.mock.context_tokens": Row("Mock engine: context of one request, in tokens."),
        "engines.llama_cpp.server_binary": Row(
            "A `llama-server` program to run instead of the embedded engine."
        ),
        "engines.llama_cpp.n_ctx": Row(
            "Context of one request, in tokens; the engine is given this times its slots.", "N_CTX"
        ),
        "engines.llama_cpp.n_threads": Row(
            "Threads that compute; unset: one fewer than the cores this process may use, at least one. "
            "Busy neighbours on the same cores make the engine far slower than one thread less does.",
            "N_THREADS",
        ),
        "engines.llama_cpp.n_gpu_layers": Row("Layers to put on the GPU.", "N_GPU_LAYERS"),
        "engines.llama_cpp.n_batch": Row(
            "Prompt tokens per prefill step, not below the slots; unset: the slots, at least 16, so that "
            "a cancelled prefill stops soon."
        ),
        "engines.llama_cpp.cache_ram_mib": Row("The engine's prompt cache in host memory, in MiB."),
        "engines.llama_cpp.embeddings": Row(
            "Serves embeddings too, of the last token, from the same engine and slots. A `server_binary` of "
            "before 2026 may then refuse to chat."
        ),
        "engines.llama_cpp.lora_adapters": Row(
            "LoRA adapters (GGUF), each `NAME=FILE[:SCALE]` and served as a model of that name."
        ),
        "engines.vllm.command": Row(
            "Program (with first arguments) that starts a vLLM server, instead of vLLM's own entry point.",
            "VLLM_COMMAND",
        ),
        "engines.vllm.python": Row(
            "Python of vLLM's environment; unset: our own where vLLM is installed in it, else that of "
            "`.venv-vllm` beside our environment."
        ),
        "engines.vllm.port": Row("Loopback port of vLLM; unset: a private Unix socket.", "VLLM_PORT"),
        "engines.vllm.gpu_memory_utilization": Row(
            "Share of the GPU's memory that vLLM may take; unset: vLLM's default.",
            "VLLM_GPU_MEMORY_UTILIZATION",
        ),
        "engines.vllm.max_model_len": Row(
            "vLLM: prompt and answer together, in tokens; unset: what the model was trained for.",
            "VLLM_MAX_MODEL_LEN",
        ),
        "engines.vllm.max_num_batched_tokens": Row(
            "vLLM: tokens worked on in one step, prompts and answers together; unset: vLLM's default."
        ),
        "engines.vllm.dtype": Row("vLLM: numbers to compute with; `auto`: as the weights say."),
        "engines.vllm.prefix_caching": Row("vLLM: keeps the work done for prompts that begin alike."),
        "engines.vllm.scheduling_policy": Row(
            "vLLM's own order; with `priority` it is told each request's priority."
        ),
        "engines.vllm.extra_arguments": Row("More arguments for vLLM, as one would type them."),
        "engines.vllm.start_timeout_s": Row("How long vLLM may take until it is ready."),
        "engines.hf.python": Row(
            "Transformers: Python of an environment with torch and transformers; unset: our own where it has "
            "them, else that of `.venv-vllm` beside our environment."
        ),
        "engines.hf.dtype": Row("Transformers: numbers to compute with; `auto`: as the weights say."),
        "engines.hf.device": Row("Transformers: `cpu`, `cuda`, ...; `auto`: a GPU where there is one."),
        "engines.hf.n_threads": Row(
            "Transformers: threads that compute; unset: one fewer than the cores this process may use."
        ),
        "engines.hf.start_timeout_s": Row("How long Transformers may take until the model is loaded."),
        "engines.openai.url": Row(
            "Upstream: where the OpenAI-compatible server is, as the SDKs' base URL; without a path `/v1` "
            "is added. `unix:///path` is a socket. Several, separated by commas, are replicas, each with "
            "slots of its own.",
            "UPSTREAM_URL",
            is_url=True,
        ),
        "engines.openai.api_key": Row("Upstream: the key it wants.", "UPSTREAM_API_KEY", secret=True),
        "engines.openai.models": Row(
            "Upstream: models to serve, `name` or `served=upstream`; none: all that it lists, or only "
            "`model.name` where that is set."
        ),
        "engines.openai.endpoints": Row(
            "Upstream: APIs it has, of `chat`, `completions`, `responses`, `messages`, `embeddings`, "
            "`rerank`, `tokenize`; none named: all. Responses and messages it lacks are made of chats here."
        ),
        "engines.openai.headers": Row("Upstream: headers for every request, `Name: value`.", secret=True),
        "engines.openai.tls_verify": Row("Upstream: whether its certificate must be valid."),
        "engines.openai.tls_ca_file": Row("Upstream: certificates (PEM) to trust instead of the system's."),
        "engines.openai.connect_timeout_s": Row("Upstream: until a connection stands."),
        "engines.openai.health_path": Row(
            "Upstream: what is asked whether it is well, below its root; unset: `/health`, and where there "
            "is none its list of models."
        ),
        "engines.openai.health_interval_s": Row(
            "Upstream: seconds between such questions; none is asked while it is sending answers."
        ),
        "engines.openai.health_timeout_s": Row("Upstream: how long such an answer may take."),
        "engines.openai.max_health_misses": Row("Upstream: misses in a row after which it counts as down."),
        "engines.supervision.start_timeout_s": Row("How long an engine may take until it is ready."),
        "engines.supervision.stop_grace_s": Row("Time between asking an engine to stop and killing it."),
        "engines.supervision.restart_backoff_s": Row("Wait before the first restart; doubles each time."),
        "engines.supervision.restart_backoff_max_s": Row("Longest wait before a restart."),
        "engines.supervision.max_restarts": Row(
            "Restarts within `restart_window_s` after which the engine is given up."
        ),
        "engines.supervision.restart_window_s": Row("Window in which restarts are counted."),
        "engines.supervision.cancel_timeout_s": Row(
            "How long an engine may take to confirm a cancellation before its slot is suspect."
        ),
        "engines.supervision.stall_timeout_s": Row(
            "An engine that holds work and makes no progress for so long (or three times the predicted "
            "prefill, if that is longer) is restarted; `none`: never."
        ),
    }
)
