"""Processes that are started in a tenth of a second: with `mcddpm.system`, and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mcddpm

BARE = f"""
import sys, types
package = types.ModuleType("mcddpm")
package.__path__ = {[str(Path(mcddpm.__file__).parent)]}
sys.modules["mcddpm"] = package
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs this, with `sys.argv[1:]`; its output can be read."""
    command = [sys.executable, "-c", BARE + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def a_dead_process() -> int:
    """The number of a process that was and is no more."""
    ended = start("")
    ended.communicate()
    return ended.pid
