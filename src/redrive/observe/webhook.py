"""Send alerts to a webhook, as JSON: `redrive worker --notify URL`."""

from __future__ import annotations

import base64
import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from .._version import __version__
from ..config import hidden_url
from ..redact import in_json
from ..registry import Registry
from .alerts import NAMES, Alert, NotSent, Watch

TIMEOUT_S = 5.0  # seconds to connect, and between two bytes of the answer
PAUSES_S = (0.5, 2.0)  # seconds between the tries of a post
_TRY_AGAIN = (408, 425, 429)


class Webhook:
    """Posts an alert to a URL when called. Raises NotSent, without the secrets of the URL, if it was not accepted.

    Tries three times, with pauses of 0.5 and 2 s, after errors that may pass (no response, 408, 425, 429, 5xx); any
    other response than 2xx ends it. Redirects are not followed. A user and password in the URL are sent as basic
    authorization."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self.shown: str = hidden_url(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
        self._headers = {"Content-Type": "application/json", "User-Agent": f"redrive/{__version__}"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_RefuseRedirect)

    def __call__(self, alert: Alert) -> None:
        body = in_json(msgspec.json.encode(alert).decode()).encode()
        for pause_s in (*PAUSES_S, None):
            why, may_pass = self._post(body)
            if why is None:
                return
            if not may_pass or pause_s is None:
                raise NotSent(f"{self.shown} {why}")
            time.sleep(pause_s)

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Post once; return why the alert was not accepted (None: it was), and True if another try may help."""
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return None, False
        except urllib.error.HTTPError as error:
            error.close()
            return f"answered {error.code}", error.code >= 500 or error.code in _TRY_AGAIN
        except (OSError, http.client.HTTPException, ssl.SSLError) as error:
            reason = getattr(error, "reason", error)
            return f"did not answer: {type(reason).__name__}", True
        except ValueError as error:  # raised if the URL is invalid
            return f"cannot be called: {type(error).__name__}", False


def notify(app: Registry, url: str, every_s: float, app_spec: str | None = None) -> Watch:
    """Post the alerts about the app's workers to `url`, at most one per subject in `every_s` seconds."""
    watch = Watch(app, NAMES, Webhook(url), channel=channel_of(url), every_ms=round(every_s * 1000), app_spec=app_spec)
    app.subscribe(watch)
    return watch


def channel_of(url: str) -> str:
    """Return the channel for alerts to this webhook: the same in every process, without the URL, a secret."""
    return f"webhook-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


class _RefuseRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to follow redirects, as a POST would become a GET elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
