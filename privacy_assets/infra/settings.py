"""Declared settings, and strict YAML files.

Type, bounds and description of a setting are declared once, and every invalid value raises a
ConfigError. Constructs of YAML that readers overlook or misread are errors.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as validated
from pydantic.fields import FieldInfo

from privacy_assets.errors import (
    ConfigError,
    PrivacyAssetsError,
    did_you_mean,
    safe_repr,
    without_chain,
)
from privacy_assets.infra.files import is_path, not_a_file
from privacy_assets.infra.objects import location

T = TypeVar("T")
_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_DECIMAL = re.compile(
    r"[-+]?(0|[1-9][0-9]*|[0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?)"
)
_QUOTED = re.compile(r"'[^']+'|\"[^\"]+\"")
_HINTS = {  # most frequent cause of each parser message
    "mapping values are not allowed here": ": a colon too many, or other indentation than the"
    " line above",
    "could not find expected ':'": ": a colon is missing",
    "expected <block end>, but found '<block mapping start>'": ": other indentation than the"
    " line above",
    "expected <block end>, but found '<scalar>'": ": a bracket or quote is not closed, or closed"
    " too early",
    "found character a tab that cannot start any token": ": indent with spaces",
    "found unexpected end of stream": ": a quote is not closed",
}
_BY_NAME = "pass each setting once, by name."
_ONE = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_MANY = {int: "integers", float: "numbers", str: "strings", bool: "true or false values"}


class InvalidSetting(ValueError):
    """Validation error whose message is safe to display. Messages of other errors may contain the
    value.
    """


def _as_tuple(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    return (
        tuple(value)
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        else value
    )


def _as_dict(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


Tuple = BeforeValidator(_as_tuple)  # any iterable of values except strings and mappings
Dict = BeforeValidator(_as_dict)  # any mapping
# Values of json_schema_extra in the Field of a setting. All other settings of metrics belong to the
# policy.
BY_TABLE: dict[str, Any] = {"set_by": "table"}  # may be set for a single table
DERIVED: dict[str, Any] = {"set_by": "derived"}  # derived from the policy; users cannot set it
Layers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Tuple]  # layer widths of a network


@dataclass(frozen=True)
class Setting:
    """One setting of a part, as reference pages show it.

    Attributes:
        name: Name of the setting.
        domain: Description of the allowed values.
        default: Value that is used if the setting is not given.
        meaning: What the setting does.
        by_table: Whether a table may set it. All other settings of metrics and of the embedder
            belong to the policy.
    """

    name: str
    domain: str
    default: Any
    meaning: str
    by_table: bool = False


def load_registry(*places: str) -> dict[str, Any]:
    """Import classes given as "module:Class" and return them by their ``name``, in order.

    Raises:
        TypeError: A class declares no settings, or a name is used twice.
    """
    found: dict[str, Any] = {}
    for place in places:
        module, _, kind = place.partition(":")
        part = getattr(import_module(module), kind)
        if "__pydantic_fields__" not in vars(part):
            raise TypeError(
                f"{place} declares no settings. Fix: decorate the class with @declared."
            )
        if part.name in found:
            other = f"{found[part.name].__module__}:{found[part.name].__qualname__}"
            text = f"{place}: the name of {part.part} {part.name} is already used by {other}"
            raise TypeError(f"{text}. Fix: set a different name.")
        found[part.name] = part
    return found


def read_yaml(path: str | Path, what: str) -> dict[Any, Any]:
    """Read a YAML file that contains one mapping.

    Args:
        path: Path of the file.
        what: Kind of the file, for messages, such as "a policy file".

    Returns:
        The mapping.

    Raises:
        ConfigError: If there is no such file, or it is not strict YAML (:func:`.load_yaml`) with
            one mapping. The message names the file.
    """
    file = location(path)
    if not isinstance(file, Path):
        raise ConfigError(f"{file}: this is a URL, not a file. Fix: pass the path of {what}.")
    if not is_path(file):
        raise ConfigError(f"a string of {len(str(file))} characters is not the path of {what}.")
    if wrong := not_a_file(file):
        raise ConfigError(f"{file}: {wrong}. Fix: pass the path of {what}.")
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, ValueError) else error.strerror
        ConfigError(f"{file}: cannot be read ({reason}).").raise_without_context()
    documents = load_yaml(text, str(file))
    if len(documents) > 1:
        raise ConfigError(f"{file}: expected one mapping, not {len(documents)} documents.")
    content = documents[0] if documents else None
    if not isinstance(content, dict):
        found = (
            "an empty file"
            if content is None
            else "a list"
            if isinstance(content, list)
            else "a single value"
        )
        raise ConfigError(f"{file}: expected one mapping, not {found}.")
    return content


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def declared(kind: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass whose fields are settings.

    Declare a field as ``name: type = Field(default=..., ge=..., description=...)``. Values are not
    converted: a string is not accepted as a number, nor a number as a boolean. Messages name the
    class by its ``part`` and ``name``, if it has them. In a plain dataclass that inherits from a
    declared one, bounds are not checked, and a default is used only if it is written as ``name:
    Annotated[type, Field(...)] = default``.

    Args:
        kind: Class to decorate.

    Returns:
        The dataclass. Its constructor raises ConfigError for a value of the wrong type or out of
        bounds.
    """
    return _declared(kind, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def declared_by_name(kind: type[T]) -> type[T]:
    """Like :func:`declared`, with keyword-only settings."""
    return _declared(kind, kw_only=True)


def _declared(kind: type[T], *, kw_only: bool) -> type[T]:
    made: Any = validated(frozen=True, kw_only=kw_only, config=_CONFIG)(kind)
    plain = made.__init__

    def made_of(self: Any, *args: Any, **named: Any) -> None:
        if args and kw_only:  # pydantic accepts some positional arguments nevertheless
            raise ConfigError(f"{_where(type(self))}: {_BY_NAME}")
        try:
            plain(self, *args, **named)
            return
        except ValidationError as error:
            wrong = error
        # outside the handler, because the original error contains the value
        raise problem(type(self), wrong)

    made.__init__ = made_of
    return made


def settings_of(kind: Any) -> list[Setting]:
    """List the settings of a class.

    Args:
        kind: A class made by :func:`declared`, or a pydantic model.

    Returns:
        The settings in order of declaration, without those that are derived from others.
    """
    if issubclass(kind, BaseModel):
        return [
            Setting(name, domain_of(info), _default(info), info.description or "")
            for name, info in kind.model_fields.items()
        ]
    found = [(field, _info(kind, field.name)) for field in fields(kind)]
    return [
        Setting(
            field.name,
            domain_of(info),
            default_of(field),
            info.description or "",
            by_table=info.json_schema_extra == BY_TABLE,
        )
        for field, info in found
        if info.json_schema_extra != DERIVED
    ]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field, declared or plain. MISSING if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    default = field.default
    return _default(default) if isinstance(default, FieldInfo) else default


def _default(info: FieldInfo) -> Any:
    return MISSING if info.is_required() else info.get_default(call_default_factory=True)


def domain_of(info: FieldInfo) -> str:
    """Describe the allowed values: the title of the field, or a text derived from type and
    bounds.
    """
    return info.title or _domain(info.annotation, info.metadata)


def _info(kind: Any, name: str) -> FieldInfo:
    return kind.__pydantic_fields__[name]


def problem(kind: Any, error: ValidationError) -> Exception:
    """Convert a validation error to a ConfigError with pydantic's message, which does not contain
    the value.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, PrivacyAssetsError):  # raised in __post_init__
        return without_chain(cause)
    known, where = kind.__pydantic_fields__, _where(kind)
    if not first["loc"]:  # raised in __post_init__; the message may contain the value
        return ConfigError(f"{where}: the settings do not fit together.")
    at = first["loc"][0]
    name = [*known][at] if isinstance(at, int) and at < len(known) else str(at)
    if name not in known:
        hint = did_you_mean(name, [*known, *getattr(kind, "short", ())])
        return ConfigError(f"{where} has no setting {safe_repr(name)}.{hint}")
    if cause is None:
        expected = f" Expected: {known[name].title}." if known[name].title else ""
        return ConfigError(f"{where}: {name}: {first['msg']}.{expected}")
    # Messages of validators may contain the value.
    return ConfigError(
        f"{where}: {name}: {cause if isinstance(cause, InvalidSetting) else 'Invalid value'}."
    )


def _where(kind: type) -> str:
    known = [
        one
        for one in ("part", "name")
        if hasattr(kind, one) and one not in getattr(kind, "__pydantic_fields__", ())
    ]
    return " ".join(getattr(kind, one) for one in known) or kind.__name__


def _domain(annotation: Any, metadata: Any = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _domain(inner[0], [*inner[1:], *metadata])
    if origin in (Union, types.UnionType):
        some = [one for one in inner if one is not type(None)]
        return " or ".join(_domain(one, metadata) for one in some) + (
            ", or null" if len(some) < len(inner) else ""
        )
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if origin is tuple and inner[1:] == (...,):
        each = inner[0]
        kind, own = (
            (get_args(each)[0], get_args(each)[1:]) if get_origin(each) is Annotated else (each, ())
        )
        least = next((one.min_length for one in _flat(metadata) if hasattr(one, "min_length")), 0)
        any_or_more = "of one or more" if least else "of"
        return f"a list {any_or_more} {_MANY.get(kind, 'values')}{_bounds(own)}"
    if origin is tuple:
        return "a list of " + " and ".join(_domain(one) for one in inner)
    if annotation in _ONE:
        return _ONE[annotation] + _bounds(metadata)
    return "a mapping of names to values" if origin is dict else "a value"


def _flat(metadata: Any) -> list[Any]:
    return [
        one
        for entry in metadata
        for one in (entry.metadata if isinstance(entry, FieldInfo) else [entry])
    ]


def _bounds(metadata: Any) -> str:
    ends = ("ge", "gt", "le", "lt", "multiple_of")
    known = {end: getattr(one, end) for one in _flat(metadata) for end in ends if hasattr(one, end)}
    if "multiple_of" in known:
        kind = "even" if known["multiple_of"] == 2 else f"a multiple of {known['multiple_of']:g}"
        return f", {kind}, at least {known['ge']:g}"
    if "ge" in known and "le" in known:
        return f" from {known['ge']:g} to {known['le']:g}"
    words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [f"{words[end]} {known[end]:g}" for end in words if end in known]
    return f" {' and '.join(bounds)}" if bounds else ""


class _NotAccepted(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted here. The message is safe to display: it contains only
    :func:`shown` values.
    """


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event, problem = self.peek_event(), ""
        # Without aliases, the parsed document is no larger than its text.
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            problem = "an alias (*) is not accepted. Fix: write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = (
                "a tag (!) is not accepted. Fix: leave it out, or write the value in quotes if it"
                " is a text"
            )
        if problem:
            raise _NotAccepted(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and not _DECIMAL.fullmatch(node.value):
            fix = "write it in decimal digits, such as 10 or 0.5, or in quotes if it is a text"
            problem = f"{safe_repr(node.value)} is not a plain decimal number. Fix: {fix}"
            raise _NotAccepted(problem=problem, problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[Any, yaml.Node] = {}  # by value, because yes and true are the same key
        for key, _ in node.value:
            if key.tag == _MERGE:
                problem = "a merge key (<<) is not accepted. Fix: write the settings out"
                raise _NotAccepted(problem=problem, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                earlier = first.setdefault(self.construct_object(key), key)
                if earlier is not key:
                    problem = (
                        f"the key {safe_repr(key.value)} occurs twice, first in line"
                        f" {earlier.start_mark.line + 1}"
                    )
                    raise _NotAccepted(problem=problem, problem_mark=key.start_mark)
        return node


def load_yaml(text: str, where: str) -> list[Any]:
    """Read the documents of a YAML text strictly.

    Args:
        text: The YAML text.
        where: Name of the file in messages.

    Returns:
        The documents as plain values.

    Raises:
        ConfigError: If the text is not YAML, or contains a repeated key, a merge key (``<<``), an
            alias, a tag (``!``), or a number that is not a plain decimal. The message names
            ``where`` and the line.
    """
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        begun = getattr(error, "context_mark", None)
        begins = (
            f", in the block that begins in line {begun.line + 1}"
            if begun and mark and begun.line < mark.line
            else ""
        )
        problem = (
            error.problem
            if isinstance(error, _NotAccepted)
            else f"cannot be read as YAML{begins} ({_reason(error)})"
        )
        ConfigError(f"{where}{line}: {problem}.").raise_without_context()


def _reason(error: Exception) -> str:
    """Return the parser's message, without quotes from the text except single characters and
    ``<tokens>``.
    """
    problem = getattr(error, "problem", None) or type(error).__name__
    problem = problem.replace(repr("\t"), "a tab")
    safe = _QUOTED.sub(
        lambda found: found[0] if len(found[0]) < 4 or found[0][1] == "<" else "…", problem
    )
    return safe + _HINTS.get(problem, "")
