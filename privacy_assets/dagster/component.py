"""Dagster component ``PrivacyGate``, which defines the pipeline of one table in YAML, and its
scaffolding.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    StaticPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_partitions_def,
)
from pydantic import BaseModel, ConfigDict, Field

from privacy_assets.dagster.definitions import build_privacy_assets
from privacy_assets.dagster.demo import home_below
from privacy_assets.infra.settings import Group, load_yaml, meaning_of, settings_of
from privacy_assets.pipeline.spec import (
    Data,
    Evaluation,
    GeneratorGroup,
    Run,
    Split,
    TableSpec,
)

Partitions = Annotated[
    dg.PartitionsDefinition | None,
    dg.Resolver(
        resolve_partitions_def,
        model_field_type=HourlyPartitionsDefinitionModel
        | DailyPartitionsDefinitionModel
        | WeeklyPartitionsDefinitionModel
        | TimeWindowPartitionsDefinitionModel
        | StaticPartitionsDefinitionModel,
        description="Partitions of the table, for example {type: static, partition_keys: [north,"
        " south]}.",
    ),
]


def as_written(context: dg.ResolutionContext, value: Any) -> Any:
    """Resolve the templates in ``value`` and keep the rest as it is; Dagster would convert a quoted
    "5" to a number.

    Args:
        context: Context of the component, with the scope of its templates.
        value: Value from YAML.
    """
    if isinstance(value, dict):
        return {key: as_written(context, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_written(context, entry) for entry in value]
    if isinstance(value, str) and "{{" in value:
        return context.resolve_value(value)
    return value


def _written(kind: Any, description: str) -> Any:
    """Return a resolver that keeps values as in the YAML file, except for templates."""
    return dg.Resolver(as_written, model_field_type=kind, description=description)


def _described(name: str) -> str:
    """Return the description of a setting in :class:`TableSpec` or its ``data``."""
    if name in TableSpec.model_fields:
        return meaning_of(TableSpec, name)
    return meaning_of(Data, name)


def _group_field(group: type[Group]) -> Any:
    """Return a field whose JSON schema has the settings of ``group``, so that ``dg check yaml``
    rejects others.

    The schema has no types, because a value may be a template. Values are validated when the
    pipeline is built.
    """
    properties = {}
    for setting in settings_of(group):
        properties[setting.name] = {"description": setting.meaning}
    schema: dict[str, Any] = {"properties": properties, "additionalProperties": False}
    return Field(None, json_schema_extra=schema)


Settings = dict[str, Any] | None
Tags = Annotated[
    dict[str, Any] | None,
    _written(
        dict[str, Any] | None,
        "Tags of the steps that may use a device, for example dagster-k8s/config.",
    ),
]

RESOURCES = '''"""Resources of the privacy pipelines: storage, releases and the device."""

import dagster as dg
from privacy_assets import frozen_config, resources


@dg.definitions
def privacy_resources() -> dg.Definitions:
    return dg.Definitions(
        # Add your own here. `resources` freezes them: otherwise users who launch a run could
        # make an IO manager unpickle any file, or have an environment variable displayed.
        resources=resources(io_manager=dg.FilesystemIOManager()),
        executor=frozen_config(dg.multiprocess_executor),
    )
'''

COMMON_SETTINGS = """\
  # A relative source is relative to the folder of this file.
  # Common settings (https://privacy-assets.github.io/privacy-assets/docs/settings.html lists all):
  # data:
  #   drop: [claim_id]  # columns to leave out, such as identifiers
  #   kinds: {zip_code: categorical}  # instead of inferred kinds
  #   missing: {age: [-1]}  # values that mean a missing value
  # split: {train: 0.6, holdout: 0.4}  # shares of people
  # generator: synthpop
  # policy: small  # for 800 to 1,500 people
  # run: {seed: 1}
  # schedule: "0 6 * * *"  # runs if the source has changed"""


class PrivacyGateParams(BaseModel):
    """Parameters of ``dg scaffold defs privacy_assets.PrivacyGate``."""

    source: str = Field(
        "demo",
        description='"demo", or a path of Parquet or CSV files, relative to the folder of the'
        " component.",
    )
    subject: str | None = Field(None, description="Column that identifies subjects.")


class PrivacyGateScaffolder(dg.Scaffolder[PrivacyGateParams]):
    """Create ``defs.yaml`` and, in the parent folder, ``privacy_resources.py`` if it does not
    exist.

    If DAGSTER_HOME is not set, it is added to the project's ``.env``, so that releases persist
    after the session.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[PrivacyGateParams]:
        """Return the model of the command-line parameters."""
        return PrivacyGateParams

    def scaffold(self, request: dg.ScaffoldRequest[PrivacyGateParams]) -> None:
        """Write the files.

        Args:
            request: Target folder and parameters.
        """
        params = request.params or PrivacyGateParams(source="demo", subject=None)
        dg.scaffold_component(request, _attributes(params, request.target_path.name))
        if request.scaffold_format == "yaml":
            file = request.target_path
            if not request.append:
                file /= "defs.yaml"
            _append_line(file, COMMON_SETTINGS)
        resources = request.target_path.parent / "privacy_resources.py"
        if not resources.exists():
            resources.write_text(RESOURCES, encoding="utf-8")
        if request.project_root is not None and not os.environ.get("DAGSTER_HOME"):
            _set_home(request.project_root)


def _attributes(params: PrivacyGateParams, name: str) -> dict[str, Any]:
    """Return the attributes of a new component."""
    attributes = {"name": name.replace("-", "_"), "source": params.source}
    if params.subject:
        attributes["subject"] = params.subject
    elif params.source == "demo":
        attributes["subject"] = "person"
    return attributes


def _set_home(project: Path) -> None:
    """Set DAGSTER_HOME in ``.env``, which Dagster's commands read. They require an absolute
    path.
    """
    env = project / ".env"
    if re.search(r"^\s*(export\s+)?DAGSTER_HOME\s*=", _text(env), re.MULTILINE):
        return
    home = home_below(project)
    _append_line(env, f"DAGSTER_HOME='{home}'")
    gitignore = project / ".gitignore"
    if not gitignore.exists():
        return
    ignored = {line.strip().strip("/") for line in _text(gitignore).splitlines()}
    for name in (env.name, home.name):
        if name not in ignored:
            _append_line(gitignore, name)


def _text(file: Path) -> str:
    if not file.exists():
        return ""
    return file.read_text(encoding="utf-8")


def _append_line(file: Path, line: str) -> None:
    text = _text(file)
    if text and not text.endswith("\n"):
        text += "\n"
    file.write_text(f"{text}{line}\n", encoding="utf-8")


@dg.scaffold_with(PrivacyGateScaffolder)
class PrivacyGate(dg.Component, dg.Model, dg.Resolvable):
    """Dagster component with the pipeline of one table: private rows, synthetic table, privacy gate
    and release.

    Equivalent to :func:`build_privacy_assets`. Relative paths are relative to the folder of the
    component. The fields describe the settings, and docs/settings.md those of the groups.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(description=_described("name"))
    source: str | None = Field(None, description=_described("source"))
    subject: Annotated[str | Settings, _written(str | Settings, _described("subject"))] = None
    data: Annotated[Settings, _written(Settings, _described("data"))] = _group_field(Data)
    split: Annotated[Settings, _written(Settings, _described("split"))] = _group_field(Split)
    generator: Annotated[str | Settings, _written(str | Settings, _described("generator"))] = (
        _group_field(GeneratorGroup)
    )
    evaluation: Annotated[Settings, _written(Settings, _described("evaluation"))] = _group_field(
        Evaluation
    )
    policy: Annotated[str | Settings, _written(str | Settings, _described("policy"))] = None
    run: Annotated[Settings, _written(Settings, _described("run"))] = _group_field(Run)
    assets: dict[str, str] | None = Field(
        None, description="Your own assets that contain rows, by role: {source: group/name}."
    )
    partitions_def: Partitions = None
    gpu_tags: Tags = None
    owners: list[str] | None = Field(
        None, description='Owners, for example "team:data" or an e-mail address.'
    )
    tags: dict[str, str] | None = Field(None, description="Tags of all assets.")
    group_name: str | None = Field(
        None, description="Group of all assets; default: the name of the table."
    )
    key_prefix: str | list[str] | None = Field(
        None, description="Prefix of all asset keys, a name or several."
    )
    schedule: str | None = Field(
        None, description="Cron schedule; a run starts only if the source changed."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions with :func:`build_privacy_assets`.

        Args:
            context: Context of the component, whose folder contains ``defs.yaml``.

        Raises:
            ConfigError: If a setting is invalid, or ``defs.yaml`` contains a key twice.
        """
        folder = Path(context.path)
        defs_yaml = folder / "defs.yaml"
        if defs_yaml.is_file():  # Dagster's parser accepts duplicate keys
            load_yaml(defs_yaml.read_text(encoding="utf-8"), str(defs_yaml))
        table_settings = {}
        dagster_settings = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in TableSpec.short or name in TableSpec.model_fields:
                table_settings[name] = value
            else:
                dagster_settings[name] = value
        return build_privacy_assets(TableSpec.of(table_settings, folder), **dagster_settings)
