"""The actions of a visitor. Each action first shows on a page of its own what it will do, and is carried out when the
visitor confirms it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from querator.daemon.console.pages import ConsolePage, Redirect
from querator.daemon.console.visits import Remark, Visit, address
from querator.errors import Forbidden, QueratorError


class Field(NamedTuple):
    name: str
    label: str
    value: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and what they are called; none for a field to type into."""


class Plan(NamedTuple):
    """What an action will do, before it is confirmed."""

    title: str
    effects: tuple[str, ...]
    button: str
    command: str
    back: str
    """The page to return to."""
    queue: str = ""
    fields: tuple[Field, ...] = ()
    hidden: Mapping[str, list[str]] = {}
    """What the form sends along."""
    is_dangerous: bool = False


class NothingChosen(Exception):
    """The visitor pressed a button without a choice. The page `back` asks for one."""

    def __init__(self, text: str, back: str) -> None:
        super().__init__(text)
        self.back = back


class Action(NamedTuple):
    plan: Callable[[Visit], Awaitable[Plan]]
    run: Callable[[Visit], Awaitable[Remark]]


def action_page(action: Action) -> Callable[[Visit], Awaitable[ConsolePage | Redirect]]:
    async def answer(visit: Visit) -> ConsolePage | Redirect:
        if not visit.may_operate():
            raise Forbidden("you may look, but change nothing")
        try:
            plan = await action.plan(visit)
        except NothingChosen as error:
            return _return(visit, error.back, Remark("warn", str(error)))
        if visit.method == "POST" and visit.get("confirmed"):
            try:
                remark = await action.run(visit)
            except QueratorError as error:
                return _asked(plan, str(error.message))
            return _return(visit, plan.back, remark)
        return _asked(plan)

    return answer


def _return(visit: Visit, back: str, remark: Remark) -> Redirect:
    return Redirect(f"{back}{'&' if '?' in back else '?'}said={visit.desk.leave(remark)}")


def _asked(plan: Plan, error: str = "") -> ConsolePage:
    return ConsolePage(
        "confirm.html", plan.title, {"plan": plan, "error": error}, commands=(plan.command,), queue=plan.queue,
        status=400 if error else 200,
    )  # fmt: skip


def job_started(job_id: str, text: str) -> Remark:
    return Remark("good", text, address("/jobs"), "Watch its progress")
