"""Answer the requests of a browser: the page, its script and style, and what was seen of the service.

The page is made of files of this folder; it asks no other host for anything. Each request passes
:func:`pydp2.system.http_guard.refusal`; what shows something of the service needs the token, too, which is in the URL
that the person got. Nothing is written, and no cookie is set.
"""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pydp2.page.view import first_line
from pydp2.page.watch import Watch
from pydp2.system.http_guard import refusal

_ASSETS = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_Handler = Callable[[Request], Awaitable[Response]]
_NO_TOKEN = "this page needs the token of its URL; the service has printed it\n"


class _Guard:
    """Middleware that refuses requests, and adds the headers that keep other pages out."""

    def __init__(self, app: ASGIApp, names: Collection[str], bound: str) -> None:
        self._app, self._names, self._bound = app, names, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no WebSockets here
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        path = (scope["raw_path"] + b"?" + scope["query_string"]).decode("latin-1")
        refused = refusal(scope["method"], path, headers, self._names, self._bound)
        app = self._app if refused is None else PlainTextResponse(refused.text, refused.status)
        await app(scope, receive, send_with_headers)


def make_app(watch: Watch, token: str, names: Collection[str], bound: str) -> ASGIApp:
    """Return the application for a page about what ``watch`` sees, for those who have ``token``. ``names``: hosts that
    a request may name; ``bound``: the host that it is bound to."""
    folder = files("pydp2.page")
    template = folder.joinpath("page.html").read_text(encoding="utf-8")
    assets = {name: folder.joinpath(name).read_bytes() for name in _ASSETS}

    def private(handler: _Handler) -> _Handler:
        """Return ``handler`` for those who have the token."""

        async def checked(request: Request) -> Response:
            if secrets.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
                return await handler(request)
            return PlainTextResponse(_NO_TOKEN, 403)

        return checked

    async def page(request: Request) -> Response:
        found = watch.snapshot(after=float("inf"))
        headline, rest = first_line(found["view"])
        state = found["error"] or "as of the time when this page was loaded"
        state_class = "bad" if found["error"] else ""
        filled = {"state": state, "state_class": state_class, "headline": headline, "rest": rest, "token": token}
        return Response(_filled(template, filled), media_type="text/html")

    async def snapshot(request: Request) -> Response:
        try:
            after = float(request.query_params.get("after", "0"))
        except ValueError:
            return PlainTextResponse("after must be a number of seconds\n", 400)
        return Response(
            json.dumps(watch.snapshot(after, whole="whole" in request.query_params)), media_type="application/json"
        )

    async def picture(request: Request) -> Response:
        found = watch.pictures.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("this picture is not shown any more\n", 404)
        return Response(found.data, media_type=found.media_type)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(assets[name], media_type=_ASSETS[name])

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [
        Route("/", private(page)),
        Route("/snapshot.json", private(snapshot)),
        Route("/pictures/{name}", private(picture)),
        Route("/healthz", healthy),
        Route("/{name}", asset),
    ]
    return _Guard(Starlette(routes=routes), names, bound)


def _filled(template: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", html.escape(value))
    return template
