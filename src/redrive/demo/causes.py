"""The demo's sender: a response that is an error of its own kind is raised by a name of its own."""

from __future__ import annotations

import httpx

from ..deliver.sending import Poster
from ..run_context import Context


class RouteMissing(httpx.HTTPStatusError):
    """The endpoint has no such route: 404."""


class PayloadRefused(httpx.HTTPStatusError):
    """The endpoint cannot parse the event: 400."""


class HandlerCrashed(httpx.HTTPStatusError):
    """The endpoint's own code failed: 500."""


class SubscriberGone(httpx.HTTPStatusError):
    """The event has no subscribers any more: 410."""


CAUSES = {404: RouteMissing, 400: PayloadRefused, 500: HandlerCrashed, 410: SubscriberGone}  # by status


class NamingPoster(Poster):
    """A poster that raises the causes of CAUSES, so that each has a failure group with a name."""

    async def post(self, ctx: Context, body: bytes) -> None:
        try:
            await super().post(ctx, body)
        except httpx.HTTPStatusError as error:
            cause = CAUSES.get(error.response.status_code)
            if cause is None:
                raise
            raise cause(str(error), request=error.request, response=error.response) from None
