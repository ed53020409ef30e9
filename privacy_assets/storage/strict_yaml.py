"""YAML that people write: a key that stands twice is an error, where the parser would let the last one win."""

from __future__ import annotations

import re
from typing import Any

import yaml

from privacy_assets.errors import ConfigError, shown

_QUOTED = re.compile(r"'[^']+'|\"[^\"]+\"")
_HINTS = {  # what mostly is the cause
    "mapping values are not allowed here": ": a colon too many, or other indentation than the line above",
    "could not find expected ':'": ": a colon is missing",
    "expected <block end>, but found '<block mapping start>'": ": other indentation than the line above",
    "expected <block end>, but found '<scalar>'": ": a bracket or quote is not closed, or closed too early",
    "found character a tab that cannot start any token": ": indent with spaces",
    "found unexpected end of stream": ": a quote is not closed",
}


class _Twice(yaml.MarkedYAMLError):
    """A key stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Before merge keys (<<) are resolved: what they bring may be overridden.
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and first.setdefault((key.tag, key.value), key) is not key:
                line = first[key.tag, key.value].start_mark.line + 1
                problem = f"the key {shown(key.value)} stands twice, first in line {line}"
                raise _Twice(problem=problem, problem_mark=key.start_mark)
        return node


def load_yaml(text: str, where: str) -> list[Any]:
    """The documents of a YAML text; ConfigError naming ``where`` and the line, also for a key that stands twice."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        begun = getattr(error, "context_mark", None)
        begins = f", in what begins in line {begun.line + 1}" if begun and mark and begun.line < mark.line else ""
        problem = error.problem if isinstance(error, _Twice) else f"cannot be read as YAML{begins} ({_reason(error)})"
        ConfigError(f"{where}{line}: {problem}.").raise_alone()


def _reason(error: Exception) -> str:
    """What the parser says, without what it quotes of the text but for single signs and its own <tokens>."""
    told = getattr(error, "problem", None) or type(error).__name__
    told = told.replace(repr("\t"), "a tab")
    safe = _QUOTED.sub(lambda found: found[0] if len(found[0]) < 4 or found[0][1] == "<" else "…", told)
    return safe + _HINTS.get(told, "")
