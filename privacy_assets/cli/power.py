"""The command ``privacy-assets power``: check before training whether a table has enough people.

People are drawn from --rows (default: the demo table), and the default generator is fitted to all
of them. Only then are they assigned at random to train, holdout and reference. The synthetic table
is independent of these roles, so it does not leak. The policy evaluates it, without an embedder, in
several draws. The output states whether each limit would be decided, with the requirements for a
decision, and the smallest leaks that this split would detect.

The answer depends on the columns. If a table has few, many rows are in the table by chance, and
more people hardly help. With --rows, the output states this and advises more columns. Without
--rows, the answer holds for tables of six columns or more.

exit status:
  0  the non-leaking release passes in every draw
  1  a limit fails by chance in a draw
  2  bad input or bad settings
  3  no limit fails, but one is undecided in a draw: there are too few people for this policy

example:
  privacy-assets power --train 2000 --holdout 1200 --rows people.parquet --subject person
"""

from __future__ import annotations

import argparse

from privacy_assets.cli.options import (
    COLUMNS,
    STATUSES,
    Commands,
    check_out,
    declarations,
    say,
    workers,
    write_json,
)


def add_power(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "power", _power, "estimate the verdicts that a split of this size can give", __doc__
    )
    command.option(
        "--train",
        "number of people in the training table",
        dest="n_train",
        required=True,
        metavar="N",
        type=int,
    )
    command.option(
        "--holdout",
        "number of people in the holdout",
        dest="n_holdout",
        required=True,
        metavar="M",
        type=int,
    )
    reference = (
        "people in the reference, 0: none (default: two fifths of --train, as in the default split)"
    )
    command.option("--reference", reference, dest="n_reference", metavar="K", type=int)
    table = (
        "table like the one to publish: a Parquet or CSV file, a folder or a glob (default: the"
        " demo table, for tables"
        " of six columns or more)"
    )
    command.option("--rows", table, dest="data", metavar="FILE")
    command.option("--subject", "column that identifies people; default: each row is one person")
    command.common("--exact-ids")
    command.common(*COLUMNS)
    command.option(
        "--policy",
        "policy file, or name of a built-in policy (default: the default limits)",
        metavar="YAML",
    )
    command.option(
        "--draws", "number of random splits (default 3)", metavar="N", type=int, default=3
    )
    command.option("--seed", "seed of all random draws (default 0)")
    command.common("--ray")
    command.option("--json", "write the results as JSON", metavar="OUT")
    command.common("--quiet")


def _power(options: argparse.Namespace) -> int:
    from privacy_assets.evaluation.power import power_analysis

    check_out(options.json)
    with workers(options):
        analysis = power_analysis(
            options.n_train,
            options.n_holdout,
            options.n_reference,
            rows=options.data,
            **declarations(options),
            policy=options.policy,
            draws=options.draws,
            seed=options.seed,
            progress=options.progress,
        )
    say(analysis.to_text())
    if options.json:
        write_json(options.json, analysis.to_json())
    return STATUSES[analysis.verdict]
