"""What each role may do, and which queue names a pattern matches. Pure functions and tables."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from querator.items import Role


class Right(enum.StrEnum):
    """What a caller needs for a call. The table in `http/routes.py` names one right for each call."""

    ANY = "any"
    """Every authenticated caller has it."""
    VIEW = "view"
    PRODUCE = "produce"
    CONSUME = "consume"
    OPERATE = "operate"
    ADMIN = "admin"


RIGHTS: Final[dict[Role, frozenset[Right]]] = {
    Role.VIEWER: frozenset((Right.ANY, Right.VIEW)),
    Role.PRODUCER: frozenset((Right.ANY, Right.PRODUCE)),
    Role.CONSUMER: frozenset((Right.ANY, Right.CONSUME)),
    Role.OPERATOR: frozenset((Right.ANY, Right.VIEW, Right.PRODUCE, Right.CONSUME, Right.OPERATE)),
    Role.ADMIN: frozenset(Right),
}
EVERY_QUEUE: Final = ("*",)


def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """One expression for all glob patterns. Upper and lower case differ, and `*` matches every character."""
    return re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns))
