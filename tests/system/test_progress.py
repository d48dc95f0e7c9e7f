"""What a person is told: by the first process only, as it was written, and no bar before there is something to show."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mcddpm.system import progress
from mcddpm.system.progress import Bar, Notice, Progress, Quiet, note, say, warning


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 100 columns is sent."""
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(progress, "console", lambda: console)
    return text


def test_notices_have_a_kind_that_programs_can_go_by() -> None:
    assert note("a") == Notice("note", "a") and warning("a") == Notice("warning", "a") != note("a")
    assert str(warning("scan.h5: odd")) == "scan.h5: odd"


def test_a_warning_says_so_and_names_may_hold_brackets(shown: io.StringIO) -> None:
    say("[bold]scan[1].h5[/bold]")
    say(note("plain"))
    say(warning("odd"))
    say("x" * 300)
    assert shown.getvalue().splitlines() == ["[bold]scan[1].h5[/bold]", "plain", "warning: odd", "x" * 300]


def test_only_the_first_process_speaks(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    say("nothing")
    with Bar() as bar:
        bar.at(1, 2)
        bar.say(note("nothing"))
    assert shown.getvalue() == ""


def test_what_is_said_goes_beside_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    progress.console.cache_clear()
    say("hello")
    progress.console.cache_clear()
    assert capsys.readouterr() == ("", "hello\n")


def test_a_bar_is_shown_from_the_first_piece_on(shown: io.StringIO) -> None:
    """Before it, mistakes are told."""
    with Bar("row") as bar:
        bar.say(warning("odd"))
        assert shown.getvalue() == "warning: odd\n"
        bar.at(1, 4, "scan[1].h5")
        bar.at(3, 4, "scan[2].h5")
    assert any("row" in line and "3/4" in line and "scan[2].h5" in line for line in shown.getvalue().splitlines())


def test_a_bar_of_bytes(shown: io.StringIO) -> None:
    with Bar("get", bytes_=True) as bar:
        bar.at(1_500_000, 3_000_000)
    assert "1.5/3.0 MB" in shown.getvalue()


def test_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    quiet: Progress = Quiet()
    quiet.at(1, 2, "x")
    quiet.say(warning("x"))
    assert capsys.readouterr() == ("", "")
