"""The log of a run: one JSON object a line, without what a resumed run replays."""

from __future__ import annotations

from pathlib import Path

from mcddpm.training import log


def test_what_is_appended_comes_back(tmp_path: Path) -> None:
    assert log.rows(tmp_path / "log.jsonl") == []
    for step in (3, 6):
        log.append(tmp_path / "log.jsonl", {"step": step, "loss": 0.5})
    assert log.rows(tmp_path / "log.jsonl") == [{"step": 3, "loss": 0.5}, {"step": 6, "loss": 0.5}]


def test_later_and_torn_lines_are_forgotten(tmp_path: Path) -> None:
    names = ("log.jsonl", "speed.jsonl", "validation.jsonl")
    for name in names:
        (tmp_path / name).write_text('{"step": 3}\n{"step": 6}\n{"step": 9}\n{"st')
    (tmp_path / "notes.jsonl").write_text('{"step": 9}\n')
    log.forget_after(tmp_path, 6)
    assert all((tmp_path / name).read_text() == '{"step": 3}\n{"step": 6}\n' for name in names)
    assert (tmp_path / "notes.jsonl").read_text() == '{"step": 9}\n', "not one of a run's"


def test_nothing_to_forget_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 3}\n')
    stamp = (tmp_path / "log.jsonl").stat().st_mtime_ns
    log.forget_after(tmp_path, 3)
    assert (tmp_path / "log.jsonl").stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
