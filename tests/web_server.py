"""A real web server for tests: files with ranges and ETags, and faults on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """A request that came."""

    path: str
    range: str | None
    if_range: str | None


@dataclass
class Web:
    """What the server has, and how it behaves. May be changed while it runs."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    ranges: bool = True
    answers: list[int] = field(default_factory=list)
    """Status codes for the next requests, before it serves again."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the connection of each of the next answers is cut."""
    seconds_per_kilobyte: float = 0.0
    redirects: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    say_length: bool = True
    chunked: bool = False
    wrong_range: bool = False
    ignores_if_range: bool = False
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(_Handler):
        pass

    Handler.web = web
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        web = self.web
        web.asked.append(Asked(self.path, self.headers["Range"], self.headers["If-Range"]))
        if web.answers and (status := web.answers.pop(0)) != 200:
            self._empty(status)
        elif self.path in web.redirects:
            self._empty(302, Location=web.redirects[self.path])
        elif self.path not in web.files:
            self._empty(404)
        else:
            self._file(web.files[self.path])

    def _empty(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, content: bytes) -> None:
        web, first = self.web, 0
        fits = web.ignores_if_range or self.headers["If-Range"] in (None, web.etag)
        if web.ranges and fits and (asked := self.headers["Range"]):
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                self._empty(416, Content_Range=f"bytes */{len(content)}")
                return
            self.send_response(206)
            shown = first + 1 if web.wrong_range else first
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if web.etag:
            self.send_header("ETag", web.etag)
        for name, value in web.headers.items():
            self.send_header(name, value)
        if web.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif web.say_length:
            self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self._send(content[first:])

    def _send(self, content: bytes) -> None:
        cut = bool(self.web.cuts)
        if cut:
            content = content[: self.web.cuts.pop(0)]
        try:
            for start in range(0, len(content), 1024):
                block = content[start : start + 1024]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if self.web.chunked else block)
                if self.web.seconds_per_kilobyte:
                    time.sleep(self.web.seconds_per_kilobyte)
            if self.web.chunked and not cut:
                self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:  # the other side was killed
            pass
