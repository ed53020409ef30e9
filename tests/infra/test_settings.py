"""Settings are declared once: validation, error messages, and the page of settings."""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import pytest
from pydantic import AfterValidator, Field

from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.filters import FILTERS, SimilarityFilter
from privacy_assets.generators.synthpop import SynthPop
from privacy_assets.infra.settings import (
    InvalidSetting,
    Layers,
    Tuple,
    declared,
    meaning_of,
    settings_of,
)
from privacy_assets.metrics.controls import Controls
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.policy import Limit, Policy
from privacy_assets.studies.shadow_membership.attacks import ATTACKS
from privacy_assets.studies.shadow_membership.audit import AuditConfig
from tests.shipped import GENERATORS, METRICS


def _rising(value: tuple[float, ...]) -> tuple[float, ...]:
    if list(value) != sorted(value):
        raise InvalidSetting("must rise")
    if 99.0 in value:
        raise ValueError(f"a private value: {value}")
    return value


@declared
class Part:
    """A part with a setting of every kind.

    Args:
        share: A share, see :func:`~privacy_assets.evaluate` and ``count``
            of the next line.
        count: A count.

    Attributes:
        share: A statistic of the same name.
        tails: Some tails.
    """

    part: ClassVar[str] = "metric"
    name: ClassVar[str] = "some"

    share: float = Field(default=0.02, gt=0, le=0.5)
    count: int = Field(default=5, ge=1, le=9)
    tails: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Tuple, AfterValidator(_rising)] = (
        Field(default=(0.1, 0.2), min_length=1)
    )
    hidden: Layers = Field(default=(8,), description="layers")
    kind: Literal["raw", "embedded"] = Field(default="raw", description="a kind")
    budget: int | None = Field(default=None, ge=1000, description="a budget")
    flag: bool = Field(default=True, description="a flag")
    more: dict[str, Any] = Field(default_factory=dict, description="anything")


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"share": value}, "share: Input should be a valid number.")
        for value in ("0.02", True, None)
    ),
    *(
        ({"share": value}, "share: Input should be a finite number.")
        for value in (math.nan, math.inf)
    ),
    ({"share": 0}, "share: Input should be greater than 0."),
    ({"share": 0.51}, "share: Input should be less than or equal to 0.5."),
    *(({"count": value}, "count: Input should be a valid integer.") for value in (2.0, True)),
    ({"count": 10}, "count: Input should be less than or equal to 9."),
    ({"tails": []}, "tails: Tuple should have at least 1 item after validation, not 0."),
    ({"tails": [0.1, -1]}, "tails: Input should be greater than 0."),
    ({"tails": "0.1"}, "tails: Input should be a valid tuple."),
    ({"tails": [0.2, 0.1]}, "tails: must rise."),
    ({"tails": [0.5, 0.5, 99.0]}, "tails: Invalid value."),
    ({"hidden": [8, 0]}, "hidden: Input should be greater than or equal to 1."),
    *(({"kind": value}, "kind: Input should be 'raw' or 'embedded'.") for value in ("embeded", 3)),
    ({"budget": 999}, "budget: Input should be greater than or equal to 1000."),
    ({"flag": 1}, "flag: Input should be a valid boolean."),
    ({"more": [1]}, "more: Input should be a valid dictionary."),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[str(given) for given, _ in WRONG])
def test_a_wrong_value_is_one_error_that_names_the_part_and_the_setting(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Part(**given)
    assert str(caught.value) == f"metric some: {words}"
    # pydantic's quotes the value
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize(
    ("values", "named", "words"),
    [
        ([], {"shar": 0.1}, "metric some has no setting 'shar'. Did you mean 'share'?"),
        ([0.1], {"share": 0.2}, "metric some: share: Got multiple values for argument."),
        (range(30), {}, "metric some: share: Input should be greater than 0."),
    ],
)
def test_calls_of_a_wrong_shape(values: Sequence[Any], named: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Part(*values, **named)
    assert str(caught.value) == words
    with pytest.raises(ConfigError, match="similarity: pass each setting once"):
        SimilarityFilter(0.1)  # type: ignore[misc]


def test_a_part_is_a_frozen_dataclass_whose_lists_are_tuples() -> None:
    part = Part(tails=[0.1, 0.3], hidden=[4, 4], budget=1000)  # type: ignore[arg-type]
    assert part.tails == (0.1, 0.3) and part.hidden == (4, 4)
    assert replace(part, share=0.5).share == 0.5 and pickle.loads(pickle.dumps(part)) == part
    assert asdict(part)["budget"] == 1000
    with pytest.raises(ConfigError, match="share"):
        replace(part, share=0.6)
    with pytest.raises(AttributeError):
        part.share = 0.1  # type: ignore[misc]


def test_any_list_and_any_mapping_will_do() -> None:
    for visit in (pd.Index(["a", "b"]), iter(["a", "b"]), np.array(["a", "b"])):
        assert SynthPop(visit=visit).visit == ("a", "b")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="visit: Input should be a valid tuple"):
        SynthPop(visit=dict.fromkeys("ab"))  # type: ignore[arg-type]
    assert AuditConfig(None, ids=np.array([3, 1])).ids == (3, 1)  # type: ignore[arg-type]
    assert AuditConfig(None, attack_settings=MappingProxyType({"trees": 3})).attack_settings == {
        "trees": 3
    }  # type: ignore[arg-type]
    assert Controls(doses=np.array([0.1, 0.2])).doses == (0.1, 0.2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="doses: Input should be less than or equal to 0.5"):
        Controls(doses=(0.1, 0.95))


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (InputError("no such file"), InputError, "no such file."),
        (
            ValueError("a private value"),
            ConfigError,
            "metric breaks: the settings do not fit together.",
        ),
        (
            AssertionError("a private value"),
            ConfigError,
            "metric breaks: the settings do not fit together.",
        ),
    ],
)
def test_what_a_part_raises_itself_is_told_alone(
    wrong: Exception, kind: type[Exception], words: str
) -> None:
    @declared
    class Breaks:
        part: ClassVar[str] = "metric"
        name: ClassVar[str] = "breaks"

        count: int = Field(default=1, description="a count")

        def __post_init__(self) -> None:
            raise wrong

    with pytest.raises(kind) as caught:
        Breaks()
    assert type(caught.value) is kind and str(caught.value) == words
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_filter_that_is_a_plain_dataclass_has_its_defaults() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(SimilarityFilter.__mro__[1]):  # type: ignore[misc]
        name = "mine"

        def _typical(self, rows: Any, subjects: np.ndarray) -> float:
            return 0.1

        def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
            return n_subjects > 0

    assert Mine().settings() == {"radius": None, "attempts": 10}


def test_settings_are_told_with_bounds_default_and_meaning() -> None:
    told = {one.name: one for one in settings_of(Part)}
    assert list(told) == ["share", "count", "tails", "hidden", "kind", "budget", "flag", "more"]
    assert (told["share"].domain, told["share"].default, told["share"].meaning) == (
        "a number above 0 and at most 0.5", 0.02,
        "A share, see `evaluate` and `count` of the next line.",
    )  # fmt: skip
    assert (told["tails"].meaning, told["hidden"].meaning) == ("Some tails.", "layers")
    assert told["tails"].default == (0.1, 0.2) and told["more"].default == {}


EVERY: list[Any] = [
    *METRICS.values(), *GENERATORS.values(), *FILTERS.values(), EmbedderSettings, AuditConfig,
    *(kind for kind, _ in ATTACKS.values()),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [*EVERY, Policy, Limit, TableSpec, *GROUPS], ids=lambda kind: kind.__name__
)
def test_a_setting_is_described_once(kind: Any) -> None:
    for name, info in kind.__pydantic_fields__.items():
        docstrings = [
            inspect.getdoc(base) or "" for base in kind.__mro__ if "__doc__" in vars(base)
        ]
        in_docstring = any(re.search(rf"^    {name}: ", text, re.MULTILINE) for text in docstrings)
        assert in_docstring != bool(info.description), f"{kind.__name__}.{name}"
        assert meaning_of(kind, name)


JUNK = {
    "bytes": b"junk",
    "object": object(),
    "mapping": {1: 2},
    "list": [[]],
    "nan": math.nan,
    "huge": -(10**400),
}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: getattr(kind, "name", kind.__name__))
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_is_a_config_error_in_every_setting(kind: Any, junk: object) -> None:
    """No value raises TypeError or another error; only settings that take any mapping or value may
    accept it.
    """
    required = {
        "command": {"command": ["{train}{out}{rows}{seed}"]},
        "callable": {"function": "json:dumps"},
    }
    given = required.get(getattr(kind, "name", ""), {}) | (
        {"generator": None} if kind is AuditConfig else {}
    )
    for one in settings_of(kind):
        loose = "mapping" in one.domain or one.domain in ("a value", "a generator")
        if loose:
            continue
        with pytest.raises(ConfigError):
            kind(**{**given, one.name: junk})
