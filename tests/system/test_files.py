"""The one atomic write: whole or not there, whatever happens on the way; locks, hashes, folders that cannot be used."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import threading
from pathlib import Path

import pytest

from mcddpm.system import files
from mcddpm.system.processes import here
from tests.system.light import a_dead_process, start


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def name_of(process: int) -> str:
    """What a process of this machine calls itself."""
    return here().replace(str(os.getpid()), str(process))


# --- whole or not there ---------------------------------------------------------------------------------------------


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.tar.gz"
    with files.whole(path) as part:
        assert part.parent == path.parent and part.name.startswith(".") and part.name.endswith(".a.tar.gz")
        part.write_text("half")
        assert not path.exists()
        part.write_text("whole")
    assert path.read_text() == "whole" and names(path.parent) == ["a.tar.gz"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    with files.whole(path) as part:
        fill(part, kind, "old")
    with pytest.raises(RuntimeError), files.whole(path) as part:
        fill(part, kind, "new")
        raise RuntimeError
    assert content_of(path) == "old" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_new_takes_the_place_of_what_was_there(tmp_path: Path, kind: str) -> None:
    for content in ("old", "new"):
        with files.whole(tmp_path / "a") as part:
            fill(part, kind, content)
            if kind == "folder" and content == "old":
                (part / "more").write_text("that must go")
    assert content_of(tmp_path / "a") == "new" and names(tmp_path) == ["a"]
    if kind == "folder":
        assert names(tmp_path / "a") == ["deep"]


def fill(part: Path, kind: str, content: str) -> None:
    if kind == "folder":
        (part / "deep").mkdir(parents=True)
        part = part / "deep" / "file"
    part.write_text(content)


def content_of(path: Path) -> str:
    return (path / "deep" / "file" if path.is_dir() else path).read_text()


def test_fresh_refuses_what_is_there(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "old")
    with pytest.raises(ValueError, match=r"a is there already; it is not overwritten. Choose another name, or remove"):
        files.write_text(tmp_path / "a", "new", fresh=True)
    assert (tmp_path / "a").read_text() == "old"
    files.write_text(tmp_path / "b", "new", fresh=True)
    assert names(tmp_path) == ["a", "b"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not leave an empty file under its name."""
    flushed: list[tuple[str, bool]] = []
    own = files.flush
    monkeypatch.setattr(
        files, "flush", lambda path: (flushed.append((path.name, (tmp_path / "a").exists())), own(path))
    )
    with files.whole(tmp_path / "a") as part:
        fill(part, "folder", "x")
    before = {name for name, there in flushed if not there}
    assert before == {"deep", "file", f".{here()}.a"} and (tmp_path.name, True) in flushed


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    files.write_text(tmp_path / "a", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write_text(tmp_path / "a", "new" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


KILLED = """
import os, signal
from pathlib import Path
from mcddpm.system import files
with files.whole(Path(sys.argv[1])) as part:
    if sys.argv[2] == "folder":
        part.mkdir()
        part = part / "file"
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_writer_leaves_no_torn_file_and_the_next_one_cleans_up(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.npz"
    with start(KILLED, path, kind) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert names(tmp_path) == [f".{name_of(killed.pid)}.a.npz"], "half a file, under a name that nobody reads"
    files.write_text(path, "whole")
    assert path.read_text() == "whole" and names(tmp_path) == ["a.npz"]


KILLED_BETWEEN = """
import os, signal
from pathlib import Path
from mcddpm.system import files
own = Path.rename
def rename(path, target):
    own(path, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.rename = rename
with files.whole(Path(sys.argv[1])) as part:
    part.mkdir()
"""


def test_a_folder_that_was_being_replaced_is_not_lost(tmp_path: Path) -> None:
    """A folder cannot be replaced in one move: between the two, the older one has another name."""
    with files.whole(tmp_path / "a") as part:
        fill(part, "folder", "old")
    with start(KILLED_BETWEEN, tmp_path / "a") as killed:
        assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "a").exists()
    with pytest.raises(RuntimeError), files.whole(tmp_path / "a"):
        raise RuntimeError
    assert content_of(tmp_path / "a") == "old" and names(tmp_path) == ["a"]


def test_only_dead_writers_of_this_machine_and_of_this_file_are_cleaned_up(tmp_path: Path) -> None:
    dead = name_of(a_dead_process())
    theirs = f"elsewhere-{a_dead_process()}"
    kept = [f".{name_of(os.getppid())}.a.npz", f".{theirs}.a.npz", f".{dead}.b.a.npz", ".hidden.a.npz", ".a.npz"]
    gone = [f".{dead}.a.npz", f".{dead}-old.a.npz"]
    for name in [*kept, *gone]:
        (tmp_path / name).write_text("x")
    files.write_text(tmp_path / "a.npz", "whole")
    assert names(tmp_path) == sorted([*kept, "a.npz"])


def test_sweep_removes_what_killed_processes_were_writing(tmp_path: Path) -> None:
    dead = name_of(a_dead_process())
    kept = [f".{here()}.a.npz", ".b.npz", ".lock", "c.npz", f"{dead}.npz"]
    for name in [*kept, f".{dead}.a.npz", f".{dead}.b"]:
        (tmp_path / name).write_text("x")
    (tmp_path / f".{dead}.folder" / "deep").mkdir(parents=True)
    files.sweep(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_remove_takes_a_file_a_folder_or_nothing(tmp_path: Path) -> None:
    files.write_text(tmp_path / "folder" / "deep" / "file", "x")
    files.write_text(tmp_path / "file", "x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    files.remove(tmp_path / "link")
    assert (tmp_path / "folder" / "deep" / "file").exists(), "a link goes, not what it points to"
    for name in ("folder", "file", "nothing"):
        files.remove(tmp_path / name)
    assert names(tmp_path) == []


def test_json_ends_in_a_line_and_reads_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5], "b": {"c": None}}
    assert files.write_json(tmp_path / "a.json", content) == tmp_path / "a.json"
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == content and text.endswith("}\n")


# --- one at a time --------------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside, wanted = threading.Event(), threading.Event()

    def other() -> None:
        wanted.set()
        with files.locked(tmp_path / "deep" / "lock"):
            inside.set()

    thread = threading.Thread(target=other)
    with files.locked(tmp_path / "deep" / "lock"):
        thread.start()
        assert wanted.wait(5) and not inside.wait(0.2)
    assert inside.wait(5)
    thread.join()


HOLDING = """
import time
from pathlib import Path
from mcddpm.system import files
with files.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_process_that_dies_lets_go_of_its_lock(tmp_path: Path) -> None:
    inside = threading.Event()

    def other() -> None:
        with files.locked(tmp_path / "lock"):
            inside.set()

    with start(HOLDING, tmp_path / "lock") as holding:
        assert holding.stdout is not None and holding.stdout.readline() == "held\n"
        thread = threading.Thread(target=other)
        thread.start()
        assert not inside.wait(0.2)
        holding.kill()
        assert inside.wait(5)
        thread.join()


# --- folders that cannot be used ------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_found_out_early(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new" / "deep")
    assert names(tmp_path / "new" / "deep") == [], "the probe is gone"
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"cannot write to the folder .*file: (File exists|Not a directory)"):
        files.check_writable(tmp_path / "file")
    with pytest.raises(ValueError, match=r"cannot write to the folder .*deep: Not a directory"):
        files.check_writable(tmp_path / "file" / "deep")


def test_checkpoints_need_room_for_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 30_000_000))
    files.check_space(tmp_path, 10_000_000)
    with pytest.raises(ValueError, match="has 30 MB free, but this run's checkpoints need 33 MB"):
        files.check_space(tmp_path, 11_000_000)


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_content_and_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"", b"one", b"two and more", bytes(9_000_000)):
        path.write_bytes(content)
        assert files.sha256(path) == hashlib.sha256(content).hexdigest()
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 1))
    assert files.sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_a_large_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    reads: list[Path] = []
    own = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *rest: reads.append(self) or own(self, *rest))
    assert len({files.sha256(path) for _ in range(3)}) == 1 and reads == [path]


def test_a_fingerprint_is_of_the_values_not_of_their_order() -> None:
    one = files.fingerprint({"a": 1, "b": [1, 2]})
    assert one == files.fingerprint({"b": [1, 2], "a": 1}) and len(one) == 16
    assert one != files.fingerprint({"a": 1, "b": [2, 1]})
    assert files.fingerprint(None) == hashlib.sha256(b"null").hexdigest()[:16]
