"""The machine, without any science: files, folders of resumable work, processes, seeds, settings, progress."""

from mcddpm.system.processes import Share, device_of
from mcddpm.system.progress import Notice, Progress, Quiet
from mcddpm.system.seeds import seed_of
from mcddpm.system.workspace import Piece, Workspace

__all__ = ["Notice", "Piece", "Progress", "Quiet", "Share", "Workspace", "device_of", "seed_of"]
