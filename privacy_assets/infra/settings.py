"""Declared settings, and strict YAML files.

Type, bounds and description of a setting are declared once, and every invalid value raises a
ConfigError. Constructs of YAML that readers overlook or misread are errors.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
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
from privacy_assets.infra.storage import local_path

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
_ENTRY = re.compile(r"    (?P<name>\w+): (?P<text>.*)")  # of a section of a docstring
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(?P<name>\w+)`")  # such as :func:`.evaluate`
_BY_NAME = "pass each setting once, by name."
_SINGULAR = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_PLURAL = {int: "integers", float: "numbers", str: "strings", bool: "true or false values"}
_BOUNDS = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}


class InvalidSetting(ValueError):
    """Validation error whose message is safe to display. Messages of other errors may contain the
    value.
    """


def _as_tuple(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(value)
    return value


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value


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


class Group(BaseModel):
    """Base class of a group of settings. An invalid one is a ConfigError that names ``part`` and
    the setting.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
            return
        except ValidationError as error:
            invalid = error
        # outside the handler, because the first error quotes the value
        raise problem(type(self), invalid)


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
    file_location = location(path)
    file = local_path(file_location)
    if file is None:
        raise ConfigError(
            f"{file_location}: this is a URL, not a file. Fix: pass the path of {what}."
        )
    if not is_path(file):
        raise ConfigError(f"a string of {len(str(file))} characters is not the path of {what}.")
    file_problem = not_a_file(file)
    if file_problem:
        raise ConfigError(f"{file}: {file_problem}. Fix: pass the path of {what}.")
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
        raise ConfigError(f"{file}: expected one mapping, not {_kind_of_content(content)}.")
    return content


def _kind_of_content(content: Any) -> str:
    if content is None:
        return "an empty file"
    if isinstance(content, list):
        return "a list"
    return "a single value"


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def declared(kind: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass whose fields are settings.

    Declare a field as ``name: type = Field(default=..., ge=...)``, and describe it in the docstring
    of the class, under ``Args:`` (:func:`meaning_of`). Values are not converted: a string is not
    accepted as a number, nor a number as a boolean. Messages name the
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
    """Like :func:`declared`, with keyword-only settings.

    Args:
        kind: Class to decorate.
    """
    return _declared(kind, kw_only=True)


def _declared(kind: type[T], *, kw_only: bool) -> type[T]:
    dataclass_kind: Any = validated(frozen=True, kw_only=kw_only, config=_CONFIG)(kind)
    validating_init = dataclass_kind.__init__

    def safe_init(self: Any, *args: Any, **settings: Any) -> None:
        if args and kw_only:  # pydantic accepts some positional arguments nevertheless
            raise ConfigError(f"{_where(type(self))}: {_BY_NAME}")
        try:
            validating_init(self, *args, **settings)
            return
        except ValidationError as error:
            validation_error = error
        # outside the handler, because the original error contains the value
        raise problem(type(self), validation_error)

    dataclass_kind.__init__ = safe_init
    return dataclass_kind


def settings_of(kind: Any) -> list[Setting]:
    """List the settings of a class.

    Args:
        kind: A class made by :func:`declared`, or a pydantic model.

    Returns:
        The settings in order of declaration, without those that are derived from others.
    """
    settings = []
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            settings.append(Setting(name, domain_of(info), _default(info), meaning_of(kind, name)))
        return settings
    for field in fields(kind):
        info = _info(kind, field.name)
        if info.json_schema_extra == DERIVED:
            continue
        meaning = meaning_of(kind, field.name)
        by_table = info.json_schema_extra == BY_TABLE
        settings.append(Setting(field.name, domain_of(info), default_of(field), meaning, by_table))
    return settings


def meaning_of(kind: Any, name: str) -> str:
    """Return the description of a setting, without the markup of docstrings.

    It is written once: in the docstring of the class or of a base class, under ``Args:`` or
    ``Attributes:``, or as the ``description`` of the field.

    Args:
        kind: A class made by :func:`declared`, or a pydantic model.
        name: Name of the setting.

    Returns:
        The description. Empty: there is none.
    """
    description = _info(kind, name).description
    if description:
        return description
    for section in ("Args:", "Attributes:"):
        for base in kind.__mro__:
            descriptions = _section_of_docstring(base, section)
            if name in descriptions:
                return _without_markup(descriptions[name])
    return ""


@cache
def _section_of_docstring(kind: type, section: str) -> dict[str, str]:
    """Return the descriptions in a section of the docstring of a class, by name."""
    docstring = inspect.cleandoc(vars(kind).get("__doc__") or "")
    _, _, text = f"\n{docstring}".partition(f"\n{section}\n")
    descriptions: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):  # the next section
            break
        entry = _ENTRY.fullmatch(line)
        if entry:
            name = entry["name"]
            descriptions[name] = entry["text"]
        elif name:
            descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    return descriptions


def _without_markup(text: str) -> str:
    """Return a text of a docstring with names in single backticks, without roles and modules."""
    text = _ROLE.sub(r"`\g<name>`", text)
    return text.replace("``", "`")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field.

    Args:
        field: Field of a declared or plain dataclass.

    Returns:
        The default. MISSING if there is none.
    """
    if field.default_factory is not MISSING:
        return field.default_factory()
    if isinstance(field.default, FieldInfo):
        return _default(field.default)
    return field.default


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return MISSING
    return info.get_default(call_default_factory=True)


def domain_of(info: FieldInfo) -> str:
    """Describe the allowed values: the title of the field, or a text derived from type and
    bounds.

    Args:
        info: Field of a declared class or of a pydantic model.
    """
    return info.title or _domain(info.annotation, info.metadata)


def _info(kind: Any, name: str) -> FieldInfo:
    return kind.__pydantic_fields__[name]


def problem(kind: Any, error: ValidationError) -> Exception:
    """Convert a validation error to an error whose message does not contain the value.

    Args:
        kind: Class whose settings are invalid.
        error: Error of pydantic.

    Returns:
        A ConfigError with pydantic's message, or the error of this package that was the cause.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, PrivacyAssetsError):  # raised in __post_init__
        return without_chain(cause)
    infos = kind.__pydantic_fields__
    where = _where(kind)
    if not first["loc"]:  # raised in __post_init__; the message may contain the value
        return ConfigError(f"{where}: the settings do not fit together.")
    name = _setting_name(first["loc"][0], [*infos])
    if name not in infos:
        hint = did_you_mean(name, [*infos, *getattr(kind, "short", ())])
        return ConfigError(f"{where} has no setting {safe_repr(name)}.{hint}")
    if cause is None:
        title = infos[name].title
        expected = f" Expected: {title}." if title else ""
        return ConfigError(f"{where}: {name}: {first['msg']}.{expected}")
    # Messages of validators may contain the value.
    message = cause if isinstance(cause, InvalidSetting) else "Invalid value"
    return ConfigError(f"{where}: {name}: {message}.")


def _setting_name(at: int | str, names: Sequence[str]) -> str:
    """Return the name of a setting, which an error gives as name or position."""
    if isinstance(at, int) and at < len(names):
        return names[at]
    return str(at)


def _where(kind: type) -> str:
    """Return part and name of a class for messages, if it has them, else the name of the class."""
    settings = getattr(kind, "__pydantic_fields__", ())
    words = []
    for attribute in ("part", "name"):
        if hasattr(kind, attribute) and attribute not in settings:
            words.append(getattr(kind, attribute))
    return " ".join(words) or kind.__name__


def _domain(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe the values of a type.

    Args:
        annotation: Type.
        metadata: Bounds, as objects with attributes such as ``ge``, or fields that have them.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _domain(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        return _union_domain(arguments, metadata)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return _list_domain(arguments[0], metadata)
    if origin is tuple:
        return "a list of " + " and ".join(map(_domain, arguments))
    if annotation in _SINGULAR:
        return _SINGULAR[annotation] + _bounds(metadata)
    if origin is dict:
        return "a mapping of names to values"
    return "a value"


def _union_domain(members: Sequence[Any], metadata: Sequence[Any]) -> str:
    domains = []
    for member in members:
        if member is not type(None):
            domains.append(_domain(member, metadata))
    text = " or ".join(domains)
    if len(domains) < len(members):
        text += ", or null"
    return text


def _list_domain(element: Any, metadata: Sequence[Any]) -> str:
    """Describe a list of any length.

    Args:
        element: Type of its elements.
        metadata: Bounds of the list.
    """
    kind = element
    element_metadata: Sequence[Any] = ()
    if get_origin(element) is Annotated:
        kind, *element_metadata = get_args(element)
    min_lengths = [bound.min_length for bound in _flat(metadata) if hasattr(bound, "min_length")]
    of = "of one or more" if min_lengths and min_lengths[0] else "of"
    return f"a list {of} {_PLURAL.get(kind, 'values')}{_bounds(element_metadata)}"


def _flat(metadata: Sequence[Any]) -> list[Any]:
    """Return the bounds, also those of fields."""
    bounds = []
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            bounds += entry.metadata
        else:
            bounds.append(entry)
    return bounds


def _bound_values(metadata: Sequence[Any]) -> dict[str, Any]:
    """Return the bounds of a number by name."""
    values = {}
    for bound in _flat(metadata):
        for name in (*_BOUNDS, "multiple_of"):
            if hasattr(bound, name):
                values[name] = getattr(bound, name)
    return values


def _bounds(metadata: Sequence[Any]) -> str:
    """Describe the bounds of a number, after a space or comma; "" if there are none."""
    values = _bound_values(metadata)
    if "multiple_of" in values:
        multiple = values["multiple_of"]
        kind = "even" if multiple == 2 else f"a multiple of {multiple:g}"
        return f", {kind}, at least {values['ge']:g}"
    if "ge" in values and "le" in values:
        return f" from {values['ge']:g} to {values['le']:g}"
    texts = []
    for name, words in _BOUNDS.items():
        if name in values:
            texts.append(f"{words} {values[name]:g}")
    if not texts:
        return ""
    return f" {' and '.join(texts)}"


class _NotAccepted(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted here. The message is safe to display: it contains only
    :func:`.safe_repr` values.
    """


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        problem = ""
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
        first_keys: dict[Any, yaml.Node] = {}  # by value, because yes and true are the same key
        for key, _ in node.value:
            if key.tag == _MERGE:
                problem = "a merge key (<<) is not accepted. Fix: write the settings out"
                raise _NotAccepted(problem=problem, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                earlier = first_keys.setdefault(self.construct_object(key), key)
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
        ConfigError(f"{where}{line}: {_yaml_problem(error)}.").raise_without_context()


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, _NotAccepted):
        return str(error.problem)
    mark = getattr(error, "problem_mark", None)
    start = getattr(error, "context_mark", None)
    begins = ""
    if start and mark and start.line < mark.line:
        begins = f", in the block that begins in line {start.line + 1}"
    return f"cannot be read as YAML{begins} ({_reason(error)})"


def _reason(error: Exception) -> str:
    """Return the parser's message, without quotes from the text except single characters and
    ``<tokens>``.
    """
    message = getattr(error, "problem", None) or type(error).__name__
    message = message.replace(repr("\t"), "a tab")
    return _QUOTED.sub(_shown_quote, message) + _HINTS.get(message, "")


def _shown_quote(quote: re.Match[str]) -> str:
    text = quote[0]
    has_no_value = len(text) < 4 or text[1] == "<"
    return text if has_no_value else "…"
