"""A folder of resumable work: it stays what it was claimed for, pieces are whole or not there, none is made twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from mcddpm.system import files
from mcddpm.system.processes import Share
from mcddpm.system.workspace import FORMAT, Workspace
from tests.conftest import Told
from tests.system.light import start

FIXED = {"seed": 1, "task": {"samples": 20, "snr": float("inf")}}
NAMED = {"cases": {"knees": {"source": "a"}}, "methods": {"Ours": {"steps": 10}}}


def workspace(folder: Path, hidden: bool = False, rank: int = 0, world: int = 1) -> Workspace:
    return Workspace(folder, "evaluation", Share(rank, world), hidden)


def content(space: Workspace) -> dict[str, bytes]:
    return {str(p.relative_to(space.folder)): p.read_bytes() for p in space.folder.rglob("*") if p.is_file()}


# --- what the work is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [False, True])
def test_the_same_work_again_goes_on_and_writes_nothing(tmp_path: Path, hidden: bool) -> None:
    space = workspace(tmp_path / "deep" / "out", hidden)
    assert space.meaning() == {}
    space.claim(FIXED, NAMED)
    before = content(space)
    stamp = space.meaning_path.stat().st_mtime_ns
    workspace(tmp_path / "deep" / "out", hidden).claim(FIXED, NAMED)
    assert content(space) == before and space.meaning_path.stat().st_mtime_ns == stamp
    assert space.meaning()["named"] == NAMED and space.meaning()["fixed"]["seed"] == 1


def test_a_hidden_workspace_shows_nothing_beside_the_results(tmp_path: Path) -> None:
    hidden, open_ = workspace(tmp_path / "a", hidden=True), workspace(tmp_path / "b")
    for space in (hidden, open_):
        space.claim(FIXED, NAMED)
        space.keep("one", {"x": np.zeros(3)}, {})
    assert [p.name for p in hidden.folder.iterdir()] == [".parts"]
    assert sorted(p.name for p in open_.folder.iterdir()) == ["evaluation.json", "parts"]
    assert hidden.has("one") and open_.has("one")


@pytest.mark.parametrize(
    ("fixed", "named", "told"),
    [
        ({"seed": 2}, {}, "seed was 1, is 2"),
        ({"task": {"samples": 20, "snr": 30.0}}, {}, "task.snr was 'inf', is 30.0"),
        ({"task": {"samples": 20}}, {}, "task.snr was 'inf', is None"),
        ({}, {"cases": {"knees": {"source": "b"}}}, "cases.knees.source was 'a', is 'b'"),
        ({}, {"methods": {"Ours": {"steps": 10, "eta": 1}}}, "methods.Ours.eta was None, is 1"),
        ({"seed": 2}, {"cases": {"knees": {"source": "b"}}}, "seed was 1, is 2; cases.knees.source was 'a', is 'b'"),
    ],
)
def test_another_meaning_is_refused(tmp_path: Path, fixed: dict, named: dict, told: str) -> None:
    space = workspace(tmp_path)
    space.claim(FIXED, NAMED)
    before = content(space)
    with pytest.raises(ValueError) as refused:
        space.claim(fixed, named)
    assert str(refused.value) == f"{tmp_path} holds another evaluation: {told}. Choose another --out"
    assert content(space) == before


def test_names_may_be_added_and_left_out_and_keep_their_meaning(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    space.claim({"seed": 1}, {"methods": {"A": {"steps": 1}}})
    space.claim({}, {"methods": {"B": {"steps": 2}}})
    space.claim({"device": "cpu"}, {"models": {"m": {"sha256": "x"}}})
    assert space.meaning()["named"] == {
        "methods": {"A": {"steps": 1}, "B": {"steps": 2}},
        "models": {"m": {"sha256": "x"}},
    }
    assert space.meaning()["fixed"] == {"seed": 1, "device": "cpu"}
    for name, fixed in (("A", {}), ("C", {"device": "cuda"})):
        with pytest.raises(ValueError, match="holds another evaluation"):
            space.claim(fixed, {"methods": {name: {"steps": 3}}})


def test_what_stands_beside_is_written_and_not_compared(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    space.claim(FIXED, NAMED, last={"asked": [1, (2, 3)]}, made_by="one")
    space.claim(FIXED, NAMED, made_by="two")
    assert space.meaning()["beside"] == {"last": {"asked": [1, [2, 3]]}, "made_by": "two"}


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "7", "{", "\xff", json.dumps({"format": FORMAT - 1, "fixed": {}}), json.dumps({"seed": 1})]
)
@pytest.mark.parametrize("hidden", [False, True])
def test_the_folder_of_another_version_is_refused_in_one_line(tmp_path: Path, text: str, hidden: bool) -> None:
    space = workspace(tmp_path, hidden)
    space.parts.mkdir()
    space.meaning_path.write_bytes(text.encode("latin1"))
    with pytest.raises(
        ValueError, match=r"is of another version of mcddpm, and cannot be gone on with: choose anot"
    ) as no:
        space.claim(FIXED, NAMED)
    assert str(space.meaning_path) in str(no.value) and "\n" not in str(no.value)
    assert space.meaning_path.read_bytes() == text.encode("latin1")


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot write to the folder"):
        workspace(tmp_path / "file").claim(FIXED, NAMED)


CLAIMING = """
import time
from pathlib import Path
from mcddpm.system.workspace import Workspace
folder, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
while not (folder / "go").exists():
    time.sleep(0.001)
for k in range(10):
    Workspace(folder / "out", "evaluation").claim({"seed": 1}, {"cases": {f"{me} {k}": {"k": k}}})
"""


def test_processes_that_claim_at_once_lose_no_name(tmp_path: Path) -> None:
    """Reading, comparing and writing is one step: each adds its own names to what the others wrote."""
    with start(CLAIMING, tmp_path, "a") as a, start(CLAIMING, tmp_path, "b") as b, start(CLAIMING, tmp_path, "c") as c:
        for process in (a, b, c):
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (tmp_path / "go").touch()
        assert [process.wait() for process in (a, b, c)] == [0, 0, 0]
    assert len(workspace(tmp_path / "out").meaning()["named"]["cases"]) == 30


# --- pieces ---------------------------------------------------------------------------------------------------------


def test_a_piece_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    arrays = {"mean": np.arange(6.0).reshape(2, 3), "mask": np.array([True, False]), "z": np.array([1 + 2j])}
    assert not space.has("a 0 4x")
    space.keep("a 0 4x", arrays, {"psnr": 30.5, "where": (1, 2), "top": float("inf")})
    assert space.has("a 0 4x") and not space.has("a 0")
    piece = space.read("a 0 4x")
    for key, values in arrays.items():
        assert key in piece and piece[key].dtype == values.dtype
        np.testing.assert_array_equal(piece[key], values)
    assert piece.notes == {"psnr": 30.5, "where": [1, 2], "top": "inf"}
    assert "std" not in piece and piece.get("std") is None and piece.get("mask") is not None
    space.keep("a 0 4x", {}, {"psnr": 31})
    assert space.read("a 0 4x").notes == {"psnr": 31} and "mean" not in space.read("a 0 4x")


def test_a_piece_may_lie_deeper(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    space.keep("scan/003", {}, {})
    assert space.has("scan/003") and space.path("scan/003") == tmp_path / "parts" / "scan" / "003.npz"


def damaged(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "foreign":
        np.savez(path, x=np.zeros(2))  # without notes: not one of ours
    else:
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "no archive": b"x" * 100}[how])


@pytest.mark.parametrize("how", ["empty", "cut", "no archive", "foreign"])
def test_a_torn_piece_is_made_again(tmp_path: Path, how: str) -> None:
    space = workspace(tmp_path)
    for name in ("a", "b"):
        space.keep(name, {"x": np.zeros(100)}, {})
    damaged(space.path("a"), how)
    made: list[str] = []

    def make(name: str) -> None:
        made.append(name)
        space.keep(name, {"x": np.ones(100)}, {})

    assert space.missing(["a", "b"]) == ["a"] and not space.path("a").exists()
    assert space.work(["a", "b"], make) and made == ["a"]
    assert space.read("a")["x"].all() and not space.read("b")["x"].any()


def test_work_makes_what_is_missing_and_tells_how_far_it_is(tmp_path: Path, told: Told) -> None:
    space = workspace(tmp_path)
    names = ["a", "b", "c"]
    space.keep("b", {}, {})
    assert space.work(names, lambda name: space.keep(name, {}, {"of": name}), told)
    assert told.places == [(1, 2, ""), (2, 2, "")] and space.read("c").notes == {"of": "c"}
    again: list[str] = []
    assert space.work(names, again.append, told) and again == [] and len(told.places) == 2


def test_stopped_work_goes_on_where_it_was(tmp_path: Path) -> None:
    space, made = workspace(tmp_path), []

    def make(name: str) -> None:
        made.append(name)
        if made == ["a", "b"]:
            raise KeyboardInterrupt
        space.keep(name, {}, {})

    with pytest.raises(KeyboardInterrupt):
        space.work(["a", "b", "c"], make)
    assert space.missing(["a", "b", "c"]) == ["b", "c"]
    assert space.work(["a", "b", "c"], make) and made == ["a", "b", "b", "c"]


def test_ranks_share_the_pieces_and_the_last_one_knows_that_all_are_there(tmp_path: Path) -> None:
    names, made = [f"{k}" for k in range(7)], []
    spaces = [workspace(tmp_path, rank=rank, world=3) for rank in range(3)]

    def make(name: str) -> None:
        made.append(name)
        spaces[0].keep(name, {}, {})

    assert [space.work(names, make) for space in spaces] == [False, False, True]
    assert sorted(made) == names
    spaces[0].remove(["3"])
    assert [space.missing(names) for space in spaces] == [["3"], [], []]
    assert not spaces[1].all_there(names)


def test_with_fewer_ranks_than_before_nothing_is_made_twice(tmp_path: Path) -> None:
    """The share is of what was asked, not of what is left."""
    names = [f"{k}" for k in range(6)]
    first = workspace(tmp_path, rank=1, world=2)
    first.work(names, lambda name: first.keep(name, {}, {}))
    assert workspace(tmp_path).missing(names) == ["0", "2", "4"]
    assert workspace(tmp_path, rank=2, world=3).missing(names) == ["2"]


KILLED = """
import os, signal
from pathlib import Path
import numpy as np
from mcddpm.system.workspace import Workspace
space = Workspace(Path(sys.argv[1]), "evaluation")
space.claim({"seed": 1}, {})
space.keep("a", {"x": np.zeros(10)}, {})
np.savez = lambda file, **more: (file.write(b"half"), file.flush(), os.kill(os.getpid(), signal.SIGKILL))
space.keep("b", {"x": np.zeros(10)}, {})
"""


def test_a_killed_process_loses_one_piece_and_leaves_nothing_torn(tmp_path: Path) -> None:
    with start(KILLED, tmp_path) as killed:
        assert killed.wait() == -signal.SIGKILL
    space = workspace(tmp_path)
    space.claim({"seed": 1}, {})
    torn = [path for path in space.parts.iterdir() if str(killed.pid) in path.name]
    assert len(torn) == 1 and torn[0].read_bytes() == b"half"
    assert space.has("a") and space.missing(["a", "b"]) == ["b"]
    assert space.work(["a", "b"], lambda name: space.keep(name, {}, {}))
    assert not torn[0].exists(), "the next writer of the piece removes what the killed one left"
    damaged(space.path("a"), "empty")
    files.sweep(space.parts)
    assert not [p for p in space.parts.iterdir() if p.name.startswith(".") and p.suffix == ".npz"]


def test_a_full_disk_names_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file, **more: object) -> None:
        file.write(b"half")
        raise OSError(28, os.strerror(28))

    space = workspace(tmp_path)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match=r"parts/a.npz cannot be written: No space left on device"):
        space.keep("a", {}, {})
    assert not space.has("a") and list(space.parts.iterdir()) == []


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    space.parts.mkdir()
    np.savez(space.path("a"), notes=np.array({"x": 1}, dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        _ = space.read("a").notes
