"""What a user may say of a table's pipeline: one model in six groups, for every door and every orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from privacy_assets.errors import ConfigError, PrivacyAssetsError, door, shown
from privacy_assets.settings import Dict, Tuple, problem
from privacy_assets.storage.files import not_a_file
from privacy_assets.storage.strict_yaml import load_yaml
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.splitting import SHARES_EXAMPLE

WorkerKind = Literal["local", "ray"]
Rows = str | Path | None
_GROUP = "a mapping of its settings"
_ROWS = "a path of Parquet or CSV files, or nothing"


class Group(BaseModel):
    """Settings that belong together; a wrong one is a ConfigError that names ``part`` and setting."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
            return
        except ValidationError as error:
            wrong = error
        raise problem(type(self), wrong)  # outside of the handler: the first error quotes the value


class Data(Group):
    """Where the rows come from, and what their columns are."""

    part: ClassVar[str] = "data"

    source: Rows = Field(
        default=None,
        title=f'"demo", {_ROWS}',
        description='the private table: "demo", or a path of Parquet or CSV files',
    )
    subject: str | None = Field(
        default=None, title="the name of a column, or nothing", description="column that tells people apart"
    )
    kinds: Annotated[dict[str, Kind], Dict] = Field(
        default_factory=dict, title="a kind for each column", description="column kinds that override the inferred ones"
    )
    drop: Annotated[tuple[str, ...], Tuple] = Field(
        default=(),
        title="a list of column names, for example [claim_id, note]",
        description="columns to leave out of every table, for example identifiers",
    )
    generated: Annotated[dict[str, str], Dict] = Field(
        default_factory=dict,
        title="a reason for each column",
        description="columns in which new values are allowed, each with the reason, which is signed",
    )
    domains: Annotated[dict[str, Any], Dict] = Field(
        default_factory=dict,
        title="a list of values for each column",
        description="values that may stand in a column beside those of the real rows",
    )
    synthetic: Rows = Field(
        default=None,
        title=_ROWS,
        description="a synthetic table of your own, with its train and holdout in place of a source",
    )
    train: Rows = Field(default=None, title=_ROWS, description="the rows that your own synthetic table was made from")
    holdout: Rows = Field(
        default=None, title=_ROWS, description="rows that the generator of your own synthetic table has not seen"
    )
    reference: Rows = Field(
        default=None, title=_ROWS, description="further unseen rows beside your own synthetic table"
    )
    partition_column: str | None = Field(
        default=None,
        title="the name of a column, or nothing",
        description="column that says which rows belong to a partition",
    )
    pool_partitions: bool = Field(
        default=False, description="the same people stand in all partitions: each release is judged with those of all"
    )


class Split(Group):
    """On which side of the split people stand."""

    part: ClassVar[str] = "split"

    shares: Annotated[dict[str, float], Dict] | None = Field(
        default=None,
        title=f"a share for each of train, holdout and reference, for example {SHARES_EXAMPLE}",
        description="shares of people; 50, 30 and 20 % without",
    )


class GeneratorGroup(Group):
    """What makes the synthetic rows."""

    part: ClassVar[str] = "generator"

    name: Any = Field(
        default="synthpop",
        title='the name of a generator, "module:function" or a function',
        description='a registered generator, "module:function", or in Python a function',
    )
    settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict, description="settings of this generator")
    rows: int | None = Field(default=None, ge=1, description="rows to generate; as many as train has without")
    filter: Any = Field(
        default=None,
        title="a name, a mapping of name and settings, or a list of these",
        description="memorization, similarity or outliers: leaves out rows, and draws others",
    )


class Attacks(Group):
    """What is measured."""

    part: ClassVar[str] = "attacks"

    metrics: Any = Field(
        default=None,
        title="names, or a mapping of names to settings",
        description="metrics, or {name: settings}; those of the policy without",
    )
    embedder: bool | Annotated[dict[str, Any], Dict] = Field(
        default=True, description="settings of the embedder, or false for none"
    )


class Run(Group):
    """How it is run."""

    part: ClassVar[str] = "run"

    seed: int = Field(default=0, ge=0, description="the same seed gives the same statistics")
    workers: WorkerKind = Field(
        default="local", description='"ray" measures on a Ray cluster; the statistics are the same'
    )
    stale_after_days: int | None = Field(
        default=30, ge=1, description="days after which Dagster shows the release as stale; null for never"
    )
    device_pool: str | None = Field(
        default=None,
        title="the name of a pool, or nothing",
        description="Airflow pool of the steps that can use a device; the default one without",
    )


def _policy(given: Any) -> Any:
    from privacy_assets.report.evaluate import as_policy

    return as_policy(given)


def _generator(given: Any) -> Any:
    return given if isinstance(given, (Mapping, GeneratorGroup)) else {"name": given}


class TableSpec(Group):
    """One table's pipeline, from its private rows to the release.

    ``TableSpec(name="patients", source="patients.parquet", subject="patient_id")``, with a mapping for each group
    that says more: ``attacks={"metrics": ["dcr"]}``. ``source`` and ``subject`` are short for those of ``data``; as
    ``generator`` a name or a function is short for its group; ``policy`` is a policy file, its contents, a Policy
    or the name of a shipped one, ``small``.
    """

    part: ClassVar[str] = "table"
    short: ClassVar[tuple[str, ...]] = ("source", "subject")  # may stand beside the groups in place of in `data`

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        title="letters, digits and underscores, a letter first",
        description="name of the table",
    )
    data: Data = Field(default=Data(), title=_GROUP, description="where the rows come from, and what their columns are")
    split: Split = Field(default=Split(), title=_GROUP, description="on which side of the split people stand")
    generator: Annotated[GeneratorGroup, BeforeValidator(_generator)] = Field(
        default=GeneratorGroup(), title=_GROUP, description="what makes the synthetic rows"
    )
    attacks: Attacks = Field(default=Attacks(), title=_GROUP, description="what is measured")
    policy: Annotated[Any, BeforeValidator(_policy)] = Field(
        default=None,
        title="a policy file, its contents, or the name of a shipped one",
        description="the limits: a policy file, its contents, a Policy, or small for 800 to 1,500 people;"
        " the default ones without",
    )
    run: Run = Field(default=Run(), title=_GROUP, description="how it is run")

    @door
    def __init__(self, **given: Any) -> None:
        name, wrong = given.get("name"), ""
        where = f"table {name}" if isinstance(name, str) and name.isidentifier() else "table"
        try:
            super().__init__(**_long(given, where))
            return
        except PrivacyAssetsError as error:
            wrong = str(error)
        own = wrong.startswith(("table has ", "table: "))
        raise ConfigError(where + wrong.removeprefix("table") if own else f"{where}, {wrong}")

    @classmethod
    def load(cls, path: str | Path) -> TableSpec:
        """Read a YAML file of these settings; a policy file may be named by its place beside it. ConfigError."""
        place = Path(path)
        if wrong := not_a_file(place):
            raise ConfigError(f"{shown(place)}: {wrong}. Fix: give the path of a table's YAML file.")
        try:
            text = place.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = "not UTF-8" if isinstance(error, ValueError) else error.strerror
            ConfigError(f"{place}: cannot be read ({reason}).").raise_alone()
        documents = load_yaml(text, str(place))
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise ConfigError(f"{place}: expected one mapping with the name of the table, and its groups.")
        try:
            return cls.of(documents[0], place.parent)
        except ConfigError as error:
            wrong = str(error)
        raise ConfigError(f"{place}: {wrong}")

    @classmethod
    def of(cls, written: Mapping[Any, Any], folder: Path) -> TableSpec:
        """The same of a mapping as a file in ``folder`` holds it."""
        if odd := next((key for key in written if not isinstance(key, str)), None):
            raise ConfigError(f"table has no setting {shown(odd)}: its settings are named by texts.")
        policy = written.get("policy")
        beside = folder / policy if isinstance(policy, str) else None
        return cls(**{**written, **({"policy": beside} if beside is not None and beside.is_file() else {})})


def spec_of(table: TableSpec | str, **short: Any) -> TableSpec:
    """``table`` itself, or the spec of the table of this name and the short settings; ConfigError where both say it."""
    if not isinstance(table, TableSpec):
        return TableSpec(name=table, **short)
    if twice := next((name for name, value in short.items() if value is not None), None):
        raise ConfigError(f"table {table.name}: {twice} was given beside a spec. Fix: say it in the spec.")
    return table


GROUPS: tuple[type[Group], ...] = (Data, Split, GeneratorGroup, Attacks, Run)


def _long(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same settings with the short ones in their group."""
    found = {name: value for name, value in given.items() if value is not None or name == "name"}
    short = {name: found.pop(name) for name in TableSpec.short if name in found}
    data = found.get("data", {})
    if not short:
        return found
    if isinstance(data, Data):
        data = data.model_dump(exclude_unset=True)
    if not isinstance(data, Mapping):
        return found  # which is told of
    for name in short:
        if data.get(name) is not None:
            raise ConfigError(f"{where}, data: {name} stands twice. Fix: give it once, beside the groups or in data.")
    return {**found, "data": {**data, **short}}
