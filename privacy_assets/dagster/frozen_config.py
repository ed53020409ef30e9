"""Reject run configuration of resources and executors, which are configured in code only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any, overload

import dagster as dg
from dagster._config import ConfigTypeKind
from dagster._core.definitions.job_definition import default_job_io_manager
from dagster._core.execution.resources_init import (
    get_required_resource_keys_for_step,
    get_transitive_required_resource_keys,
)

from privacy_assets.errors import ConfigError
from privacy_assets.infra.objects import check_no_credentials

# key of the resource that every step of a table requires, except the leak study
RELEASES = "releases"
_SECTIONS = ("resources", "execution")
# default settings of dg.multiprocess_executor
_FORK_SERVER = {
    "start_method": {"forkserver": {"preload_modules": ["privacy_assets.dagster.preload"]}}
}
if sys.platform != "linux":  # libraries do not support forks on macOS
    _FORK_SERVER = {}


@overload
def frozen_config(
    configurable: dg.ExecutorDefinition, settings: Mapping[str, Any] | None = None
) -> dg.ExecutorDefinition: ...


@overload
def frozen_config(
    configurable: dg.ConfigurableResource[Any]
    | dg.ConfigurableIOManagerFactory[Any]
    | dg.ResourceDefinition,
    settings: Mapping[str, Any] | None = None,
) -> dg.ResourceDefinition: ...


def frozen_config(configurable: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """Fix the configuration of a resource, IO manager or executor, so that run configuration cannot
    override it.

    Otherwise a user who launches a run could point an IO manager to another location, from which it
    would unpickle, have an environment variable displayed as a path, or make an executor import
    another module. A table does not run if run configuration can override a resource that its steps
    require.

    Args:
        configurable: An instance (``frozen_config(dg.FilesystemIOManager(base_dir="/srv/data"))``)
            or a definition (``frozen_config(dg.multiprocess_executor, {"max_concurrent": 2})``).
        settings: Configuration of a definition. Ignored for an instance. If a required value is
            missing, no run starts. On Linux the default ``start_method`` of
            ``dg.multiprocess_executor`` is a fork server that has imported the libraries of the
            steps, instead of "spawn", with which every step imports them.

    Returns:
        A definition without configuration schema.
    """
    definition = configurable
    values = {**(settings or {})}
    if configurable is dg.multiprocess_executor:
        values = {**_FORK_SERVER, **values}
    if hasattr(configurable, "get_resource_definition"):
        definition = configurable.get_resource_definition()
        values = configurable._resolved_config_dict
    if not is_open(definition):
        return definition
    return definition.configured(lambda _: values, config_schema={})


def is_open(definition: Any) -> bool:
    """Return True if run configuration can set values of ``definition``.

    A resource without a declared schema receives any run configuration, but without resolved
    environment variables. :func:`check_launch` rejects such runs.

    Args:
        definition: Definition of a resource, IO manager or executor.
    """
    if not definition.has_config_field:
        return False
    config_type = definition.config_field.config_type
    if config_type.kind is ConfigTypeKind.ANY:
        return False
    if config_type.kind is ConfigTypeKind.STRICT_SHAPE:
        return bool(config_type.fields)
    return True


class FixedConfig:
    """Mixin for resource classes whose configuration is fixed in code; see :func:`frozen_config`.

    Otherwise any user of the UI could select another private folder or key by run configuration, or
    display any environment variable as a path.

    Raises:
        ConfigError: If a value is a URL with credentials, because the UI displays values.
    """

    def __init__(self, **settings: Any) -> None:
        for value in settings.values():
            if isinstance(value, str):
                check_no_credentials(value)
        super().__init__(**settings)

    @cached_property
    def _fixed(self) -> Any:
        values = self._resolved_config_dict  # type: ignore[attr-defined]
        definition = super().get_resource_definition()  # type: ignore[misc]
        return definition.configured(lambda _: values, config_schema={})

    def get_resource_definition(self) -> Any:
        """Return the definition with its configuration. Always the same object, because Dagster
        compares identities.
        """
        return self._fixed


def check_launch() -> None:
    """Reject runs whose configuration sets resources or executors, or could set a resource that a
    table requires.

    The resources of a table are those that its steps require in this run, with the IO managers of
    the assets that they read, and the resources that these require in turn. The first step of the
    run logs a warning for other resources that are open at launch. Loggers may be configured. Does
    nothing outside a run.

    Raises:
        ConfigError: If the run is rejected.
    """
    try:
        context = dg.OpExecutionContext.get()
    except dg.DagsterInvariantViolationError:  # the step was called as a function, as in tests
        return
    _check_run_config(context.run_config)
    step_context = context.get_step_execution_context()
    step_key = step_context.step.key
    plan = step_context.execution_plan
    job = context.job_def
    resources_by_step = {}
    for step in plan.get_all_steps_in_topo_order():
        resources_by_step[step.key] = get_required_resource_keys_for_step(job, step, plan)
    table_steps = [key for key, names in resources_by_step.items() if RELEASES in names]
    requested = set(resources_by_step[step_key])
    for table_step in table_steps:
        requested |= resources_by_step[table_step]
    required = get_transitive_required_resource_keys(requested, job.resource_defs)
    open_names = _open_resources(job)
    for name in open_names:
        if name in required:
            raise ConfigError(
                f"resource {name!r}: users who launch a run can change its configuration, and"
                f" so read keys or rows. Fix: give the definitions resources={{{name!r}:"
                " privacy_assets.frozen_config(...)}."
            )
    is_first_table_step = step_key in table_steps[:1]
    if open_names and is_first_table_step:
        names = ", ".join(map(repr, open_names))
        context.log.warning(
            f"resources {names}: users who launch a run can change their configuration. No step"
            " of a table requires them. Fix: wrap them in privacy_assets.frozen_config, or pass"
            " them to privacy_assets.resources."
        )


def _check_run_config(run_config: Mapping[str, object]) -> None:
    for section in _SECTIONS:
        if run_config.get(section):
            raise ConfigError(
                f"this run was launched with {section!r} in its configuration, which the gate"
                " does not accept. Fix: remove it, and configure the definitions"
                " (privacy_assets.frozen_config)."
            )


def _open_resources(job: dg.JobDefinition) -> list[str]:
    """Return the names of the resources of a job that run configuration can set, sorted."""
    names = []
    for name, definition in job.resource_defs.items():
        # Dagster's default IO manager has a configuration only in runs in which a step requires it.
        if is_open(definition) or definition is default_job_io_manager:
            names.append(name)
    return sorted(names)
