"""Settings of a table's pipeline in groups, shared by all entry points and orchestrators."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from privacy_assets.errors import (
    ConfigError,
    PrivacyAssetsError,
    is_showable,
    redact_foreign_errors,
    safe_repr,
)
from privacy_assets.generators.registry import DEFAULT_GENERATOR
from privacy_assets.infra.objects import (
    check_no_credentials,
    check_no_template,
    location,
    path_text,
)
from privacy_assets.infra.settings import Dict, Group, read_yaml
from privacy_assets.tables.declared import Declared, Named
from privacy_assets.tables.names import MAX_NAME_LENGTH

WorkerKind = Literal["local", "ray"]
Rows = str | Path | None
_GROUP = "a mapping of its settings"
_ROWS = "a path of Parquet or CSV files, or null"


class Data(Declared):
    """Sources of the rows, and declarations of their columns."""

    part: ClassVar[str] = "data"

    source: Rows = Field(
        default=None,
        title=f'"demo", {_ROWS}',
        description="the private table",
    )
    synthetic: Rows = Field(
        default=None,
        title=_ROWS,
        description="an existing synthetic table, with its train and holdout instead of a source",
    )
    train: Rows = Field(
        default=None,
        title=_ROWS,
        description="rows that the existing synthetic table was generated from",
    )
    holdout: Rows = Field(
        default=None,
        title=_ROWS,
        description="rows that the generator of the existing synthetic table has not seen",
    )
    reference: Rows = Field(
        default=None,
        title=_ROWS,
        description="further rows that the generator of the existing synthetic table has not seen",
    )
    max_synthetic_rows: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of rows of an existing synthetic table; default: ten times"
        " the rows"
        " of train, or"
        " 1,000,000 if that is more",
    )
    partition_column: Annotated[str | None, Named] = Field(
        default=None,
        title="the name of a column, or null",
        description="column with the partition key of each row",
    )
    shared_subjects: bool = Field(
        default=False,
        description="the partitions contain the same people: releases of all partitions are"
        " evaluated"
        " together",
    )

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
            return
        except ConfigError as error:
            message = str(error)
        if message.startswith((f"{self.part}: ", f"{self.part} has ")):
            raise ConfigError(message)
        raise ConfigError(f"{self.part}: {message}")


class Split(Group):
    """Shares of subjects in the split, which sum to 1. Without any share: 0.5, 0.3 and 0.2."""

    part: ClassVar[str] = "split"

    train: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of people that the generator is trained on; 0.5 if no share is set",
    )
    holdout: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of people in the holdout, which the generator does not see; 0.3 if"
        " no share"
        " is set",
    )
    reference: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of additional people that the generator does not see; 0.2 if no share"
        " is set",
    )


class GeneratorGroup(Group):
    """Generator of the synthetic rows."""

    part: ClassVar[str] = "generator"

    name: Any = Field(
        default=DEFAULT_GENERATOR,
        title='the name of a generator, "module:function" or a function',
        description="generator of the synthetic rows",
    )
    settings: Annotated[dict[str, Any], Dict] = Field(
        default_factory=dict, description="settings of this generator"
    )
    rows: int | None = Field(
        default=None, ge=1, description="number of rows to generate; default: as in train"
    )
    filter: Any = Field(
        default=None,
        title="a name, a mapping of name and settings, or a list of these",
        description="memorization, similarity, outliers or alpha_m: drops rows and draws others",
    )


class Evaluation(Group):
    """Metrics to run."""

    part: ClassVar[str] = "evaluation"

    metrics: Any = Field(
        default=None,
        title="names, or a mapping of names to settings",
        description="metrics, or {name: settings that a table may set}; default: as in the policy",
    )
    embedder: bool | Annotated[dict[str, Any], Dict] = Field(
        default=True,
        title="true or false",
        description="false omits the embedder; no limit may depend on it",
    )


def _plain_integer(value: Any) -> Any:
    """Convert an integer of numpy or another library to int; other values are validated by the
    model.
    """
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


class Run(Group):
    """Options of a run."""

    part: ClassVar[str] = "run"

    seed: Annotated[int, BeforeValidator(_plain_integer)] = Field(
        default=0, ge=0, description="the same seed gives the same statistics"
    )
    workers: WorkerKind = Field(
        default="local", description='"ray": measure on a Ray cluster, with the same statistics'
    )
    stale_after_days: int | None = Field(
        default=30,
        ge=1,
        description="days after which Dagster shows the release as stale; null: never",
    )
    airflow_pool: str | None = Field(
        default=None,
        title="the name of a pool, or null",
        description="Airflow pool of the steps that can use a device; default: the default pool",
    )


def _policy(form: Any) -> Any:
    from privacy_assets.metrics.policies import load_policy

    if form is None:
        return None
    return load_policy(form)


def _generator(form: Any) -> Any:
    if isinstance(form, (Mapping, GeneratorGroup)):
        return form
    return {"name": form}


class TableSpec(Group):
    """Settings of the pipeline of one table.

    Example: ``TableSpec(name="patients", source="patients.parquet", subject="patient_id")``.
    Further settings are mappings by group, such as ``evaluation={"metrics": ["dcr"]}``. ``source``
    and ``subject`` are short forms of the settings in ``data``.

    Attributes:
        name: Name of the table.
        data: Sources of the rows, and declarations of their columns.
        split: Shares of people in train, holdout and reference, for example
            ``{train: 0.6, holdout: 0.4}``.
        generator: Generator of the synthetic rows. A name or a function is a short form.
        evaluation: Metrics and embedder.
        policy: Limits: a policy file, its contents, a Policy, or the name of a shipped one, such
            as "small" for 800 to 1,500 people. None: the default policy.
        run: Seed, workers, and options of orchestrators.

    Raises:
        ConfigError: If a setting is unknown or invalid.
    """

    part: ClassVar[str] = "table"
    # accepted at the top level instead of in `data`
    short: ClassVar[tuple[str, ...]] = ("source", "subject")

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        max_length=MAX_NAME_LENGTH,
        title=f"at most {MAX_NAME_LENGTH} letters, digits and underscores, starting with a letter",
    )
    data: Data = Field(default=Data(), title=_GROUP)
    split: Split = Field(default=Split(), title=_GROUP)
    generator: Annotated[GeneratorGroup, BeforeValidator(_generator)] = Field(
        default=GeneratorGroup(), title=_GROUP
    )
    evaluation: Evaluation = Field(default=Evaluation(), title=_GROUP)
    policy: Annotated[Any, BeforeValidator(_policy)] = Field(
        default=None, title="a policy file, its contents, or the name of a shipped one"
    )
    run: Run = Field(default=Run(), title=_GROUP)

    @redact_foreign_errors
    def __init__(self, **settings: Any) -> None:
        name = settings.get("name")
        where = "table"
        if isinstance(name, str) and name.isidentifier():
            where = f"table {name}"
        try:
            _check_texts(settings, "table")
            super().__init__(**_long(settings, where))
            return
        except PrivacyAssetsError as error:
            message = str(error)
        if message.startswith(("table has ", "table: ")):
            raise ConfigError(where + message.removeprefix("table"))
        raise ConfigError(f"{where}, {message}")

    @classmethod
    def load(cls, path: str | Path) -> TableSpec:
        """Read the settings from a YAML file.

        Args:
            path: Path of the file, with the settings or with a Dagster component (``type`` and
                ``attributes``) that has no other settings. If ``policy`` is a path, it may be
                relative to the folder of this file.

        Raises:
            ConfigError: If the file cannot be read or a setting is invalid.
        """
        written: Mapping[Any, Any] = read_yaml(path, "a table's YAML file")
        file = Path(str(location(path)))
        if "attributes" in written:
            written = _component_settings(written, file)
        try:
            return cls.of(written, file.parent)
        except ConfigError as error:
            message = str(error)
        raise ConfigError(f"{file}: {message}")

    @classmethod
    def of(cls, written: Mapping[Any, Any], folder: Path) -> TableSpec:
        """Create the spec from the content of a YAML file.

        Args:
            written: Content of the file.
            folder: Folder of the file, for relative paths of policies.

        Raises:
            ConfigError: If a setting is invalid.
        """
        _check_texts(written, "table")
        settings = dict(written)
        policy = settings.get("policy")
        if isinstance(policy, str) and (folder / policy).is_file():
            settings["policy"] = folder / policy
        _resolve_paths(settings, folder)
        if isinstance(settings.get("data"), dict):
            _resolve_paths(settings["data"], folder)
        return cls(**settings)


_COMPONENT = "privacy_assets.PrivacyGate"  # a table with further settings, which need Dagster
_TABLES = ("source", "train", "holdout", "reference", "synthetic")


def _component_settings(written: Mapping[Any, Any], file: Path) -> Mapping[Any, Any]:
    """Return the settings of a table in a Dagster component, or raise ConfigError if it has
    others.
    """
    attributes = written["attributes"]
    is_alone = written.get("type") == _COMPONENT and len(written) <= 2
    if is_alone and isinstance(attributes, dict):
        return attributes
    fault = f"a component here has two keys: type, which is {_COMPONENT}, and attributes, a mapping"
    raise ConfigError(
        f"{file}: {fault}. Fix: write only these, or the settings of the table alone."
    )


def _resolve_paths(settings: dict[Any, Any], folder: Path) -> None:
    """Replace relative paths of tables and of lists of values by paths from ``folder``."""
    for role in _TABLES:
        if role in settings:
            settings[role] = in_folder(settings[role], folder)
    allowed_values = settings.get("allowed_values")
    if not isinstance(allowed_values, dict):
        return  # reported by the model
    for listed in allowed_values.values():
        if isinstance(listed, dict) and "file" in listed:
            listed["file"] = in_folder(listed["file"], folder)


def in_folder(path: Any, folder: Path) -> Any:
    """Return the path of a table from the folder of the file in which it is written.

    Args:
        path: Value of a setting.
        folder: Folder of the file with the setting.

    Returns:
        A relative path as one from ``folder``. Other values are returned unchanged.
    """
    if not isinstance(path, str) or path in ("", "demo") or "://" in path:
        return path
    if Path(path).is_absolute():
        return path
    return str(folder / path)


def spec_of(table: TableSpec | str, **short: Any) -> TableSpec:
    """Return the settings of a table.

    Args:
        table: Settings, which are returned unchanged, or the name of a table.
        **short: Settings of a table that has only a name.

    Raises:
        ConfigError: If a setting is passed twice.
    """
    if not isinstance(table, TableSpec):
        return TableSpec(name=table, **short)
    for name, value in short.items():
        if value is not None:
            raise ConfigError(
                f"table {table.name}: {name} was passed in addition to a spec. Fix: set it in"
                " the spec."
            )
    return table


GROUPS: tuple[type[Group], ...] = (Data, Split, GeneratorGroup, Evaluation, Run)


def _check_texts(value: Any, part: str) -> None:
    """Raise ConfigError if a mapping has a key that is not a string, a URL credentials, or a value
    is a template.
    """
    if isinstance(value, str | PurePath):
        try:
            check_no_credentials(path_text(value))
            check_no_template(path_text(value))
        except ConfigError as error:
            raise ConfigError(f"{part}: {error}") from None
    elif isinstance(value, list | tuple):
        for entry in value:
            _check_texts(entry, part)
    elif isinstance(value, Mapping):
        _check_names(value, part)
        for name, entry in value.items():
            inner_part = part
            if is_showable(name):
                inner_part = name
            _check_texts(entry, inner_part)


def _check_names(settings: Mapping[Any, Any], part: str) -> None:
    """Raise ConfigError if the name of a setting is not a string."""
    for name in settings:
        if not isinstance(name, str):
            raise ConfigError(
                f"{part} has no setting {safe_repr(name)}: names of settings are strings."
            )


def _long(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings with the short forms moved to their group."""
    long = {name: value for name, value in settings.items() if value is not None or name == "name"}
    short = {name: long.pop(name) for name in TableSpec.short if name in long}
    if not short:
        return long
    data = long.get("data", {})
    if isinstance(data, Data):
        data = {name: getattr(data, name) for name in data.model_fields_set}
    if not isinstance(data, Mapping):
        return long  # reported by the model
    for name in short:
        if data.get(name) is not None:
            raise ConfigError(
                f"{where}, data: {name} occurs twice. Fix: set it once, in data or next to the"
                " groups."
            )
    return {**long, "data": {**data, **short}}
