"""Checking plain data against a model, with the first fault as one line for the user."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from harness.errors import ConfigError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

# In a union pydantic adds the name of the alternative to the path, which says nothing to a user.
_UNION_ARM = re.compile(r"function-|literal\[|constrained-|int$|str$")


def validated(model: type[Model], data: Any, where: str, prefix: str = "") -> Model:
    """Make ``model`` of ``data``; a fault is a ConfigError of one line."""
    try:
        return model.model_validate(data)
    except PydanticError as error:
        raise ConfigError(f"{where}: {_first_fault(error, model, prefix)}") from None


def validated_json(model: type[Model], text: bytes, where: str) -> Model:
    """Make ``model`` of JSON; a fault is a ConfigError of one line."""
    try:
        return model.model_validate_json(text)
    except PydanticError as error:
        raise ConfigError(f"{where}: {_first_fault(error, model, '')}") from None


def _first_fault(error: PydanticError, model: type[BaseModel], prefix: str) -> str:
    faults = error.errors(include_url=False, include_context=False)
    # An unknown key explains the faults that follow from it, so it comes first.
    fault = min(faults, key=lambda f: f["type"] != "extra_forbidden")
    path = [str(part) for part in fault["loc"] if not _UNION_ARM.match(str(part))]
    key = ".".join([prefix, *path] if prefix else path)
    # A union's alternatives all fail over one and the same value: that is one fault.
    others = {str(f["loc"][: len(path)]) for f in faults} - {str(fault["loc"][: len(path)])}
    more = f" (and {len(others)} more)" if others else ""
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(path[-1], _fields(model, path[:-1]))
        return f"{key}: unknown key{near}{more}"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("valid tuple", "list")
    if fault["type"] == "literal_error":
        choices = message.removeprefix("Input should be ").replace(" or ", ", ")
        words = [word.strip("' ") for word in choices.split(",")]
        near = did_you_mean(str(fault["input"]), words)
        return f"{key}: {_short(fault['input'])} is not one of {', '.join(words)}{near}{more}"
    if fault["type"] == "missing":
        return f"{key}: is missing{more}"
    if fault["type"] == "value_error":
        return f"{key}: {message}{more}" if key else f"{message}{more}"
    prefixed = f"{key}: " if key else ""
    return f"{prefixed}{message[0].lower()}{message[1:]}, got {_short(fault['input'])}{more}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        annotation = field.annotation if field else None
        arms = [annotation, *get_args(annotation)]  # a model, or a model or None
        models = [arm for arm in arms if isinstance(arm, type) and issubclass(arm, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
