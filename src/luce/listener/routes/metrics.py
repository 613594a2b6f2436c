"""`GET /metrics`: every metric of every model in one scrape."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from luce.listener.telemetry import Telemetry


class MetricsRoute:
    """The endpoint; it reads what the listener knows and asks no worker."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def show(self, request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics for who accepts it."""
        text, content_type = self._telemetry.metrics.scrape(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})
