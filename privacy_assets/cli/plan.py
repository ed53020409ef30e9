"""The command ``privacy-assets plan``: are these people enough, and for what? Asked before anything is trained.

People of --rows (without it: of the demo table) are drawn, the default generator is fitted to all of them, and only
then are they dealt at random into train, holdout and reference. What it made knows nobody's role, so it is harmless,
and the policy judges it, without an embedder, in several draws. Of each limit it is told whether it would be decided,
and what is needed where it would not; and how small a leak this split would see.

exit status:
  0  the harmless release passes in every draw
  1  it does not: there are too few people for this policy
  2  bad input or bad settings

example:
  privacy-assets plan --train 2000 --holdout 1200 --rows people.parquet --subject person
"""

from __future__ import annotations

import argparse

from privacy_assets.cli.command import NO, YES, Commands, say
from privacy_assets.cli.shared import check_out, kinds, parts, workers, write_json


def add_plan(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("plan", _plan, "tell which verdicts a split of this size can give", __doc__)
    command.option("--train", "people that the generator will be trained on", dest="n_train", required=True,
                   metavar="N", type=int)  # fmt: skip
    command.option("--holdout", "people it will not see", dest="n_holdout", required=True, metavar="M", type=int)
    reference = "further unseen people, 0 for none (default: two for five in train, as the default split gives)"
    command.option("--reference", reference, dest="n_reference", metavar="K", type=int)
    table = "a table like the one to publish: a Parquet or CSV file, a folder or a glob; without it the demo table"
    command.option("--rows", table, dest="data", metavar="FILE")
    command.option("--subject", "column that tells people apart; without it each row is one person")
    command.common("--kind", "--drop")
    command.option("--policy", "policy file or name of a shipped one; default: the default limits", metavar="YAML")
    command.option("--draws", "random splits to make (default 3)", metavar="N", type=int, default=3)
    command.option("--seed", "the same seed gives the same plan (default 0)")
    command.common("--ray")
    command.option("--json", "write the results as JSON", metavar="OUT")
    command.common("--quiet")


def _plan(options: argparse.Namespace) -> int:
    from privacy_assets.pipeline.planning import plan

    check_out(options.json)
    with workers(options):
        found = plan(
            options.n_train,
            options.n_holdout,
            options.n_reference,
            rows=options.data,
            subject=options.subject,
            kinds=kinds(options.kind),
            drop=parts("drop", options.drop) or None,
            policy=options.policy,
            draws=options.draws,
            seed=options.seed,
            progress=options.progress,
        )
    say(found.to_text())
    if options.json:
        write_json(options.json, found.to_json())
    return YES if found.passed == len(found.draws) else NO
