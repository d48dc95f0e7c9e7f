"""From a path to a page that is open: which folder is shown, who may ask, and the server around it."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI

from mcddpm import demo
from mcddpm.data import catalogue
from mcddpm.reconstruction.inputs import Task
from mcddpm.system import memory
from mcddpm.system.progress import Progress, note
from mcddpm.viewer.app import make_app
from mcddpm.viewer.guard import LOCAL
from mcddpm.viewer.queue import Queue
from mcddpm.viewer.results import Folder

PORT = 8137


@dataclass(frozen=True)
class Where:
    """Where the page is to be found. port: the usual one, or any that is free, unless told. browser: open one."""

    host: str = "127.0.0.1"
    port: int | None = None
    browser: bool = True


def view(path: Path | None, where: Where, model: str, *, upload_limit: str, device: str, progress: Progress) -> None:
    """Serve until interrupted."""
    root, chosen = shown(path)
    host = where.host.strip("[]")
    token = "" if is_local(host) else secrets.token_urlsafe(16)
    limit = int(memory.parse(upload_limit))
    hosts = (*LOCAL, host.lower())
    with listening(host, where.port) as taken:
        app = make_app(
            root,
            model=model,
            token=token,
            hosts=hosts,
            upload_limit=limit,
            device=device,
            extra_inputs=(demo.SCAN.resolve(),),
        )

        app.state.queue.start()  # or it is refused, because another server works in the folder

        def opened() -> None:
            if path is None:
                begin_demo(app.state.queue, model, progress)
            asked = urlencode({key: value for key, value in (("result", chosen), ("token", token)) if value})
            for name in addresses(host):
                address = f"http://{name}:{taken.getsockname()[1]}/{'?' if asked else ''}{asked}"
                progress.say(note(f"{root} is shown at {address}"))
            progress.say(note("Ctrl-C ends it"))
            if where.browser:
                address = f"http://{addresses(host)[0]}:{taken.getsockname()[1]}/?{asked}"
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        serve(app, taken, opened)


def shown(path: Path | None) -> tuple[Path, str]:
    """The folder to show, and the result to begin with."""
    if path is None:
        root = catalogue.cache() / "view-demo"
        root.mkdir(parents=True, exist_ok=True)
        return root.resolve(), ""
    if not path.exists():
        raise ValueError(f"no file or folder {path}")
    place = path.resolve()
    if place.is_dir():
        return place, ""
    if place.name not in Folder(place.parent).results():
        raise ValueError(f"{path} is not a result of mcddpm reconstruct; to reconstruct it, view its folder")
    return place.parent, place.name


def begin_demo(queue: Queue, model: str, progress: Progress) -> None:
    """The bundled scan, fourfold, once: the page shows how its samples come about."""
    name = "the bundled scan"
    for ticket in queue.listed():
        if ticket.name == name and (ticket.state in ("waiting", "running") or (queue.root / ticket.result).is_file()):
            return
    progress.say(note("reconstructing the bundled scan; watch it on the page"))
    queue.add(name, demo.SCAN.resolve(), Task(model=model, mask="random_columns"))


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def addresses(host: str) -> list[str]:
    """What to type in a browser: on this machine, and on others if they may."""
    if host not in ("0.0.0.0", "::"):
        return [f"[{host}]" if ":" in host else host]
    return ["127.0.0.1", socket.gethostname()]


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens, before anything else begins. Without a port: the usual one, or any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PORT, 0) if port is None else (port,):
        taken = socket.socket(family, socket.SOCK_STREAM)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, wanted))
            taken.listen()
            return taken
        except OSError as error:
            taken.close()
            refused = error
    raise ValueError(f"cannot listen on {host}, port {port}: {refused.strerror or refused}. Is it taken? Try --port 0")


def serve(app: FastAPI, taken: socket.socket, opened: Callable[[], None]) -> None:
    """Answer until interrupted; `opened` is called once it does."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                asyncio.get_running_loop().call_soon(opened)

    Server(uvicorn.Config(app, log_level="warning", server_header=False)).run(sockets=[taken])
