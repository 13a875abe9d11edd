"""Strict YAML: a file becomes a frozen dataclass, or an error that names the key and the line.

Unknown and repeated keys are refused, types are checked without conversion (no "8" for 8).
Knows nothing about which configurations there are.
"""

import dataclasses
import difflib
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from beam_trt.errors import ConfigError

T = TypeVar("T")


def load_yaml(path: Path, kind: type[T]) -> T:
    """Read `path` as one `kind`, a dataclass whose fields may be dataclasses, enums, numbers, text
    or tuples of those. ConfigError for anything else in the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}. Give a YAML file, or the name of a bundled one."
        ) from error
    return parse_yaml(text, kind, str(path))


def parse_yaml(text: str, kind: type[T], where: str) -> T:
    """`load_yaml` on text; `where` names its origin in errors."""
    try:
        # A SafeLoader subclass: it builds plain values only and refuses repeated keys.
        values = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from error
    return _dataclass({} if values is None else values, kind, where, "")


def _dataclass(values: Any, kind: type[T], where: str, path: str) -> T:
    if not isinstance(values, dict):
        raise ConfigError(
            f"{_at(where, path)}: expected keys and values, found {_describe(values)}."
        )
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind))}
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known keys: {', '.join(fields)}."
            raise ConfigError(f"{_at(where, _join(path, str(key)))}: unknown key. {hint}")
    for name, field in fields.items():
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise ConfigError(f"{_at(where, _join(path, name))}: missing; it has no default.")
    read = {
        key: _value(value, hints[key], where, _join(path, key)) for key, value in values.items()
    }
    try:
        return kind(**read)
    except ConfigError as error:
        raise ConfigError(f"{_at(where, path)}: {error}") from error


def _value(value: Any, hint: Any, where: str, path: str) -> Any:
    options = _options(hint)
    if value is None and type(None) in options:
        return None
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            return _dataclass(value, option, where, path)
        if typing.get_origin(option) is tuple and isinstance(value, list):
            item = typing.get_args(option)[0]
            return tuple(_value(v, item, where, f"{path}[{i}]") for i, v in enumerate(value))
        if isinstance(option, type) and issubclass(option, StrEnum) and isinstance(value, str):
            if value in list(option):
                return option(value)
            raise ConfigError(
                f"{_at(where, path)}: expected one of {', '.join(option)}, found {value!r}."
            )
        # bool is an int to Python, never to us.
        if isinstance(option, type) and type(value) is option:
            return value
        if option is float and type(value) is int:
            return float(value)
    expected = " or ".join(_name(option) for option in options)
    raise ConfigError(f"{_at(where, path)}: expected {expected}, found {_describe(value)}.")


def _options(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _name(option: Any) -> str:
    if option is type(None):
        return "null"
    if isinstance(option, type) and issubclass(option, StrEnum):
        return f"one of {', '.join(option)}"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(
        option, "a list" if typing.get_origin(option) is tuple else str(option)
    )


def _describe(value: Any) -> str:
    names = {dict: "keys and values", list: "a list", type(None): "nothing"}
    return names.get(type(value), repr(value))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _at(where: str, path: str) -> str:
    return f"{where}: {path}" if path else where


class _UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, which YAML would silently let win."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    found: dict[Any, Any] = {}
    for (key, value), (key_node, _) in zip(pairs, node.value, strict=True):
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"expected a name as key, found {key!r}", key_node.start_mark
            )
        if key in found:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is there twice", key_node.start_mark
            )
        found[key] = value
    return found


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
