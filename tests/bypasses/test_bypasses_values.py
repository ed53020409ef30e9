"""Bypasses through single cells: private rows in a category, and personal identifiers in a
published column.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from bypasses import HOLDS, World, blocked, gated, nothing_published, reason, released
from standins import checks, independent, resources, table_of

from privacy_assets import read_published
from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError
from privacy_assets.gate.verification import verify_file

VALUES: dict[str, Any] = {"metrics": ["value_disclosure"], "policy": None, "embedder": False}
WHY = {
    "claim_id": "numbered again by the script",
    "note": "templates without a look at the real ones",
}
N = 1500


EACH = {"each_row": True}


def claims(n: int = N, seed: int = 0, what: str = "CLM") -> pd.DataFrame:
    """Claims with a unique id and a free text, besides columns that may be published."""
    rng = np.random.default_rng(seed)
    places, parts = ["stairs", "ice", "street", "garden"], ["knee", "hand", "back", "foot"]
    return pd.DataFrame(
        {
            "claim_id": [f"{what}-{number:08d}" for number in rng.choice(10**8, n, replace=False)],
            "note": [
                f"fell on the {rng.choice(places)} and hurt the {rng.choice(parts)}, file"
                f" {what} {rng.integers(10**9)}"
                for _ in range(n)
            ],
            "age": rng.integers(18, 90, n),
            "amount": rng.gamma(2, 1000, n).round(2),
            "region": rng.choice(["north", "south"], n),
        }
    )


def invent(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """New ids and notes, and all other columns drawn independently."""
    return independent(train, rows, seed).assign(
        **claims(rows, seed + 77, "NEW")[["claim_id", "note"]]
    )


def steal(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Invent claims, but copy one in twenty from a training row."""
    made, few = invent(train, rows, seed), rows // 20
    made.loc[: few - 1, "claim_id"] = train["claim_id"].to_numpy()[:few]
    return made


def external(
    world: World, name: str, make: Callable[[pd.DataFrame], pd.DataFrame], **more: Any
) -> dg.Definitions:
    """A table that a user made outside from half of the rows."""
    rows = claims()
    parts = {"train": rows.iloc[: N // 2], "holdout": rows.iloc[N // 2 :]}
    frames = {role: part.reset_index(drop=True) for role, part in parts.items()}
    for role, frame in {**frames, "synthetic": make(frames["train"])}.items():
        frame.to_parquet(world.root / f"{name}_{role}.parquet")
    paths = {
        role: world.root / f"{name}_{role}.parquet" for role in ("train", "holdout", "synthetic")
    }
    return gated(world, name, subject=EACH, **{**VALUES, **paths, **more})


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, N // 2])
def test_bypass_41_private_rows_in_a_category(world: World, rows: int) -> None:
    def smuggle(train: pd.DataFrame) -> pd.DataFrame:
        told = [json.dumps(row) for row in train.to_dict("records")]
        return independent(train, len(train), 0).assign(region=told).iloc[:rows]

    name, left = f"smuggled_{rows}", ["claim_id", "note"]
    defs = external(world, name, smuggle, drop=left)
    result = world.run(defs)
    assert not result.success and "categories that no real table has" in reason(
        result, f"smuggled_{rows}__sample"
    )
    nothing_published(world, f"smuggled_{rows}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [steal, lambda train, rows, seed: invent(train, rows, 0).assign(note=train["note"])]
)
def test_bypass_42_real_identifiers_in_a_generated_column(world: World, make: Any) -> None:
    name = "stolen" if make is steal else "stolen_notes"
    defs = external(world, name, lambda train: make(train, len(train), 0), new_values=WHY)
    result = world.run(defs)
    assert not result.success and not checks(result)["attestation", "policy_holds"].passed
    blocked(world.run(defs, f"{name}/published"), name, HOLDS)
    assert not checks(result)["value_disclosure", "value_disclosure_generated_excess_proven"].passed
    nothing_published(world, name)


@pytest.mark.slow
def test_invented_identifiers_of_a_brought_table_are_published_and_the_reason_is_signed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def inventing(train: pd.DataFrame) -> pd.DataFrame:
        return invent(train, len(train), 0)

    defs = external(world, "invented", inventing, new_values=WHY)
    assert world.run(defs).success
    (release,) = released(world, "invented")
    trusted = defs.resources["releases"].gate().key.trusted
    found = verify_file(release.table, trusted, world.root / "releases")
    assert found.passed and found.declared["new_values"] == WHY
    assert main(["verify", str(release.table), "--releases", str(world.root / "releases")]) == 0
    assert WHY["claim_id"] in capsys.readouterr().out
    changed = external(world, "invented", inventing, new_values={**WHY, "note": "other"})
    blocked(
        world.run(changed, "invented/published"),
        "invented",
        f"new_values 'note': {WHY['note']!r} -> 'other'",
    )


# --- --- a first attempt: three lines of YAML, and a CSV file ---
# -----------------------------------------------------


def newcomer(folder: Path, **more: Any) -> dg.Definitions:
    """The three lines, with the quick settings of tests."""
    (folder / "claims.csv").exists() or claims().to_csv(folder / "claims.csv", index=False)
    table = table_of("claims", source=folder / "claims.csv", subject=EACH, **{**VALUES, **more})
    return dg.Definitions.merge(table, resources(folder))


@pytest.mark.slow
def test_the_first_run_names_both_columns_and_after_drop_it_publishes(world: World) -> None:
    result = world.run(newcomer(world.root))
    told = reason(result, "claims__read")
    assert (
        "'claim_id' (at least half of the rows have a value of one person only), 'note' (free text)"
        in told
    )
    assert "drop: [claim_id, note]" in told and "CLM-" not in told
    nothing_published(world, "claims")
    result = world.run(newcomer(world.root, drop=["claim_id", "note"]))
    assert result.success
    assert checks(result)["synthetic", "contract"].passed
    assert list(read_published(world.root / "releases", "claims").columns) == [
        "age",
        "amount",
        "region",
    ]


@pytest.mark.slow
def test_a_function_that_invents_them_is_published(world: World) -> None:
    claims().to_parquet(world.root / "claims.parquet")
    own = {"source": world.root / "claims.parquet", "generator": invent, "new_values": WHY}
    assert world.run(gated(world, "made", subject=EACH, **own, **VALUES)).success
    assert read_published(world.root / "releases", "made")["claim_id"].str.startswith("NEW").all()


@pytest.mark.slow
def test_great_expectations_and_the_limit_see_the_same(world: World) -> None:
    def move(train: pd.DataFrame) -> pd.DataFrame:
        return independent(train, len(train), 0).assign(region="east")

    external(world, "east", move, drop=["claim_id", "note"])  # writes the files
    roles = ("train", "holdout", "synthetic")
    files = {role: world.root / f"east_{role}.parquet" for role in roles}
    for domains in ({}, {"region": ["east"]}):
        own = {
            **VALUES,
            "subject": EACH,
            "drop": ["claim_id", "note"],
            "allowed_values": domains,
            **files,
        }
        result = world.run(dg.Definitions.merge(table_of("east", **own), resources(world.root)))
        if domains:
            assert checks(result)["synthetic", "contract"].passed
            assert checks(result)["value_disclosure", "value_disclosure_foreign_cells"].passed
        else:
            assert "categories that no real table has" in reason(result, "east__sample")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"new_values": WHY}, "synthpop copies real ones"),
        ({"new_values": {"note": ""}}, "'note' has no reason"),
        ({"allowed_values": {"pid": ["a"]}, "subject": "pid"}, "is the subject"),
        (
            {"new_values": WHY, "generator": invent, "metrics": ["shadow_membership"]},
            "cannot attack",
        ),
        (
            {
                "drop": ["region"],
                "partitions_def": dg.StaticPartitionsDefinition(["a"]),
                "partition_column": "region",
            },
            "partition_column cannot be left out",
        ),
    ],
)
def test_what_cannot_be_declared_is_told_at_definition_time(
    more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"table t.*{told}"):
        table_of("t", source="people.parquet", **more)


def test_a_column_that_is_not_there_is_told_where_the_table_is_read(world: World) -> None:
    told = reason(world.run(newcomer(world.root, drop=["claimid", "note"])), "claims__read")
    assert "there is no column 'claimid'. Did you mean 'claim_id'?" in told


def test_bypass_50_a_policy_that_says_two_things(tmp_path: Path) -> None:
    """A reader sees 0.01; the parser, and so the gate, would use the value further down."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        "name: strict\nlimits:\n- statistic: singling_out.risk\n  at_most: 0.01\n  at_most: 1.0\n"
    )
    limits = yaml.safe_load(path.read_text())["limits"]
    assert limits == [{"statistic": "singling_out.risk", "at_most": 1.0}]
    with pytest.raises(
        ConfigError, match=r"policy\.yaml, line 5: the key 'at_most' occurs twice, first in line 4"
    ):
        table_of("loose", source="demo", subject="person", policy=path)
    path.write_text("name: default\nlimits:\n- {statistic: singling_out.risk, at_most: 1.0e+300}\n")
    with pytest.raises(ConfigError, match="singling_out.risk"):
        table_of("loose", source="demo", subject="person", policy=path)
