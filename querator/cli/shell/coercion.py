"""Converts the words of a command line to values without pydantic.

Typer converts parameters with pydantic, whose import takes longer than the rest of a short command. Our parameters are
texts, numbers, flags, paths and choices, so this module converts those. It sets a private attribute of typer. If that
attribute is missing, or a parameter has another type, typer converts the value itself.
"""

from __future__ import annotations

import enum
import types
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import typer

_HOOK: Final = "_runtime_param"


def quickened(parameters: list[Any]) -> list[Any]:
    """The same parameters, with our converter for every type that it supports."""
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is not None and getattr(parameter, _HOOK, parameter) is None:
            kind = _element(descriptor.annotation)
            if kind in (str, int, float, bool, Path) or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
                setattr(parameter, _HOOK, Converter(kind, parameter))
    return parameters


def _element(annotation: Any) -> Any:
    """The type of one value: int for `list[int]` and for `int | None`."""
    origin = get_origin(annotation)
    if origin is list:
        return _element(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return next((_element(one) for one in get_args(annotation) if one is not type(None)), None)
    return annotation


class Converter:
    """Converts the values of one parameter, in place of typer's own `RuntimeParam`."""

    def __init__(self, kind: Any, parameter: Any) -> None:
        self._kind = kind
        self._many = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
        self._min, self._max = getattr(parameter, "min", None), getattr(parameter, "max", None)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self._many else None
        try:
            return [self._one(item) for item in value] if self._many else self._one(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _one(self, value: Any) -> Any:
        kind = self._kind
        if isinstance(value, kind):
            return value
        if issubclass(kind, enum.Enum):
            return self._choice(str(value))
        if kind in (int, float):
            return self._number(str(value))
        return kind(value)

    def _choice(self, word: str) -> Any:
        try:
            return self._kind(word)
        except ValueError:
            known = ", ".join(str(one.value) for one in self._kind)
            raise ValueError(f"'{word}' is not one of {known}") from None

    def _number(self, word: str) -> Any:
        try:
            number = self._kind(word)
        except ValueError:
            raise ValueError(f"'{word}' is not a {'whole ' if self._kind is int else ''}number") from None
        if self._min is not None and number < self._min:
            raise ValueError(f"{word} is less than {self._min}")
        if self._max is not None and number > self._max:
            raise ValueError(f"{word} is more than {self._max}")
        return number
