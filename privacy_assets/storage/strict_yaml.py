"""YAML that people write: a key that stands twice is an error, where the parser would let the last one win."""

from __future__ import annotations

from typing import Any

import yaml

from privacy_assets.errors import ConfigError, shown


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
        problem = error.problem if isinstance(error, _Twice) else f"cannot be read as YAML ({type(error).__name__})"
        ConfigError(f"{where}{line}: {problem}.").raise_alone()
