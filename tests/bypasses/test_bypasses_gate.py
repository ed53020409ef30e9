"""Bypasses through the gate itself: each publishes only if the verification against it is switched
off.

If several verifications prevent a bypass, each is shown to block alone. All tables here hold copies
of the private rows: ``true`` are the copied rows and a holdout, ``decoy`` are rows of other people,
compared with which the copies look harmless. The last tests are the honest ways to a release.
"""

import itertools
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from bypasses import (
    HOLDS,
    REGIONS,
    World,
    accept,
    blocked,
    gated,
    nothing_published,
    reason,
    released,
    with_checks,
)
from standins import FEW_DRAWS, LENIENT, checks, independent, people, slow
from stock import copies

from privacy_assets import PrivacyIOManager, evaluate, read_published
from privacy_assets.cli.main import main
from privacy_assets.gate import publication, publisher, signed_files
from privacy_assets.gate.accepted_settings import AcceptedSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.log import LogState
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.policy import MIN_HOLDERS, Limit, Policy, Verdict
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import real_schema, without_rare_values

SCORED = ("train", "holdout", "synthetic", "evaluation_inputs", "dcr")
ATTESTED = (*SCORED, "attestation")
IDENTICAL, MEMBER = (
    {**limit, "at_most": most} for limit, most in zip(LENIENT["limits"], (0.3, 0.5), strict=True)
)
STRICT = {"policy": {"name": "strict", "limits": [IDENTICAL, MEMBER], **FEW_DRAWS}}
SCORE = {"statistic": "dcr.privacy_score", "min_subjects": 5}
# Half of the rows are copies: one fails, the other tolerates it. A full copy breaks both, else they
# are undecided.
TIGHT, LOOSE = ({"policy": {"name": name, "limits": [{**SCORE, "at_most": most}], **FEW_DRAWS}}
                for name, most in (("tight", 0.3), ("loose", 0.8)))  # fmt: skip
FEWER = {"policy": {"name": "fewer", "limits": [MEMBER], **FEW_DRAWS}}
BEFORE, OTHER = "these rows failed before", "under another policy"
LOCKED, LATEST = "differs from the accepted settings of the table", "is not the latest one"


@pytest.fixture(scope="module", autouse=True)
def _splits(world: World) -> None:
    for seed, split in ((0, "true"), (2, "decoy")):
        people(100, seed).to_parquet(world.root / f"train_{split}.parquet")
        unseen(seed + 1).to_parquet(world.root / f"holdout_{split}.parquet")
    world.private.to_parquet(world.root / "copies.parquet")
    others = unseen(5).drop(columns="pid").iloc[: len(world.private) // 2]
    half = pd.concat([world.private.iloc[len(others) :], others], ignore_index=True)
    half.to_parquet(world.root / "half.parquet")


def unseen(seed: int) -> pd.DataFrame:
    """Rows of other people."""
    return people(100, seed).assign(pid=lambda frame: "h" + frame["pid"])


def external(world: World, table: str, split: str = "true", **more: Any) -> dg.Definitions:
    """The copies as a user's own table, with one of the splits."""
    files = {role: world.root / f"{role}_{split}.parquet" for role in ("train", "holdout")}
    return gated(
        world, table, **{**STRICT, **files, "synthetic": world.root / "copies.parquet", **more}
    )


def of(table: str, assets: tuple[str, ...]) -> list[str]:
    return [f"{table}/{asset}" for asset in assets]


def silent(place: Any, name: str, answer: Any = None) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(place, name, lambda *_, **__: answer)


def as_stated(patch: pytest.MonkeyPatch) -> None:
    """Only the signed verdict counts: the private results are not compared with the policy in
    force.
    """
    check = publication.check_verdict

    def only_stated(policy_verdict: Verdict, earlier_failures: Any) -> None:
        if all(outcome.estimate is None for outcome in policy_verdict.outcomes):
            check(policy_verdict, earlier_failures)

    patch.setattr(publication, "check_verdict", only_stated)


OFF: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "target": silent(signed_files, "check_target"),
    "result": silent(publisher, "check_result"),
    "in_force": silent(publication, "check_in_force"),
    "verdict": silent(publication, "check_verdict"),
    "accepted": silent(AcceptedSettings, "check"),
    "latest": silent(SignedFiles, "check_latest"),
    "memory": silent(LogState, "failures", []),
    "estimates": as_stated,
}


def withstood(
    world: World,
    attack: Callable[[], dg.ExecuteInProcessResult],
    table: str,
    layers: Mapping[str, str],
    partition: str | None = None,
    private: pd.DataFrame | None = None,
    **where: Any,
) -> None:
    """Check that all ``layers`` together and each alone block the attack, and that it publishes
    without them.
    """
    blocked(attack(), table, next(iter(layers.values())), **where)
    for layer, why in layers.items() if len(layers) > 1 else ():
        with pytest.MonkeyPatch.context() as patch:
            for other in layers.keys() - {layer}:
                OFF[other](patch)
            blocked(attack(), table, why, **where)
    nothing_published(world, table, partition)
    with pytest.MonkeyPatch.context() as patch:
        for layer in layers:
            OFF[layer](patch)
        attack()
    (release,) = released(world, table, partition)
    private = world.private if private is None else private
    assert copies(private, pd.read_parquet(release.table)) >= 0.4  # ages of few people are replaced


def coarse(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with ages and incomes that the threshold rule changes in no table."""
    return frame.assign(
        age=(frame["age"] // 10 * 10).clip(20, 80),
        income=frame["income"].round(-3).clip(upper=4000),
    )


def copy_stored(world: World, asset: str, source: ReleaseTarget, target: ReleaseTarget) -> None:
    """Replace the stored value of one table and partition by another's."""
    io = PrivacyIOManager(base=str(world.root / "storage"))
    folders = (
        io.folder(dg.AssetKey([place.table, asset]), place.partition) for place in (source, target)
    )
    shutil.copytree(*folders, dirs_exist_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("partition", [slow(None), "north"])
def test_bypass_21_an_attestation_of_another_table_or_partition(
    world: World, partition: str | None
) -> None:
    """``other`` has the people compared with whom the copies look harmless, and ``target`` the real
    ones.
    """
    other, target = ReleaseTarget("other"), ReleaseTarget("target")
    if partition:
        other, target = ReleaseTarget("parts", "south"), ReleaseTarget("parts", partition)
    for place, split in ((other, "decoy"), (target, "true")):
        for name in (f"train_{split}", f"holdout_{split}", "copies"):
            copy = f"{name.partition('_')[0]}_{place.partition or place.table}.parquet"
            frame = pd.read_parquet(world.root / f"{name}.parquet")
            coarse(frame).to_parquet(world.root / copy)  # so that both releases are the same file

    def table(place: ReleaseTarget) -> dg.Definitions:
        ending = "{partition}" if partition else place.table
        own = {"partitions_def": REGIONS} if partition else {}
        return external(
            world, place.table, ending, synthetic=world.root / f"copies_{ending}.parquet", **own
        )

    judge, defs = table(other), table(target)
    assert world.run(judge, *of(other.table, ATTESTED), partition=other.partition).success
    assert world.run(
        defs, *of(target.table, ("train", "holdout", "synthetic")), partition=partition
    ).success
    io = PrivacyIOManager(base=str(world.root / "storage"))
    stored = [
        io.folder(dg.AssetKey([place.table, "attestation"]), place.partition)
        for place in (other, target)
    ]
    shutil.copytree(*stored, dirs_exist_ok=True)
    layers = {"target": "belongs to another table or partition", "latest": LATEST}
    published = f"{target.table}/published"
    withstood(
        world,
        lambda: world.run(defs, published, partition=partition),
        target.table,
        layers,
        partition,
        coarse(world.private),
    )


@pytest.mark.slow
def test_bypass_22_the_holdout_is_replaced_after_the_check(world: World) -> None:
    """The holdout of the scores was copied into the table as well, so no person appears to be
    disclosed.
    """
    copied, holdout = unseen(5), world.root / "holdout_replaced.parquet"
    copied.to_parquet(holdout)
    mixed = pd.concat([world.private, copied.drop(columns="pid")]).sample(frac=1, random_state=0)
    mixed.to_parquet(world.root / "mixed.parquet")
    defs = external(world, "replaced", holdout=holdout, synthetic=world.root / "mixed.parquet")
    assert all(check.passed for check in checks(world.run(defs, *of("replaced", SCORED))).values())
    # other people with the same values of each column, so that none becomes rare
    rng = np.random.default_rng(0)
    others = {}
    for name in copied.columns[1:]:  # each person has two rows, whose values stay together
        pairs = copied[name].to_numpy().reshape(-1, 2)
        others[name] = pairs[rng.permutation(len(pairs))].ravel()
    copied.assign(**others).astype(copied.dtypes.to_dict()).to_parquet(holdout)
    assert world.run(defs, *of("replaced", ("train", "holdout"))).success
    withstood(
        world,
        lambda: world.run(defs, *of("replaced", ("attestation", "published"))),
        "replaced",
        {"result": "dcr was computed on another holdout table"},
        asset="attestation",
        check="policy_holds",
    )


@pytest.mark.slow
@pytest.mark.parametrize("failed_before", [False, slow(True)])
def test_bypass_23_a_limit_loosened_then_restored(world: World, failed_before: bool) -> None:
    """Under the strict policy these rows were never evaluated (as in bypass 21), or they failed
    before.
    """
    table, layers = (
        f"restored_{failed_before}",
        {"accepted": LOCKED, "in_force": OTHER, "estimates": HOLDS},
    )
    half, assets = {"synthetic": world.root / "half.parquet"}, of(table, ATTESTED)
    strict, loose = external(world, table, **half, **TIGHT), external(world, table, **half, **LOOSE)
    if failed_before:
        assert not checks(world.run(strict, *assets))["attestation", "policy_holds"].passed
        layers["memory"] = BEFORE
        assert LOCKED in reason(world.run(loose, *assets), f"{table}__split")
        accept(world, table)
    assert checks(world.run(loose, *assets))["attestation", "policy_holds"].passed
    withstood(world, lambda: world.run(strict, f"{table}/published"), table, layers)


@pytest.mark.slow
def test_bypass_24_a_limit_deleted_from_the_definitions(world: World) -> None:
    half = {"synthetic": world.root / "half.parquet"}
    real = external(world, "deleted", **half)
    assert not checks(world.run(real, *of("deleted", SCORED)))[
        "dcr", "dcr_identical_excess_proven"
    ].passed
    fewer = external(world, "deleted", **half, **FEWER)
    blocked(
        world.run(fewer, "deleted/attestation"),
        "deleted",
        LOCKED,
        "attestation",
        check="policy_holds",
    )
    accept(world, "deleted")
    without = world.run(fewer, *of("deleted", ("dcr", "attestation")))
    assert set(checks(without)) == {
        ("dcr", "dcr_member_excess_proven"),
        ("attestation", "policy_holds"),
    }
    assert checks(without)["attestation", "policy_holds"].passed
    layers = {"accepted": LOCKED, "in_force": OTHER, "estimates": HOLDS, "memory": BEFORE}
    withstood(world, lambda: world.run(real, "deleted/published"), "deleted", layers)


@pytest.mark.slow
def test_bypass_24_definitions_without_any_checks(world: World) -> None:
    stripped = with_checks(external(world, "stripped"), specs=False)
    result = world.run(stripped)
    assert checks(result) == {}
    blocked(result, "stripped", HOLDS, "attestation", check=None)
    layers = {"verdict": HOLDS, "memory": BEFORE}
    withstood(
        world, lambda: world.run(stripped, "stripped/published"), "stripped", layers, check=None
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seed", *map(slow, ["split", "row_order", "csv"])])
def test_bypass_25_retry_until_it_passes(world: World, form: str) -> None:
    """The same rows, with other settings or in another form.

    A score that was computed but never attested counts, too.
    """
    table, file = f"retried_{form}", world.root / f"retried.{'csv' if form == 'csv' else 'parquet'}"
    first = world.run(external(world, table), *of(table, ATTESTED if form == "split" else SCORED))
    assert not checks(first)["dcr", "dcr_identical_excess_proven"].passed
    rows = world.private.sample(frac=1, random_state=1) if form == "row_order" else world.private
    (rows.to_csv if form == "csv" else rows.to_parquet)(file, index=False)
    again = external(world, table, "decoy", synthetic=file, seed=7 if form == "seed" else 0)

    def retry() -> dg.ExecuteInProcessResult:
        found = checks(world.run(again, *of(table, ATTESTED)))
        assert found["dcr", "dcr_identical_excess_proven"].passed
        return world.run(again, f"{table}/published")

    withstood(world, retry, table, {"memory": BEFORE})


def with_notes(frame: pd.DataFrame, first: str) -> pd.DataFrame:
    """Coarse rows with a note, of which ``x`` and ``y`` are so rare that the threshold rule
    publishes "other".
    """
    notes = ["a", "b"] * (len(frame) // 2)
    notes[:4] = [first, first, "y", "y"]
    return coarse(frame).assign(note=notes)


@pytest.mark.slow
def test_bypass_63_a_cell_is_changed_within_its_group(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The changed table is compared with people with whom the copies look harmless, by the
    command.
    """
    for split, file in itertools.product(("true", "decoy"), ("train", "holdout")):
        rows = pd.read_parquet(world.root / f"{file}_{split}.parquet")
        with_notes(rows, "x").to_parquet(world.root / f"{file}_{split}_notes.parquet")
    copied = pd.read_parquet(world.root / "copies.parquet").drop(columns="pid", errors="ignore")

    def command(split: str, first: str) -> int:
        with_notes(copied, first).to_parquet(world.root / "noted.parquet")
        files = {
            role: str(world.root / f"{role}_{split}_notes.parquet") for role in ("train", "holdout")
        }
        data = {**files, "synthetic": str(world.root / "noted.parquet"), "subject": "pid"}
        table = {
            "name": "noted",
            "data": data,
            **STRICT,
            "evaluation": {"metrics": ["dcr"], "embedder": False},
        }
        (world.root / "noted.yaml").write_text(yaml.safe_dump(table))
        options = [
            "--home",
            str(world.root / "home"),
            "--out",
            str(world.root / "reports"),
            "--device=cpu",
        ]
        return main(["run", str(world.root / "noted.yaml"), *options])

    assert command("true", "x") == 1
    assert HOLDS in capsys.readouterr().out
    for first in ("y", "x"):
        assert command("decoy", first) == 1
        assert BEFORE in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        OFF["memory"](patch)
        assert command("decoy", "y") == 0


def after_the_rule(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame
) -> list[pd.DataFrame]:
    """The tables as a pipeline scores them."""
    real = real_tables(
        {"train": train, "holdout": holdout},
        {"train": "train", "holdout": "holdout"},
        Declared(subject="pid"),
    )
    real = without_rare_values(real, MIN_HOLDERS)
    rules, schema = real["train"].rules, real["train"].schema
    made = Table.of(
        synthetic, real_schema(schema, rules), where="synthetic", synthetic=True
    ).without_rare(rules)
    return [*(table.frame() for table in real.values()), made.with_schema(schema).frame()]


@pytest.mark.slow
def test_bypass_26_draw_new_tables_until_one_passes(world: World) -> None:
    """A table, half copies, meets a limit by a fifth of its interval: a first attempt releases it,
    a second not.
    """
    files = [world.root / f"{name}.parquet" for name in ("train_true", "holdout_true", "half")]
    half = {"synthetic": files[-1]}
    scored = after_the_rule(*map(pd.read_parquet, files))
    found = evaluate(
        *scored,
        subject="pid",
        metrics=["dcr"],
        policy=STRICT["policy"],
        embedder=False,
        device="cpu",
    )
    estimate = found.results["dcr"].estimate("member_excess")
    most = estimate.value + 1.2 * (estimate.high - estimate.value)
    limit = Limit("dcr.member_excess", at_most=most, min_subjects=5)
    lucky = {"policy": Policy((limit,), "lucky", settings=FEW_DRAWS["metrics"])}
    assert world.run(external(world, "drawn_once", **half, **lucky)).success
    (release,) = released(world, "drawn_once")
    # ages of few people are replaced
    assert copies(world.private, pd.read_parquet(release.table)) >= 0.4

    other = world.root / "another_draw.parquet"
    world.private.iloc[:50].to_parquet(other)
    world.run(
        external(world, "drawn_again", synthetic=other, **lucky), *of("drawn_again", ATTESTED)
    )
    result = world.run(external(world, "drawn_again", **half, **lucky))
    assert not checks(result)["dcr", "dcr_member_excess"].passed
    assert not checks(result)["attestation", "policy_holds"].passed
    shown = checks(result)["attestation", "policy_holds"].metadata["dcr.member_excess"].value
    assert "at attempt 2 since the last release" in shown
    blocked(
        world.run(external(world, "drawn_again", **half, **lucky), "drawn_again/published"),
        "drawn_again",
        HOLDS,
    )
    nothing_published(world, "drawn_again")


@pytest.mark.slow
def test_an_honest_table_published_alone_after_a_passing_run_is_the_same_release(
    world: World,
) -> None:
    honest = gated(world, "honest", independent)
    result = world.run(honest)
    assert result.success and all(check.passed for check in checks(result).values())
    (first,) = released(world, "honest")
    before = read_published(world.root / "releases", "honest")
    result = world.run(honest, "honest/published")
    assert (
        result.success
        and checks(result)["published", "released"].metadata["release"].value == first.id
    )
    assert released(world, "honest") == [first]
    pd.testing.assert_frame_equal(read_published(world.root / "releases", "honest"), before)
    assert copies(world.private, before) < 0.5
