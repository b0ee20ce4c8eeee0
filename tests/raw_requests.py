"""Requests as bytes, and the status with which the page and the metrics answer: both keep the same rules."""

from __future__ import annotations

RAW_REQUESTS = [
    (b"TRACE {} HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"FOO {} HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"GET {} HTTP/1.1\r\nHost: evil.com\r\nHost: localhost\r\n\r\n", 400),
    (b"GET {} HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    (b"GET {} HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    (b"GET /?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"GET {} HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 3000 + b"\r\n", 431),
    (b"GET {} HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", 200),
    (b"rubbish\r\n\r\n", 400),
]
"""``{}`` is the path of a page that is there."""
