"""From a path to a page that is open: which folder is shown, who may ask, and the server around it."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI

from mcddpm import demo, memory, registry
from mcddpm.scans import Task
from mcddpm.viewer.app import LOCAL, make_app
from mcddpm.viewer.queue import Queue


def view(
    path: Path | None,
    *,
    host: str,
    port: int,
    browser: bool,
    upload_limit: str,
    device: str,
    say: Callable[[str], None],
) -> None:
    """Serve until interrupted."""
    root, chosen = shown(path)
    local = is_local(host)
    token = "" if local else secrets.token_urlsafe(16)
    hosts = LOCAL if local else (*LOCAL, *names_of(host))
    queue = Queue(root, device)
    app = make_app(root, token=token, hosts=hosts, upload_limit=int(memory.parse(upload_limit)), queue=queue)
    if path is None:
        begin_demo(queue, say)

    def opened(bound: int) -> None:
        asked = urlencode({key: value for key, value in (("result", chosen), ("token", token)) if value})
        name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        address = f"http://{name}:{bound}/" + (f"?{asked}" if asked else "")
        say(f"{root} is shown at {address}  (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)

    serve(app, host, port, opened)


def shown(path: Path | None) -> tuple[Path, str]:
    """The folder to show, and the result to begin with."""
    if path is None:
        root = registry.cache() / "view-demo"
        root.mkdir(parents=True, exist_ok=True)
        return root.resolve(), ""
    if not path.exists():
        raise ValueError(f"no file or folder {path}")
    return (path.resolve(), "") if path.is_dir() else (path.resolve().parent, path.name)


def begin_demo(queue: Queue, say: Callable[[str], None]) -> None:
    """The bundled scan, fourfold, once: the page shows how its samples come about."""
    if not any(ticket.state in ("waiting", "running", "done") for ticket in queue.tickets.values()):
        say("reconstructing the bundled scan; watch it on the page")
        queue.add("the bundled scan", demo.SCAN, Task(mask="random_columns"))


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_of(host: str) -> tuple[str, ...]:
    """What a browser may call this machine."""
    return host, socket.gethostname(), socket.getfqdn(), *_addresses()


def _addresses() -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)})
    except OSError:
        return []


def serve(app: FastAPI, host: str, port: int, opened: Callable[[int], None]) -> None:
    """Answer until interrupted; `opened` is told the port once it listens."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                asyncio.get_running_loop().call_soon(opened, bound)

    try:
        Server(uvicorn.Config(app, host=host, port=port, log_level="warning", server_header=False)).run()
    except SystemExit as error:  # uvicorn's way to say that the port is taken
        raise ValueError(f"cannot listen on {host}:{port}; is the port taken? Try --port 0") from error
