"""The bulk plane: routes whose bodies are streams, handed to `transport.application`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route

from querator.daemon.calls import Calls
from querator.daemon.sql import SqlEndpoint

if TYPE_CHECKING:
    from querator.daemon.service import Service


def routes(calls: Calls, service: Service) -> list[BaseRoute]:
    return [Route("/v1/sql", SqlEndpoint(calls, service))]
