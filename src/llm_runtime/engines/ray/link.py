"""`Link` over a Ray Serve deployment handle."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from llm_runtime.engines.ray.base import ReplicaGone
from llm_runtime.engines.ray.steering import REPLICA

METHOD = "answer"


class HandleAnswer:
    """`Answer` of one call. Read by one task; `cancel` from anywhere on the loop."""

    __slots__ = ("_cancelled", "_response")

    def __init__(self, response: DeploymentResponseGenerator[bytes]) -> None:
        self._response = response
        self._cancelled = False

    async def __anext__(self) -> bytes:
        try:
            frame: bytes = await self._response.__anext__()
            return frame
        except RequestCancelledError:
            raise StopAsyncIteration from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if self._cancelled:
                raise StopAsyncIteration from None
            # Nobody here cancelled it: the replica that was named is not there, or lets go of its work.
            raise ReplicaGone("the call was cancelled by Ray", dead=False) from None
        except RayActorError as error:
            raise _gone(error) from error
        except RayTaskError as error:
            if isinstance(error.cause, RayActorError):
                raise _gone(error.cause) from error
            raise
        except RayServeException as error:
            raise _gone(error) from error

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._response.cancel()


def _gone(error: Exception) -> ReplicaGone:
    return ReplicaGone(type(error).__name__, dead=isinstance(error, ActorDiedError))


class HandleLink:
    """Implements `Link`. handle: of the engine deployment; used in the loop of the ingress."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle.options(method_name=METHOD, stream=True)

    def call(self, member: str, request: bytes) -> HandleAnswer:
        return HandleAnswer(self._handle.remote(request, **{REPLICA: member}))
