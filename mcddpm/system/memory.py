"""How much memory a call takes, and how many samples fit into what is allowed."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PROCESS = 700e6  # Python with torch and the libraries that read and write scans, before the first tensor
SCRATCH = 1.5  # what convolutions set aside for themselves, over what tensors take

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse(text: str) -> float:
    """2GB, 500M, 1.5 GB or a number of bytes -> bytes."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match or not float(match[1]) > 0:
        raise ValueError(f"memory is {text!r}, expected a size as 2GB or 500MB")
    return float(match[1]) * UNITS[match[2]]


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside: `now` alive, `most` alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most = 0, 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key not in given and key not in self._seen:  # neither a view nor written in place
                self._seen.add(key)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most that tensors made in this call take at once."""
    with torch.no_grad(), Peak() as peak:
        call()
    return peak.most


def batch_within(memory: float, bytes_a_sample: float, device: torch.device) -> int:
    """How many samples fit, by numbers that do not change from run to run, as neither must the batches; 0: none.

    On a CPU the limit is the whole process's, on a GPU that of its tensors.
    """
    return int((memory - (PROCESS if device.type == "cpu" else 0)) // (SCRATCH * bytes_a_sample))
