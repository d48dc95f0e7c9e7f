"""Settings: frozen dataclasses, read from TOML and `key=value` flags. An unknown key stops the run, and choices are
`Literal`s, which are checked here and nowhere else."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sys
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def load(cls: type[T], path: Path, overrides: tuple[str, ...] = ()) -> T:
    """Any frozen dataclass of settings from a TOML file and flags such as `training.lr=1e-4`."""
    if not path.is_file():
        raise ValueError(f"no configuration file {path}")
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    for flag in overrides:
        _put(values, flag)
    return from_dict(cls, values)


def _put(values: Any, flag: str) -> None:
    """Set `a.b=value`, or `a.0.b=value` in the first of a list of sections; read as TOML, or taken as plain text."""
    key, equals, text = flag.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise ValueError(f"--set {flag!r} is not of the form section.key=value")
    for section in sections:
        result: Any = values.setdefault(section, {}) if isinstance(values, dict) else values
        if isinstance(values, list):
            if not section.isdigit() or int(section) >= len(values):
                raise ValueError(f"--set {flag!r}: {section} is not one of 0 to {len(values) - 1}")
            result = values[int(section)]
        if not isinstance(result, (dict, list)):
            raise ValueError(f"--set {flag!r}: {section} is a value, not a section")
        values = result
    if not isinstance(values, dict):
        raise ValueError(f"--set {flag!r}: {name} is not a key of a section; there are {len(values)}: number one")
    try:
        values[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[name] = text.strip()


def from_dict(cls: type[T], values: Any, where: str = "") -> T:
    """A frozen dataclass from plain values: keys, types and choices are checked, and a mistake names its place."""
    if not isinstance(values, dict):
        raise ValueError(f"{where.rstrip('.') or 'configuration'} is {values!r}, expected a section of keys")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else ";"
            raise ValueError(f"unknown key {where}{key}{hint} known: {', '.join(sorted(fields))}")
    for key, f in fields.items():
        if key not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}{key} is missing; known: {', '.join(sorted(fields))}")
    return cls(**{key: _read(hints[key], value, f"{where}{key}") for key, value in values.items()})


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return from_dict(kind, value, f"{where}.")  # type: ignore[arg-type]
    if origin is Literal:
        return check_choice(where, value, kind)
    if origin in (typing.Union, types.UnionType):  # X | None
        return None if value is None else _read(next(k for k in inner if k is not type(None)), value, where)
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_read(inner[0], item, where) for item in items)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {value!r}, expected a section of keys")
        name = inner[0] if inner[0] in (int, float) else str  # JSON has the keys as text
        return {name(key): _read(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and value in ("inf", "-inf", "nan"):  # as `plain` wrote them
        return float(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}, expected {_name(kind)}")
    return value


def _name(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, str(kind))


def check_choice(where: str, value: Any, kind: Any) -> Any:
    """One of a `Literal`'s values, or a refusal that names them."""
    if value not in typing.get_args(kind):
        known = ", ".join(str(choice) for choice in typing.get_args(kind))
        raise ValueError(f"{where} is {value!r}, expected one of: {known}")
    return value


def to_dict(settings: Any) -> dict[str, Any]:
    """A dataclass as plain values, as JSON and TOML have them."""
    result: dict[str, Any] = plain(dataclasses.asdict(settings))
    return result


def changes(settings: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """What is not at its default, as plain values: a setting that comes later changes nothing of what was before."""
    usual = to_dict(type(settings)())
    return {k: v for k, v in to_dict(settings).items() if k not in but and v != usual[k]}


def plain(values: Any) -> Any:
    """Values as JSON has them: tuples become lists, and infinity, which JSON does not know, its name."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [plain(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return str(values)
    if isinstance(values, Path):
        return str(values)
    json.dumps(values)  # a value of another kind is a mistake of ours
    return values


def differences(old: dict[str, Any], new: dict[str, Any], where: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) for every value that differs."""
    result: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            result |= differences(a, b, f"{where}{key}.")
        elif a != b:
            result[f"{where}{key}"] = (a, b)
    return result
