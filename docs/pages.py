"""How a generated page is written: its title, prose in lines of 120 characters, tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MADE = "<!-- Made by `python docs/generate.py`. Do not edit it by hand. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *(part.strip("\n") for part in parts)]) + "\n"


def prose(text: str) -> str:
    """Paragraphs in lines of at most 120 characters."""
    return "\n\n".join(filled(paragraph) for paragraph in textwrap.dedent(text).strip().split("\n\n"))


def filled(paragraph: str, indent: str = "") -> str:
    """One paragraph; code in backticks is not broken. indent: of all lines but the first."""
    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), " ".join(paragraph.split()))
    lines = textwrap.fill(whole, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
