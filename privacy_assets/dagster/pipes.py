"""Programs inside an asset's step as external processes of Dagster Pipes.

The engine starts, watches and ends them (``generators.programs``), as no client of Pipes does: with a scrubbed
environment, a time limit, and everything killed that they leave behind. Here they are given the context of the step.
Of their messages the engine keeps numbers under known names; nothing else reaches Dagster: not what they log or print,
not the asset checks that they report (whoever made the rows does not judge them), and not their exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
from dagster_pipes import (
    PIPES_PROTOCOL_VERSION,
    PIPES_PROTOCOL_VERSION_FIELD,
    PipesDefaultMessageWriter,
    PipesMessage,
    PipesParams,
)

from privacy_assets.compute.progress import Lines
from privacy_assets.dagster.metadata import training_metadata
from privacy_assets.storage.work import WorkFolder, sweep

if TYPE_CHECKING:
    from privacy_assets.generators.reports import Reports


class NumbersReader(dg.PipesMessageReader):
    """Leaves the messages to ``reports``, which the engine reads; Dagster hears that Pipes was opened and closed."""

    def __init__(self, reports: Reports) -> None:
        self.reports = reports

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[PipesParams]:
        """Parameters for the program's writer of messages."""
        try:
            yield {
                PipesDefaultMessageWriter.FILE_PATH_KEY: str(self.reports.path),
                PipesDefaultMessageWriter.INCLUDE_STDIO_IN_MESSAGES_KEY: False,
            }
        finally:
            for method in ("opened", "closed"):
                if method in self.reports.methods:
                    message = {PIPES_PROTOCOL_VERSION_FIELD: PIPES_PROTOCOL_VERSION, "method": method}
                    handler.handle_message(cast("PipesMessage", {**message, "params": {"extras": {}}}))

    def no_messages_debug_text(self) -> str:
        """What Dagster adds to its warning."""
        return "A program that does not use dagster_pipes sends no messages, and need not."


@contextmanager
def piped(context: dg.AssetExecutionContext, generator: Any) -> Iterator[dict[str, Any]]:
    """Run in this block what a program does for ``generator``; the mapping then holds the metadata that it reported.

    It stays empty where no program is involved. What killed steps left of their private work goes first.
    """
    from privacy_assets.generators.programs import ProgramGenerator
    from privacy_assets.generators.reports import Channel, Reports, use_channel

    sweep()
    metadata: dict[str, Any] = {}
    if not isinstance(generator, ProgramGenerator):
        yield metadata
        return
    with WorkFolder() as folder, closing(Reports(folder / "messages", Lines(context.log.info))) as reports:
        reader = NumbersReader(reports)
        with (
            dg.open_pipes_session(context, dg.PipesTempFileContextInjector(), reader) as session,
            use_channel(Channel(session.get_bootstrap_env_vars(), reports)),
        ):
            yield metadata
    metadata.update(training_metadata(reports.rows))
    metadata.update({f"reported {name.replace('_', ' ')}": number for name, number in reports.metadata.items()})
