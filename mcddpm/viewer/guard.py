"""Who may ask: this machine's own pages, or whoever has the token; and what an answer allows a page to do.

Requests in another machine's name, from pages of other origins, and without the token are refused; the page may load
nothing from elsewhere; what was wrong is told in one line.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from mcddpm.viewer.results import Missing

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOCAL = ("127.0.0.1", "localhost", "::1")


def guard(app: FastAPI, token: str, hosts: tuple[str, ...]) -> None:
    """Every request is looked at first, and every answer carries HEADERS."""

    @app.middleware("http")
    async def look(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refusal(request, token, hosts)
        try:
            response = JSONResponse({"detail": refused[1]}, refused[0]) if refused else await call_next(request)
        except ClientDisconnect:
            response = Response(status_code=400)
        response.headers.update(HEADERS)
        if token and not refused and request.query_params.get("token"):
            response.set_cookie(_cookie(request), token, httponly=True, samesite="strict")
        return response

    @app.exception_handler(Missing)
    async def missing(_: Request, error: Missing) -> JSONResponse:
        return JSONResponse({"detail": str(error).encode("utf-8", "replace").decode()}, 404)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        """In one line, and without what was sent: it may be anything."""
        message = "; ".join(f"{'.'.join(str(p) for p in one['loc'][1:])}: {one['msg']}" for one in error.errors())
        return JSONResponse({"detail": message.encode("utf-8", "replace").decode()}, 422)


def _cookie(request: Request) -> str:
    """By port: a browser sends the cookies of one server to all ports of its machine."""
    return f"mcddpm_token_{request.url.port or 80}"


def _refusal(request: Request, token: str, hosts: tuple[str, ...]) -> tuple[int, str] | None:
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    try:
        name, netloc = urlsplit(f"//{host}").hostname or "", urlsplit(origin).netloc if origin is not None else host
    except ValueError:
        return 403, "the request's host or origin is not an address"
    if not token and name not in hosts:  # a name that someone else made point at this machine
        return 403, "this server does not answer to that name"
    if netloc != host:
        return 403, "requests from pages of another origin are refused"
    visit = request.method == "GET" and request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not visit:
        return 403, "requests from pages of another site are refused"
    given = (request.headers.get("x-token"), request.cookies.get(_cookie(request)), request.query_params.get("token"))
    if token and not any(secrets.compare_digest((one or "").encode(), token.encode()) for one in given):
        return 401, "this server asks for a token: open the address that it printed"
    return None
