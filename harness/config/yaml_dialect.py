"""The YAML that sweeps are written in: safe, with the numbers people mean, and no surprises."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import yaml

from harness.errors import ConfigError

MAX_DEPTH = 20
_NO_TEXT = ("Cc", "Cs")  # control characters, line ends too, and halves of surrogate pairs


def load_text(text: str, where: str, *, as_written: bool = False) -> Any:
    """Return the plain data of ``text``; a ConfigError names ``where`` and the line.

    ``as_written``: numbers, ``true`` and ``false`` stay the text they are written as, for a reader
    that knows by the key what it wants.
    """
    try:
        data = yaml.load(text, Loader=_TextLoader if as_written else _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from None
    _check(data, where)
    return data


def _check(data: Any, where: str, depth: int = 0) -> None:
    """Refuse what is too deep, and text that could not be written to a record or a terminal."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: nested more than {MAX_DEPTH} levels deep")
    if isinstance(data, str):
        bad = next((char for char in data if unicodedata.category(char) in _NO_TEXT), None)
        if bad is not None:
            shown = ascii(data if len(data) <= 40 else f"{data[:37]}...")
            raise ConfigError(
                f"{where}: {shown} has the character U+{ord(bad):04X}, no text; take it out"
            )
    inner = (*data, *data.values()) if isinstance(data, dict) else data
    for value in inner if isinstance(inner, list | tuple) else ():
        _check(value, where, depth + 1)


def dump(data: Any, *, flow: bool = False) -> str:
    """Return ``data`` as text that ``load_text`` reads back alike; ``flow``: {a: 1} in one line."""
    width = 1 << 20 if flow else None
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, width=width)
    return str(text).removesuffix("\n") if flow else str(text)


class _Loader(yaml.SafeLoader):
    """Safe YAML with the numbers of YAML 1.2, and without duplicate keys, aliases and tags.

    YAML 1.1 takes 1e-3 for text, 010 for 8, 2:4 for 124, 2026-01-02 for a date and << for a
    command; none of it is what people mean.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - what PyYAML looks for
        first: [pair for pair in pairs if pair[0].endswith((":bool", ":null"))]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {line}: aliases (*name) are not allowed; write it out")
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag is not None:
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            name = tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.YAMLError(f"line {line}: tags ({name}) are not allowed; write plain values")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"{_line(key_node)}: key {key!r} is not text")
            if key in seen:
                raise yaml.YAMLError(f"{_line(key_node)}: key '{key}' is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """The same, where 1e3, 007 and true are text; only null is something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - what PyYAML looks for
        first: [pair for pair in pairs if pair[0].endswith(":null")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Writes what ``_Loader`` reads back alike."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


_NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9_]*)$",
    "float": r"([-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$",
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789")
    )


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
