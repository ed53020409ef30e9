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
_FORKED = {"start_method": {"forkserver": {"preload_modules": ["privacy_assets.dagster.preload"]}}}
if sys.platform != "linux":  # libraries do not support forks on macOS
    _FORKED = {}


@overload
def frozen_config(
    given: dg.ExecutorDefinition, settings: Mapping[str, Any] | None = None
) -> dg.ExecutorDefinition: ...


@overload
def frozen_config(
    given: dg.ConfigurableResource[Any]
    | dg.ConfigurableIOManagerFactory[Any]
    | dg.ResourceDefinition,
    settings: Mapping[str, Any] | None = None,
) -> dg.ResourceDefinition: ...


def frozen_config(given: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """Fix the configuration of a resource, IO manager or executor, so that run configuration cannot
    override it.

    Otherwise a user who launches a run could point an IO manager to another location, from which it
    would unpickle, have an environment variable displayed as a path, or make an executor import
    another module. A table does not run if run configuration can override a resource that its steps
    require.

    Args:
        given: An instance (``frozen_config(dg.FilesystemIOManager(base_dir="/srv/data"))``) or a
            definition (``frozen_config(dg.multiprocess_executor, {"max_concurrent": 2})``).
        settings: Configuration of a definition. Ignored for an instance. If a required value is
            missing, no run starts. On Linux the default ``start_method`` of
            ``dg.multiprocess_executor`` is a fork server that has imported the libraries of the
            steps, instead of "spawn", with which every step imports them.

    Returns:
        A definition without configuration schema.
    """
    definition, values = (
        given,
        {**(_FORKED if given is dg.multiprocess_executor else {}), **(settings or {})},
    )
    if hasattr(given, "get_resource_definition"):
        definition, values = given.get_resource_definition(), given._resolved_config_dict
    if not is_open(definition):
        return definition
    return definition.configured(lambda _: values, config_schema={})


def is_open(definition: Any) -> bool:
    """Return True if run configuration can set values of ``definition``.

    A resource without a declared schema receives any run configuration, but without resolved
    environment variables. :func:`check_launch` rejects such runs.
    """
    if not definition.has_config_field:
        return False
    taken = definition.config_field.config_type
    return not (
        taken.kind is ConfigTypeKind.ANY
        or (taken.kind is ConfigTypeKind.STRICT_SHAPE and not taken.fields)
    )


class FixedConfig:
    """Mixin for resource classes whose configuration is fixed in code; see :func:`frozen_config`.

    Otherwise any user of the UI could select another private folder or key by run configuration, or
    display any environment variable as a path.

    Raises:
        ConfigError: If a value is a URL with credentials, because the UI displays values.
    """

    def __init__(self, **given: Any) -> None:
        for value in given.values():
            if isinstance(value, str):
                check_no_credentials(value)
        super().__init__(**given)

    @cached_property
    def _fixed(self) -> Any:
        values = self._resolved_config_dict  # type: ignore[attr-defined]
        return super().get_resource_definition().configured(lambda _: values, config_schema={})  # type: ignore[misc]

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
    for section in _SECTIONS:
        if context.run_config.get(section):
            raise ConfigError(
                f"this run was launched with {section!r} in its configuration, which the gate"
                " does not accept. Fix:"
                " remove it, and configure the definitions (privacy_assets.frozen_config)."
            )
    step, job = context.get_step_execution_context(), context.job_def
    needed = {
        one.key: get_required_resource_keys_for_step(job, one, step.execution_plan)
        for one in step.execution_plan.get_all_steps_in_topo_order()
    }
    of_tables = [key for key, names in needed.items() if RELEASES in names]
    named = frozenset().union(needed[step.step.key], *(needed[key] for key in of_tables))
    required = get_transitive_required_resource_keys(named, job.resource_defs)
    # Dagster's default IO manager has a configuration only in runs in which a step requires it.
    opened = sorted(
        name
        for name, one in job.resource_defs.items()
        if is_open(one) or one is default_job_io_manager
    )
    for name in opened:
        if name in required:
            raise ConfigError(
                f"resource {name!r}: users who launch a run can change its configuration, and"
                " so read keys or rows."
                f" Fix: give the definitions resources={{{name!r}:"
                " privacy_assets.frozen_config(...)}."
            )
    if opened and step.step.key in of_tables[:1]:
        names = ", ".join(map(repr, opened))
        context.log.warning(
            f"resources {names}: users who launch a run can change their configuration. No step"
            " of a table requires"
            " them. Fix: wrap them in privacy_assets.frozen_config, or pass them to"
            " privacy_assets.resources."
        )
