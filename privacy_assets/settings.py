"""Settings: declared once, with type, bounds and meaning; every wrong value is one ConfigError that names it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as validated
from pydantic.fields import FieldInfo

from privacy_assets.errors import ConfigError, PrivacyAssetsError, did_you_mean, shown, without_chain

T = TypeVar("T")
_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
_BY_NAME = "give each setting once, by its name."
_ONE = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false values"}


class Unfit(ValueError):
    """What a validator of ours says of a value: its words are shown. Those of any other error can quote the value."""


def _as_tuple(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) else value


def _as_dict(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


Tuple = BeforeValidator(_as_tuple)  # any list of values; a text is none
Dict = BeforeValidator(_as_dict)  # any mapping
Layers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Tuple]  # widths of the layers of a network


@dataclass(frozen=True)
class Setting:
    """One setting of a part, as reference pages show it."""

    name: str
    domain: str
    default: Any
    meaning: str


def parts_at(*places: str) -> dict[str, Any]:
    """The classes at ``places``, "module:Class", by their ``name``: a registry of one line for each; in this order."""
    found: dict[str, Any] = {}
    for place in places:
        module, _, kind = place.partition(":")
        part = getattr(import_module(module), kind)
        if "__pydantic_fields__" not in vars(part):
            raise TypeError(f"{place} declares no settings: put @declared above the class.")
        if part.name in found:
            raise TypeError(f"{place}: there is a {part.part} {part.name} already.")
        found[part.name] = part
    return found


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def declared(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are settings: ``name: type = Field(default=..., ge=..., description=...)``.

    Made with a value of another type or beyond its bounds it raises ConfigError, in the words of :func:`settings_of`;
    no number is read from a text, and no flag for a number. ``part`` and ``name`` of the class, those that it has, are
    what messages call it. A plain dataclass that inherits from one has the bounds of none of its settings checked, and
    knows those defaults alone that stand beside the field: ``name: Annotated[type, Field(...)] = default``.
    """
    return _declared(kind, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def declared_by_name(kind: type[T]) -> type[T]:
    """The same for classes whose settings are given by name alone."""
    return _declared(kind, kw_only=True)


def _declared(kind: type[T], *, kw_only: bool) -> type[T]:
    made: Any = validated(frozen=True, kw_only=kw_only, config=_CONFIG)(kind)
    plain = made.__init__

    def made_of(self: Any, *args: Any, **named: Any) -> None:
        if args and kw_only:  # pydantic takes some all the same
            raise ConfigError(f"{_where(type(self))}: {_BY_NAME}")
        try:
            plain(self, *args, **named)
            return
        except ValidationError as error:
            wrong = error
        raise problem(type(self), wrong)  # outside of the handler: the first error quotes the value

    made.__init__ = made_of
    return made


def settings_of(kind: Any) -> list[Setting]:
    """The settings that ``kind`` declares, in their order: a class made by :func:`declared`, or a pydantic model."""
    if issubclass(kind, BaseModel):
        return [
            Setting(name, domain_of(info), _default(info), info.description or "")
            for name, info in kind.model_fields.items()
        ]
    return [
        Setting(
            field.name, domain_of(_info(kind, field.name)), default_of(field), _info(kind, field.name).description or ""
        )
        for field in fields(kind)
    ]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field of a dataclass, declared here or not; MISSING where it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    default = field.default
    return _default(default) if isinstance(default, FieldInfo) else default


def _default(info: FieldInfo) -> Any:
    return MISSING if info.is_required() else info.get_default(call_default_factory=True)


def domain_of(info: FieldInfo) -> str:
    """What a setting must be, in words: its title, where types and bounds do not say it."""
    return info.title or _domain(info.annotation, info.metadata)


def _info(kind: Any, name: str) -> FieldInfo:
    return kind.__pydantic_fields__[name]


def problem(kind: Any, error: ValidationError) -> Exception:
    """The one error that tells, in our words and without the value, what is wrong with the settings of ``kind``."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, PrivacyAssetsError):  # of __post_init__
        return without_chain(cause)
    return ConfigError(_sentence(kind, first, cause))


def _where(kind: type) -> str:
    known = [
        one for one in ("part", "name") if hasattr(kind, one) and one not in getattr(kind, "__pydantic_fields__", ())
    ]
    return " ".join(getattr(kind, one) for one in known) or kind.__name__


def _sentence(kind: Any, first: Any, cause: object) -> str:
    where = _where(kind)
    if not first["loc"]:  # another error of __post_init__, whose words are not known
        return f"{where}: the settings do not fit together."
    if first["type"] in ("unexpected_positional_argument", "multiple_argument_values"):
        return f"{where}: {_BY_NAME}"
    at = first["loc"][0]
    name = fields(kind)[at].name if isinstance(at, int) else str(at)
    if name not in kind.__pydantic_fields__:
        return f"{where} has no setting {shown(name)}.{_known(kind, name)}"
    hint, info = "", _info(kind, name)
    if isinstance(cause, Unfit):
        return f"{where}: {name} {cause}."
    choices = _choices(info.annotation)
    if choices and isinstance(first["input"], str):
        hint = did_you_mean(first["input"], choices)
    return f"{where}: {name} must be {domain_of(info)}.{hint}"


def _known(kind: Any, name: str) -> str:
    """Where an unknown setting belongs: a group of ``kind`` that has it, or the setting that was meant."""
    for group, info in kind.__pydantic_fields__.items():
        if name in getattr(info.annotation, "__pydantic_fields__", ()):
            listed = domain_of(_info(info.annotation, name)).startswith("a list")
            return f" It belongs to {group}: write {group}: {{{name}: {'[...]' if listed else '...'}}}."
    return did_you_mean(name, [*kind.__pydantic_fields__, *getattr(kind, "short", ())])


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def _domain(annotation: Any, metadata: Any = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _domain(inner[0], [*inner[1:], *metadata])
    if origin in (Union, types.UnionType):
        some = [one for one in inner if one is not type(None)]
        return " or ".join(_domain(one, metadata) for one in some) + (", or nothing" if len(some) < len(inner) else "")
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if origin is tuple and inner[1:] == (...,):
        each = inner[0]
        kind, own = (get_args(each)[0], get_args(each)[1:]) if get_origin(each) is Annotated else (each, ())
        least = next((one.min_length for one in _flat(metadata) if hasattr(one, "min_length")), 0)
        any_or_more = "of one or more" if least else "of"
        return f"a list {any_or_more} {_MANY.get(kind, 'values')}{_bounds(own)}"
    if origin is tuple:
        return "a list of " + " and ".join(_domain(one) for one in inner)
    if annotation in _ONE:
        return _ONE[annotation] + _bounds(metadata)
    return "a mapping of names to values" if origin is dict else "a value"


def _flat(metadata: Any) -> list[Any]:
    return [one for entry in metadata for one in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]


def _bounds(metadata: Any) -> str:
    ends = ("ge", "gt", "le", "lt", "multiple_of")
    known = {end: getattr(one, end) for one in _flat(metadata) for end in ends if hasattr(one, end)}
    if "multiple_of" in known:
        kind = "an even one" if known["multiple_of"] == 2 else f"a multiple of {known['multiple_of']:g},"
        return f", {kind} of at least {known['ge']:g}"
    if "ge" in known and "le" in known:
        return f" from {known['ge']:g} to {known['le']:g}"
    words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [f"{words[end]} {known[end]:g}" for end in words if end in known]
    return f" {' and '.join(bounds)}" if bounds else ""
