"""Signing in with a token, and out again."""

from __future__ import annotations

from querator.daemon.console.pages import ConsolePage, Redirect, command
from querator.daemon.console.visits import Visit, address
from querator.errors import Unauthorized


async def show(visit: Visit) -> ConsolePage | Redirect:
    error = "" if visit.refusal is None else visit.refusal.message.partition("; ")[2]
    if visit.method == "POST":
        try:
            visit.visitor = await visit.sessions.sign_in(visit.get("secret"), visit.peer)
        except Unauthorized as raised:
            error = raised.message
        else:
            visit.is_new = True  # the browser gets the new session's id
            return Redirect(address(visit.get("to") or "/"))
    return ConsolePage(
        "sign_in.html",
        "Sign in",
        {"error": error, "to": visit.get("to")},
        commands=(command("tokens", "create", "NAME", "--role", "viewer"),),
        status=401 if error else 200,
    )


async def sign_out(visit: Visit) -> ConsolePage | Redirect:
    if visit.method == "POST":
        visit.sessions.sign_out(visit.visitor)
    return Redirect(address("/"))
