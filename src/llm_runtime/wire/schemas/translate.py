"""Validation failures as one InvalidRequest: the first fault, in the API's words, without the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llm_runtime.core.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)

MAX_PARAM = 128

_FORMS = {
    "stop": "a non-empty string or an array of at most 4 non-empty strings",
    "tool_choice": "'none', 'auto', 'required' or an object that names a tool",
    "function_call": "'none', 'auto' or an object that names a function",
    "prompt": "a string, an array of strings, an array of token ids or an array of such arrays",
    "input": "a non-empty string, or an array of what this endpoint takes",
    "system": "a string or an array of content blocks",
    "query": "a non-empty string or an object",
    "audio": "an object with a voice and a format",
    "prediction": "an object with a string or an array of text parts as content",
}
"""Fields that may have several forms: what they must be, as one sentence."""

_TYPES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_VALUES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "literal_error": lambda ctx: f"must be one of {ctx['expected']}",
    "greater_than_equal": lambda ctx: f"must be at least {_number(ctx['ge'])}",
    "greater_than": lambda ctx: f"must be greater than {_number(ctx['gt'])}",
    "less_than_equal": lambda ctx: f"must be at most {_number(ctx['le'])}",
    "less_than": lambda ctx: f"must be less than {_number(ctx['lt'])}",
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "string_too_short": lambda ctx: f"must have at least {ctx['min_length']} character",
    "too_long": lambda ctx: f"must have at most {ctx['max_length']} elements",
    "too_short": lambda ctx: f"must have at least {ctx['min_length']} element",
    "string_pattern_mismatch": lambda _: "must be a token id, written in digits",
}


def validate(model: type[Model], body: dict[str, Any]) -> Model:
    """Raises InvalidRequest naming the first offending place in OpenAI's way: `messages[0].role`."""
    try:
        return model.__pydantic_validator__.validate_python(body)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise _translate(error, body) from None


def path(*location: str | int) -> str:
    """`("messages", 0, "role")` as `messages[0].role`, cut where keys of the client make it long."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text if len(text) <= MAX_PARAM else text[: MAX_PARAM - 1] + "…"


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The required parameter '{param}' is missing.", param=param, reason="missing_required_parameter"
    )


def _translate(error: ValidationError, body: dict[str, Any]) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    kind = first["type"]
    steps, of_a_form = _real_steps(first["loc"], body, is_missing=kind == "missing")
    param = path(*steps)
    if kind == "missing":
        return missing(param)
    if of_a_form and len(steps) == 1 and steps[0] in _FORMS and kind != "too_short":
        return InvalidRequest(
            f"'{param}' must be {_FORMS[str(steps[0])]}.", param=param, reason="invalid_value"
        )
    if kind in _TYPES:
        return InvalidRequest(f"'{param}' must be {_TYPES[kind]}.", param=param, reason="invalid_type")
    if kind == "too_short" and first["ctx"]["actual_length"] == 0:
        return InvalidRequest(f"'{param}' must not be empty.", param=param, reason="empty_array")
    describe = _VALUES.get(kind)
    rule = describe(first.get("ctx", {})) if describe else "is not valid"
    return InvalidRequest(f"'{param}' {rule}.", param=param, reason="invalid_value")


def _real_steps(
    location: tuple[int | str, ...], body: dict[str, Any], *, is_missing: bool
) -> tuple[list[int | str], bool]:
    """The steps of `location` that exist in `body`, and whether the fault lies in a field of several
    forms: the validator names the form it tried as a step of its own."""
    steps: list[int | str] = []
    here: Any = body
    last = len(location) - 1
    for position, step in enumerate(location):
        if _has(here, step):
            here = here[step]
        elif not (is_missing and position == last):
            continue
        steps.append(step)
    return steps, bool(location) and location[0] in _FORMS


def _has(here: Any, step: int | str) -> bool:
    if isinstance(here, dict):
        return step in here
    return isinstance(here, list) and isinstance(step, int) and step < len(here)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
