"""Processes that tests start and kill: forks of one that has loaded torch, there in milliseconds.

process = start(command, "train", "small.toml")
process.kill()                                      # or process.join(), process.exitcode
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

CONTEXT = multiprocessing.get_context("forkserver")
LOADED = (
    "torch._dynamo",
    "tyro.extras",
    "rich.progress",
    "h5py",
    "nibabel",
    "pydicom",
    "mcddpm.cli",
    "mcddpm.training.run",
)
CONTEXT.set_forkserver_preload(list(LOADED))


def start(function: Callable[..., object], *arguments: object) -> ForkServerProcess:
    """Call a function of a module in a process of its own."""
    process = CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def command(*arguments: str) -> None:
    """`mcddpm ARGUMENTS` in this process, which ends with it."""
    from mcddpm.cli import main

    sys.exit(main(arguments))
