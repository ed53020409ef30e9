"""``PrivacyGate``: one table's pipeline in YAML. The same factory as in Python, of the same spec."""

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

from privacy_assets.dagster.demo import home_below
from privacy_assets.dagster.factory import build_privacy_assets
from privacy_assets.pipeline.spec import Data, TableSpec
from privacy_assets.storage.strict_yaml import load_yaml

Partitions = Annotated[
    dg.PartitionsDefinition | None,
    dg.Resolver(
        resolve_partitions_def,
        model_field_type=HourlyPartitionsDefinitionModel
        | DailyPartitionsDefinitionModel
        | WeeklyPartitionsDefinitionModel
        | TimeWindowPartitionsDefinitionModel
        | StaticPartitionsDefinitionModel,
        description="Partitions of the table, for example {type: static, partition_keys: [north, south]}.",
    ),
]


def as_written(context: dg.ResolutionContext, value: Any) -> Any:
    """``value`` with its templates filled in, and nothing else changed: Dagster makes a number of a quoted "5"."""
    if isinstance(value, dict):
        return {key: as_written(context, one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_written(context, one) for one in value]
    return context.resolve_value(value) if isinstance(value, str) and "{{" in value else value


def _written(kind: Any, description: str) -> Any:
    """How a field is resolved that holds what a table's file holds: as it is written."""
    return dg.Resolver(as_written, model_field_type=kind, description=description)


def _described(name: str) -> str:
    """What the spec says of one of its settings."""
    found = TableSpec.model_fields.get(name) or Data.model_fields[name]
    return found.description or ""


Settings = dict[str, Any] | None
Tags = Annotated[
    dict[str, Any] | None,
    _written(dict[str, Any] | None, "Tags of the steps that may use a device, for example dagster-k8s/config."),
]

RESOURCES = '''"""Resources of the privacy pipelines: storage, releases and the device."""

import dagster as dg
from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, fixed


@dg.definitions
def privacy_resources() -> dg.Definitions:
    return dg.Definitions(
        resources={
            # Of all assets that name none. The gate wants every resource fixed: Dagster lets whoever launches a run
            # give the others values, and so have anything unpickled or any environment variable shown.
            "io_manager": fixed(dg.FilesystemIOManager()),
            "privacy_io": PrivacyIOManager(),
            "releases": ReleaseResource(),
            "gpu": GpuResource(),
        },
        executor=fixed(dg.multiprocess_executor),
    )
'''


class PrivacyGateParams(BaseModel):
    """What ``dg scaffold defs privacy_assets.PrivacyGate`` can be given."""

    source: str = Field("demo", description='"demo", or a path of Parquet or CSV files.')
    subject: str | None = Field(None, description="Column that tells people apart.")


class PrivacyGateScaffolder(dg.Scaffolder[PrivacyGateParams]):
    """Writes ``defs.yaml``, and ``privacy_resources.py`` beside the folder when the project has none yet.

    So that releases outlive the session, a project without DAGSTER_HOME gets one in its ``.env``.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[PrivacyGateParams]:
        """Parameters of the command line."""
        return PrivacyGateParams

    def scaffold(self, request: dg.ScaffoldRequest[PrivacyGateParams]) -> None:
        """Write the files."""
        params = request.params or PrivacyGateParams(source="demo", subject=None)
        subject = params.subject or ("person" if params.source == "demo" else None)
        attributes: dict[str, Any] = {"name": request.target_path.name.replace("-", "_"), "source": params.source}
        dg.scaffold_component(request, {**attributes, **({"subject": subject} if subject else {})})
        resources = request.target_path.parent / "privacy_resources.py"
        if not resources.exists():
            resources.write_text(RESOURCES, encoding="utf-8")
        if request.project_root is not None and not os.environ.get("DAGSTER_HOME"):
            _keep_home(request.project_root)


def _keep_home(project: Path) -> None:
    """Name a folder that stays in ``.env``, which Dagster's commands read: by its absolute path, as they ask for."""
    env, ignored = project / ".env", project / ".gitignore"
    if re.search(r"^\s*(export\s+)?DAGSTER_HOME\s*=", _text(env), re.MULTILINE):
        return
    home = home_below(project)
    _append(env, f"DAGSTER_HOME='{home}'")
    if ignored.exists():
        lines = {line.strip().strip("/") for line in _text(ignored).splitlines()}
        for name in (env.name, home.name):
            if name not in lines:
                _append(ignored, name)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _append(file: Path, line: str) -> None:
    text = _text(file)
    file.write_text(text + ("" if text.endswith("\n") or not text else "\n") + line + "\n", encoding="utf-8")


@dg.scaffold_with(PrivacyGateScaffolder)
class PrivacyGate(dg.Component, dg.Model, dg.Resolvable):
    """A private table, its synthetic twin, and the gate between the twin and its publication."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(description=_described("name"))
    source: str | None = Field(None, description=_described("source"))
    subject: str | None = Field(None, description=_described("subject"))
    data: Annotated[Settings, _written(Settings, _described("data"))] = None
    split: Annotated[Settings, _written(Settings, _described("split"))] = None
    generator: Annotated[str | Settings, _written(str | Settings, _described("generator"))] = None
    attacks: Annotated[Settings, _written(Settings, _described("attacks"))] = None
    policy: Annotated[str | Settings, _written(str | Settings, _described("policy"))] = None
    run: Annotated[Settings, _written(Settings, _described("run"))] = None
    assets: dict[str, str] | None = Field(
        None, description="Assets of yours that hold rows, by role: {source: group/name}."
    )
    partitions_def: Partitions = None
    gpu_tags: Tags = None
    owners: list[str] | None = Field(None, description='Owners, for example "team:data" or an e-mail address.')
    tags: dict[str, str] | None = Field(None, description="Tags of all assets.")
    group_name: str | None = Field(None, description="Group of all assets; data, attacks and gate when not given.")
    schedule: str | None = Field(None, description="A cron line: run on it while the source is new.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions that ``build_privacy_assets`` makes of the same spec."""
        folder = Path(context.path)
        if (folder / "defs.yaml").is_file():  # Dagster reads it by a parser that lets the last of two equal keys win
            load_yaml((folder / "defs.yaml").read_text(encoding="utf-8"), str(folder / "defs.yaml"))
        said = {name: getattr(self, name) for name in type(self).model_fields}
        own = {name: said.pop(name) for name in list(said) if name not in (*TableSpec.short, *TableSpec.model_fields)}
        return build_privacy_assets(TableSpec.of(said, folder), **own)
