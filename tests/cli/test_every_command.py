"""Every command: rejected input gives one message without private values and writes no file; and
its help.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from privacy_assets.cli.main import _commands
from privacy_assets.cli.options import parts, report_text, terminal_columns
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import TRUSTED_VARIABLE
from privacy_assets.infra.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE
from privacy_assets.studies.shadow_membership.audit import AuditConfig
from privacy_assets.tables.schema import option_text
from tests.cli.conftest import Command
from tests.cli.people import SECRET
from tests.report.report_examples import LIMITS, failing, passing

ROLES = [
    "--train=train.parquet",
    "--holdout=holdout.parquet",
    "--synthetic=synthetic.parquet",
    "--no-embedder",
]
PEOPLE = ["--data=people.parquet", "--subject=person"]
COMMANDS = {
    "evaluate": [*ROLES, "--quiet"],
    "generate": [*PEOPLE, "--generator=copy", "--out=made.csv"],
    "power": [
        "--rows=people.parquet",
        "--subject=person",
        "--train=40",
        "--holdout=30",
        "--draws=1",
        "--quiet",
    ],
    "audit": [*PEOPLE, "--generator=baynet", "--shadows=20", "--tests=8", "--size=40", "--quiet"],
    "leak-study": [*PEOPLE, "--out=study", "--no-embedder", "--quiet", "--metrics=dcr"],
}
IN_EVERY_COMMAND = [
    ("--seed=-1", "seed"),
    (
        "--subject=persn",
        "column 'persn': the column configured as the subject does not exist. Fix: set subject",
    ),
    ('--drop="town', "--drop: a double quote is not closed"),
    ("--drop=town,twn", "there is no column 'twn'. Did you mean 'town'?"),
    ("--kind=town=categorical,age", "COLUMN=KIND"),
    ("--drop=twon", "Did you mean 'town'"),
    ("--kind=town", "COLUMN=KIND"),
    ("--kind=town=txt", "unknown kind 'txt'"),
    ("--kind=twon=categorical", "Did you mean 'town'"),
    ("--kind=town=numeric", "column 'town', row"),
]
OF_ONE_COMMAND = [
    ("evaluate", "--train=absent.csv", "absent.csv: no such file"),
    ("evaluate", "--metrics=dcrr", "Did you mean 'dcr'"),
    ("evaluate", "--policy=absent.yaml", "absent.yaml"),
    (
        "evaluate",
        "--policy=smal",
        "policy 'smal': it is neither shipped nor a file. Did you mean 'small'?",
    ),
    ("evaluate", "--json=/no/such/folder/x.json", "folder does not exist"),
    ("evaluate", "--device=tpu", "tpu"),
    ("evaluate", "--set=degree=2", "requires --generator"),
    ("evaluate", "--generator=baynet", "add shadow_membership"),
    ("evaluate", "--generator=baynt", "Did you mean 'baynet'"),
    ("evaluate", "--metrics=shadow_membership", "generator: baynet"),
    (
        "evaluate",
        "--metrics=shadow_membership --generator=baynet --set=degre=2",
        "Did you mean 'degree'",
    ),
    ("evaluate", "--new-values=town", "COLUMN=REASON"),
    ("evaluate", "--new-values=town=", "no reason"),
    ("evaluate", "--allowed-values=town=a --allowed-values=town=b", "once for each column"),
    ("evaluate", "--train=trian.parquet", "Did you mean 'train.parquet'?"),
    ("evaluate", "--train=nowhere/train.csv", "there is no folder nowhere"),
    ("generate", "--data=absent.csv", "absent.csv: no such file"),
    ("generate", "--subject=persom", "Did you mean 'person'?"),
    ("generate", "--from-model=m", "not allowed with argument --data"),
    ("generate", "--generator=copyy", "Did you mean 'copy'"),
    ("generate", "--generator=nowhere:made", "cannot be imported"),
    ("generate", "--generator=command", "needs the settings command"),
    ("generate", "--rows=0", "must be at least 1"),
    ("generate", "--rows=many", "invalid int value"),
    ("generate", "--set=noise", "KEY=VALUE"),
    ("generate", "--json", "--json requires --list"),
    ("generate", "--outt=s.csv", "Did you mean '--out'?"),
    ("generate", "--list", "not allowed with argument --data"),
    (
        "generate",
        "--generator=noisy_copy --set=noise=much",
        "noise: Input should be a valid number",
    ),
    ("generate", "--new-values=town=anew", "copies the values of real rows"),
    ("generate", "--subject=town", "column 'town', row 2: the subject is missing"),
    ("generate", "--device=tpu", "tpu"),
    ("generate", "--out=s.txt", "suffix"),
    ("generate", "--out=/no/such/folder/s.csv", "folder does not exist"),
    ("generate", "--out=folder.csv", "this is a folder"),
    ("generate", "--model=/no/such/folder/m", "cannot be written"),
    ("power", "--rows=absent.csv", "absent.csv: no such file"),
    ("power", "--train=0", "train must be an integer of at least 1"),
    ("power", "--holdout=-3", "holdout must be an integer of at least 1"),
    ("power", "--reference=-1", "reference must be an integer of at least 0"),
    ("power", "--draws=0", "draws must be an integer of at least 1"),
    ("power", "--train=1.5", "invalid int value"),
    (
        "power",
        "--train=100",
        "there are 120 people, and train and holdout and reference need 100 + 30 + 40 = 170",
    ),
    ("power", "--policy=absent.yaml", "absent.yaml"),
    ("power", "--json=/no/such/folder/x.json", "folder does not exist"),
    ("audit", "--data=absent.csv", "absent.csv: no such file"),
    ("audit", "--generator=baynett", "Did you mean 'baynet'"),
    ("audit", "--set=degrees=2", "Did you mean 'degree'"),
    ("audit", "--set=degree=[1", "cannot be read as YAML"),
    ("audit", "--size=1000", "the auxiliary part has 160 rows"),
    ("audit", "--size=many", "invalid int value"),
    ("audit", "--shadows=5", "multiple of 2"),
    ("audit", "--attack=query", "'queries' or 'attention'"),
    ("audit", "--n-neighbors=0", "n_neighbors"),
    ("audit", "--aux-rows=239 --test-rows=9", "exceed its 240 rows"),
    ("audit", "--json=/", "this is a folder"),
    ("audit", "--max-targets=2 --ids=1", "cannot be combined with --max-targets"),
    ("audit", "--ids=", "row positions"),
    ("audit", "--ids=1,1", "row positions"),
    ("audit", "--ids=1,x", "row positions"),
    ("audit", "--ids=300", "row"),
    ("leak-study", "--data=absent.csv", "absent.csv: no such file"),
    ("leak-study", "--fractions=0,1.5", "from 0 to 1"),
    ("leak-study", "--fractions=a", "expected numbers separated by commas"),
    ("leak-study", "--noise=,", "expected numbers separated by commas"),
    ("leak-study", "--noise=0,2", "noise: p: Input should be less than or equal to 1"),
    ("leak-study", "--overfit=1 --fractions=0", "cannot be combined with --fractions or --noise"),
    ("leak-study", "--overfit=1 --generator=ctgan", "cannot over-fit"),
    ("leak-study", "--overfit=3", "overfit"),
    ("leak-study", "--generator=rvae", "only with --overfit"),
    ("leak-study", "--people=2", "--people at least 3"),
    ("leak-study", "--people=30", "a third of the people has"),
    ("leak-study", "--metrics=dcrr", "Did you mean 'dcr'"),
    ("leak-study", "--out=people.parquet", "this is a file"),
]
CASES = [
    (name, option, told) for name in COMMANDS for option, told in IN_EVERY_COMMAND
] + OF_ONE_COMMAND


@pytest.mark.parametrize(
    ("name", "options", "told"), CASES, ids=[" ".join(case[:2]) for case in CASES]
)
def test_bad_input_exits_with_2_and_writes_nothing(
    name: str,
    options: str,
    told: str,
    command: Command,
    tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    for file in tables.iterdir():
        (tmp_path / file.name).symlink_to(file)
    before = sorted(tmp_path.rglob("*"))
    said = command(name, *COMMANDS[name], *options.split(), status=2)
    assert told in said.err and said.out == ""
    assert SECRET not in said.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_reads_a_private_table_names_open_columns(
    name: str, command: Command, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in tables.iterdir():
        frame = pd.read_parquet(file)
        frame.assign(claim=[f"CLAIM-{file.stem}-{row}" for row in range(len(frame))]).to_parquet(
            file.name
        )
    said = command(name, *COMMANDS[name], status=2)
    assert (
        "'claim' (at least half of the rows have a value of one person only)" in said.err
        and "drop: [claim]" in said.err
    )
    assert "CLAIM-" not in said.err and not os.path.exists("made.csv")


# --- help
# --------------------------------------------------------------------------------------------------

HELP = {  # content that the help of each command must have, besides its exit statuses
    "power": ["independent of these roles", "two fifths of --train"],
    "run": [
        RELEASES_VARIABLE,
        PRIVATE_VARIABLE,
        TRUSTED_VARIABLE,
        "example of a TABLE",
        "--rehearse --try",
    ],
    "audit": ["contains private counts (mode 0600)", "row positions"],
    "leak-study": ["points.jsonl", "Do not share any of the files"],
    "generate": [
        "is not judged",
        "holdout",
        "`privacy-assets evaluate`",
        "as private as the table",
    ],
    "verify": ["DAGSTER_HOME, else ./.dagster_home", RELEASES_VARIABLE, TRUSTED_VARIABLE],
    "releases": [RELEASES_VARIABLE, PRIVATE_VARIABLE, TRUSTED_VARIABLE],
    "log": [RELEASES_VARIABLE, PRIVATE_VARIABLE, TRUSTED_VARIABLE],
    "prune": [RELEASES_VARIABLE, PRIVATE_VARIABLE, TRUSTED_VARIABLE],
    "keys": [RELEASES_VARIABLE, PRIVATE_VARIABLE, TRUSTED_VARIABLE, "PRIVACY_ASSETS_SIGNING_KEY"],
    "prepare": [RELEASES_VARIABLE, PRIVATE_VARIABLE, "If-None-Match"],
}
STATUSES = dict.fromkeys(("audit", "leak-study", "generate", "prepare"), ["0", "2"])
STATUSES |= dict.fromkeys(("power", "run", "verify"), ["0", "1", "2", "3"])  # they have a verdict


def test_the_version_and_a_command_that_does_not_exist(command: Command) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert command("--version").out == f"privacy-assets {project['version']}\n"
    assert (
        "unknown command 'evalute'. Did you mean 'evaluate'?"
        in command("evalute", "--train=x", status=2).err
    )
    assert (
        "unknown command 'generators'. Did you mean 'generate'?"
        in command("generators", status=2).err
    )
    assert "COMMAND" in command("--json", status=2).err
    assert "--out is missing" in command("generate", f"--data={__file__}", status=2).err


def test_every_help_has_examples_that_can_be_parsed(command: Command) -> None:
    commands = _commands()
    for name in commands.parsers.choices:
        text = " ".join(command(name, "--help").out.split())
        shown = re.findall(
            r"privacy-assets (.+?)(?= privacy-assets | > | [a-z]+:|$)",
            re.split("[Ee]xamples?: ", text, maxsplit=1)[1],
        )
        assert shown and all(shlex.split(words)[0] == name for words in shown)
        for words in shown:
            commands.parse(shlex.split(words))


@pytest.mark.parametrize("name", HELP)
def test_help_tells_exit_statuses_and_defaults(name: str, command: Command) -> None:
    text = command(name, "--help").out
    statuses = re.findall(r"^  (\d)  \w", text.partition("exit status:\n")[2], re.MULTILINE)
    assert statuses == STATUSES.get(name, ["0", "1", "2"])
    assert [words for words in HELP[name] if words not in " ".join(text.split())] == []


def test_the_defaults_that_the_help_of_audit_tells_are_those_of_its_plan(command: Command) -> None:
    text = " ".join(command("audit", "--help").out.split())
    for name in ("max_targets", "shadows", "tests", "size", "n_neighbors"):
        assert f"(default {getattr(AuditConfig, name)})" in text
    for name in ("select", "distance", "attack", "sampling"):
        assert f"{getattr(AuditConfig, name)} (default)" in text


def test_every_command_is_listed_with_the_statuses(command: Command, tables: Path) -> None:
    text = command("--help").out
    assert re.findall(r"^    ([a-z-]+)\b", text, re.MULTILINE) == [
        "evaluate", "power", "run", "audit", "leak-study", "generate", "verify", "releases",
        "accept", "log", "prune", "inspect", "keys", "prepare", "demo", "policy",
    ]  # fmt: skip
    told = (
        "0 all limits hold, 1 a limit fails, 2 invalid input, 3 no limit fails, but one"
        " is undecided"
    )
    assert told in " ".join(text.split())
    assert "--train" in command("evaluate", status=2).err


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b, c"],
        [" a", "b "],
        ['"q"', "x"],
        ['5" disk', 'a,"b"'],
        ["it's"],
        ["two\nlines"],
        ["a"],
    ],
)
def test_the_option_that_a_message_shows_names_the_same_columns(names: list[str]) -> None:
    assert parts("drop", shlex.split(option_text(names))) == names


def test_a_quote_that_is_left_open_does_not_go_on_in_the_next_option() -> None:
    with pytest.raises(ConfigError, match="a double quote is not closed"):
        parts("drop", ['"a', 'b"'])


def test_a_misspelt_option_is_named_in_one_line_before_missing_ones(command: Command) -> None:
    told = command("evaluate", "--trian", "a.csv", status=2).err
    assert told.count("\n") == 1 and "unknown option '--trian'. Did you mean '--train'?" in told
    told = command("evaluate", "--train=a.csv", status=2).err
    assert (
        told.count("\n") == 1
        and "required: --holdout, --synthetic. See privacy-assets evaluate --help." in told
    )
    assert (
        "unknown option '--hme'. Did you mean '--home'?"
        in command("run", "a.yaml", "--hme=b", status=2).err
    )


def test_without_arguments_the_help_is_printed(command: Command) -> None:
    assert command().out.startswith("usage: privacy-assets")


class Terminal(io.StringIO):
    """Output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "used"), [(40, 60), (72, 72), (300, 100)])
def test_a_terminal_gets_its_width_and_a_colored_verdict(
    columns: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal_columns() == used
    quiet = argparse.Namespace(verbose=False)
    for made, color in ((passing(), "32"), (failing(), "31")):
        label = made.label.upper()
        assert report_text(made, quiet).startswith(f"\033[1;{color}m{label}\033[0m  patients\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert report_text(passing(), quiet).startswith("PASS  patients\n")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal_columns() == 80


def test_the_console_lists_limits_that_pass_on_request() -> None:
    short = report_text(passing(), argparse.Namespace(verbose=False))
    assert "6 limits hold (-v lists them)." in short and LIMITS[0].statistic not in short
    assert LIMITS[0].statistic in report_text(passing(), argparse.Namespace(verbose=True))
