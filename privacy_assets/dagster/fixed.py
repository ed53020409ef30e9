"""What a run may be told by whoever launches it: what to run. Values of resources and executors come from the code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, overload

import dagster as dg
from dagster._config import ConfigTypeKind
from dagster._core.definitions.job_definition import default_job_io_manager
from dagster._core.execution.context.compute import current_execution_context

from privacy_assets.errors import ConfigError

DEFAULT = "io_manager"  # what Dagster gives every asset that names no IO manager of its own
_SECTIONS = ("resources", "execution")


@overload
def fixed(given: dg.ExecutorDefinition, settings: Mapping[str, Any] | None = None) -> dg.ExecutorDefinition: ...


@overload
def fixed(
    given: dg.ConfigurableResource[Any] | dg.ConfigurableIOManager | dg.ResourceDefinition,
    settings: Mapping[str, Any] | None = None,
) -> dg.ResourceDefinition: ...


def fixed(given: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """A resource, IO manager or executor whose values come from the code alone: what is launched can change none.

    Dagster takes the values of every other one from whoever launches a run too: an IO manager then unpickles what lies
    behind another address, shows an environment variable as its path, or an executor imports another module.

    ``given`` is an object with its values (``fixed(dg.FilesystemIOManager(base_dir="/srv/data"))``), or a definition
    with its ``settings`` (``fixed(dg.multiprocess_executor, {"max_concurrent": 2})``); with a value that is missing, no
    run starts.
    """
    definition, values = given, dict(settings or {})
    if hasattr(given, "get_resource_definition"):
        definition, values = given.get_resource_definition(), given._resolved_config_dict
    if not is_open(definition):
        return definition
    return definition.configured(lambda _: values, config_schema={})


def is_open(definition: Any) -> bool:
    """Whether whoever launches a run can give ``definition`` values.

    A resource that declares nothing is called with what it is given all the same, but not with what stands in the
    environment; and a run that gives it anything is refused.
    """
    if not definition.has_config_field:
        return False
    taken = definition.config_field.config_type
    return not (taken.kind is ConfigTypeKind.ANY or (taken.kind is ConfigTypeKind.STRICT_SHAPE and not taken.fields))


class FixedConfig:
    """The values of a resource come from the code alone (:func:`fixed`), for every instance of a class.

    Run configuration, which everybody with the UI can write, could otherwise name another private folder or key, or
    have any environment variable shown as a path.
    """

    @cached_property
    def _fixed(self) -> Any:
        values = self._resolved_config_dict  # type: ignore[attr-defined]
        return super().get_resource_definition().configured(lambda _: values, config_schema={})  # type: ignore[misc]

    def get_resource_definition(self) -> Any:
        """The definition with its configuration filled in; one object, as Dagster compares them."""
        return self._fixed


def check_launch() -> None:
    """ConfigError when the run of this step was given values at launch, or could have been: nothing outside a run.

    What counts are the resources of all that was selected to run together, and the default IO manager, which every
    asset beside the table may store and load pickles with. The loggers of a run remain free.
    """
    context = current_execution_context.get()
    if context is None:  # a step that is called as a function, by a test
        return
    step = context.op_execution_context
    for section in _SECTIONS:
        if step.run_config.get(section):
            raise ConfigError(
                f"this run was launched with {section!r} in its configuration; a run of the gate takes none. Fix: leave"
                " it out, and let the definitions say what they need (privacy_assets.fixed)."
            )
    job = step.job_def
    for name in sorted({*job.required_resource_keys, DEFAULT} & set(job.resource_defs)):
        # Dagster's own one stands here without its settings as long as nothing in this run asks for it.
        if is_open(job.resource_defs[name]) or job.resource_defs[name] is default_job_io_manager:
            raise ConfigError(
                f"resource {name!r}: whoever launches a run can give it other values, and read keys or rows with them."
                f" Fix: give the definitions resources={{{name!r}: privacy_assets.fixed(...)}}."
            )
