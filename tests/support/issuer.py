"""An issuer of OpenID Connect for tests: one client, one person who always agrees, codes that hold once, PKCE."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from authlib.jose import JsonWebKey, jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


class Issuer:
    """An ASGI application. `address` is set once it is served."""

    def __init__(self, client: str, secret: str, person: Mapping[str, Any]) -> None:
        self.address = ""
        self._client, self._secret, self._person = client, secret, dict(person)
        self._key = JsonWebKey.generate_key("RSA", 2048, {"kid": "1"}, is_private=True)
        self._codes: dict[str, dict[str, str]] = {}
        self._app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _metadata(self, request: Request) -> Response:
        at = self.address
        return JSONResponse(
            {
                "issuer": at,
                "authorization_endpoint": f"{at}/authorize",
                "token_endpoint": f"{at}/token",
                "jwks_uri": f"{at}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def _keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [self._key.as_dict(is_private=False, use="sig", alg="RS256")]})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == self._client and asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}", 303)

    async def _token(self, request: Request) -> Response:
        given = dict(parse_qsl((await request.body()).decode()))
        basic = base64.b64encode(f"{self._client}:{self._secret}".encode()).decode()
        asked = self._codes.pop(given.get("code", ""), None)
        if asked is None or not self._knows(request, given, basic) or not _proves(asked, given):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {**self._person, "iss": self.address, "aud": self._client, "iat": now, "exp": now + 300}
        claims["nonce"] = asked.get("nonce")
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self._key).decode()
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "expires_in": 300, "id_token": token})

    def _knows(self, request: Request, given: Mapping[str, str], basic: str) -> bool:
        return request.headers.get("authorization") == f"Basic {basic}" or given.get("client_secret") == self._secret


def _proves(asked: Mapping[str, str], given: Mapping[str, str]) -> bool:
    digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
