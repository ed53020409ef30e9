"""Routes through the gate itself: each publishes once the verification against it is switched off, and only then.

Where several verifications stand in the way, each is shown to refuse alone. All tables here hold copies of the private
rows: ``true`` are the rows that they were copied from and a holdout, ``decoy`` are other people's, under which the same
copies look harmless. The last tests are the honest ways to a release.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from routes import HOLDS, REGIONS, World, copies, gated, nothing_published, refused, released, with_checks
from standins import LENIENT, checks, independent, people, slow

from privacy_assets import PrivacyIOManager, evaluate, read_published
from privacy_assets.gate import attestation as judged
from privacy_assets.gate import releases
from privacy_assets.gate.failures import Failures
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.statements import Place
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit

SCORED = ("train", "holdout", "synthetic", "encoded", "dcr")
ATTESTED = (*SCORED, "attestation")
IDENTICAL, MEMBER = ({**limit, "at_most": most} for limit, most in zip(LENIENT["limits"], (0.3, 1.0), strict=True))
STRICT = {"policy": {"name": "strict", "limits": [IDENTICAL, MEMBER]}}
LOOSE = {"policy": {"name": "loose", "limits": [{**IDENTICAL, "at_most": 1.0}, MEMBER]}}
FEWER = {"policy": {"name": "fewer", "limits": [MEMBER]}}
BEFORE, OTHER = "these rows failed before", "under another policy"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World.open(tmp_path_factory.mktemp("world")) as opened:
        for seed, split in ((0, "true"), (2, "decoy")):
            people(100, seed).to_parquet(opened.root / f"train_{split}.parquet")
            unseen(seed + 1).to_parquet(opened.root / f"holdout_{split}.parquet")
        opened.private.to_parquet(opened.root / "copies.parquet")
        yield opened


def unseen(seed: int) -> pd.DataFrame:
    """Rows of other people."""
    return people(100, seed).assign(pid=lambda frame: "h" + frame["pid"])


def external(world: World, table: str, split: str = "true", **more: Any) -> dg.Definitions:
    """The copies as a table of the user's own, with one of the splits."""
    files = {role: world.root / f"{role}_{split}.parquet" for role in ("train", "holdout")}
    return gated(world, table, **{**STRICT, **files, "synthetic": world.root / "copies.parquet", **more})


def of(table: str, assets: tuple[str, ...]) -> list[str]:
    return [f"{table}/{asset}" for asset in assets]


OFF: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "place": lambda patch: patch.setattr(judged, "check_place", lambda *_: None),
    "result": lambda patch: patch.setattr(judged, "check_result", lambda *_: None),
    "policy": lambda patch: patch.setattr(judged, "check_policy", lambda *_: None),
    "verdict": lambda patch: patch.setattr(judged, "check_verdict", lambda *_: None),
    "memory": lambda patch: patch.setattr(Failures, "against", lambda *_: []),
    # The statistics are held against the policy in force, not against the one that they were attested under.
    "estimates": lambda patch: patch.setattr(
        judged.Attestation, "judge", lambda stated, _: Policy.from_dict(stated.policy).judge(results_of(stated))
    ),
}


def results_of(stated: judged.Attestation) -> dict[str, Any]:
    return {name: judged.MetricResult.from_json(result) for name, result in stated.results.items()}


def withstood(
    world: World,
    attack: Callable[[], dg.ExecuteInProcessResult],
    table: str,
    layers: Mapping[str, str],
    partition: str | None = None,
    **where: Any,
) -> None:
    """The attack is refused by all ``layers`` and by each alone, for its reason, and publishes without any."""
    refused(attack(), table, next(iter(layers.values())), **where)
    for layer, why in layers.items() if len(layers) > 1 else ():
        with pytest.MonkeyPatch.context() as patch:
            for other in layers.keys() - {layer}:
                OFF[other](patch)
            refused(attack(), table, why, **where)
    nothing_published(world, table, partition)
    with pytest.MonkeyPatch.context() as patch:
        for layer in layers:
            OFF[layer](patch)
        attack()
    (release,) = released(world, table, partition)
    assert copies(world.private, pd.read_parquet(release.table)) >= 0.5


def copy_stored(world: World, asset: str, source: Place, target: Place) -> None:
    """Copy what the IO manager stored for one table and partition over another's."""
    io = PrivacyIOManager(base=str(world.root / "storage"))
    folders = (io.folder(dg.AssetKey([place.table, asset]), place.partition) for place in (source, target))
    shutil.copytree(*folders, dirs_exist_ok=True)


def test_route_21_an_attestation_of_another_table(world: World) -> None:
    assert world.run(external(world, "other", "decoy"), *of("other", ATTESTED)).success
    defs = external(world, "target")
    assert world.run(defs, *of("target", ("train", "holdout", "synthetic"))).success
    copy_stored(world, "attestation", Place("other"), Place("target"))
    withstood(
        world, lambda: world.run(defs, "target/published"), "target", {"place": "belongs to another table or partition"}
    )


def test_route_21_an_attestation_of_another_partition(world: World) -> None:
    for split, region in (("true", "north"), ("decoy", "south")):
        shutil.copy(world.root / "copies.parquet", world.root / f"copies_{region}.parquet")
        for role in ("train", "holdout"):
            shutil.copy(world.root / f"{role}_{split}.parquet", world.root / f"{role}_{region}.parquet")
    synthetic = world.root / "copies_{partition}.parquet"
    defs = external(world, "parts", "{partition}", synthetic=synthetic, partitions_def=REGIONS)
    assert world.run(defs, *of("parts", ATTESTED), partition="south").success
    assert world.run(defs, *of("parts", ("train", "holdout", "synthetic")), partition="north").success
    copy_stored(world, "attestation", Place("parts", "south"), Place("parts", "north"))
    withstood(
        world,
        lambda: world.run(defs, "parts/published", partition="north"),
        "parts",
        {"place": "belongs to another table or partition"},
        "north",
    )


def test_route_21_an_attestation_under_another_policy(world: World) -> None:
    assert world.run(external(world, "judged", **LOOSE), *of("judged", ATTESTED)).success
    strict = external(world, "judged")
    layers = {"policy": OTHER, "estimates": HOLDS}
    withstood(world, lambda: world.run(strict, "judged/published"), "judged", layers)


def test_route_22_the_holdout_is_replaced_after_the_check(world: World) -> None:
    """The scores compare with a holdout that was copied into the table as well: nobody seems to be given away."""
    copied, holdout = unseen(5), world.root / "holdout_replaced.parquet"
    copied.to_parquet(holdout)
    mixed = pd.concat([world.private, copied.drop(columns="pid")]).sample(frac=1, random_state=0)
    mixed.to_parquet(world.root / "mixed.parquet")
    defs = external(world, "replaced", holdout=holdout, synthetic=world.root / "mixed.parquet")
    assert all(check.passed for check in checks(world.run(defs, *of("replaced", SCORED))).values())
    unseen(1).to_parquet(holdout)
    assert world.run(defs, *of("replaced", ("train", "holdout"))).success
    withstood(
        world,
        lambda: world.run(defs, *of("replaced", ("attestation", "published"))),
        "replaced",
        {"result": "dcr was computed on another holdout table"},
        asset="attestation",
        check="policy_holds",
    )


def test_route_23_a_limit_loosened_then_restored(world: World) -> None:
    strict = external(world, "restored")
    assert not checks(world.run(strict, *of("restored", ATTESTED)))["attestation", "policy_holds"].passed
    loosened = world.run(external(world, "restored", **LOOSE), *of("restored", ("dcr", "attestation")))
    assert checks(loosened)["attestation", "policy_holds"].passed
    layers = {"policy": OTHER, "estimates": HOLDS, "memory": BEFORE}
    withstood(world, lambda: world.run(strict, "restored/published"), "restored", layers)


def test_route_24_a_limit_deleted_from_the_definitions(world: World) -> None:
    real = external(world, "deleted")
    assert not checks(world.run(real, *of("deleted", SCORED)))["dcr", "dcr_identical_excess_lower"].passed
    without = world.run(external(world, "deleted", **FEWER), *of("deleted", ("dcr", "attestation")))
    assert set(checks(without)) == {("dcr", "dcr_member_excess_any_lower"), ("attestation", "policy_holds")}
    assert checks(without)["attestation", "policy_holds"].passed
    layers = {"policy": OTHER, "estimates": HOLDS, "memory": BEFORE}
    withstood(world, lambda: world.run(real, "deleted/published"), "deleted", layers)


def test_route_24_definitions_without_any_checks(world: World) -> None:
    stripped = with_checks(external(world, "stripped"), specs=False)
    result = world.run(stripped)
    assert checks(result) == {}
    refused(result, "stripped", HOLDS, check=None)
    layers = {"verdict": HOLDS, "memory": BEFORE}
    withstood(world, lambda: world.run(stripped, "stripped/published"), "stripped", layers, check=None)


def rewritten(world: World, form: str) -> dict[str, Any]:
    """The same rows once more, so that they may look like others, or other settings for them."""
    rows, file = world.private, world.root / f"{form}.parquet"
    if form == "seed":
        return {"seed": 7}
    if form == "csv":
        rows.to_csv(file.with_suffix(".csv"), index=False)
        return {"synthetic": file.with_suffix(".csv")}
    if form == "row_order":
        rows = rows.sample(frac=1, random_state=1)
    rows.to_parquet(file)
    return {"synthetic": file}


@pytest.mark.parametrize(
    ("form", "looked"),
    [
        ("split", "attestation"),
        *map(slow, [("split", "score"), ("row_order", "score"), ("csv", "score")]),
        ("seed", "score"),
    ],
)
def test_route_25_retry_until_it_passes(world: World, form: str, looked: str) -> None:
    """Who looks at the score only, and never lets the failure be attested, is remembered as well."""
    table = f"retried_{form}_{looked}"
    first = world.run(external(world, table), *of(table, SCORED if looked == "score" else ATTESTED))
    assert not checks(first)["dcr", "dcr_identical_excess_lower"].passed
    again = external(world, table, "decoy", **rewritten(world, form))

    def retry() -> dg.ExecuteInProcessResult:
        found = checks(world.run(again, *of(table, ATTESTED)))
        assert found["dcr", "dcr_identical_excess_lower"].passed
        return world.run(again, f"{table}/published")

    withstood(world, retry, table, {"memory": BEFORE})


def test_route_26_draw_new_tables_until_one_passes(world: World) -> None:
    """A limit that the copies hold by a fifth of their interval: a first attempt releases them, a second does not."""
    files = [world.root / f"{name}.parquet" for name in ("train_true", "holdout_true", "copies")]
    dcr = {"dcr": {"bootstraps": 50, "permutations": 199}}
    found = evaluate(*files, subject="pid", metrics=dcr, policy=STRICT["policy"], embedder=False, device="cpu")
    estimate = found.results["dcr"].estimate("member_excess")
    most = estimate.value + 1.2 * (estimate.high - estimate.value)
    # Beyond 1, where the conservative bound of the interval can lie: only a policy in Python can say so.
    lucky = {"policy": Policy((Limit("dcr.member_excess", at_most=most, smallest_n=5),), name="lucky")}
    assert world.run(external(world, "drawn_once", **lucky)).success
    (release,) = released(world, "drawn_once")
    assert copies(world.private, pd.read_parquet(release.table)) == 1

    other = world.root / "another_draw.parquet"
    world.private.iloc[:50].to_parquet(other)
    world.run(external(world, "drawn_again", synthetic=other, **lucky), *of("drawn_again", ATTESTED))
    result = world.run(external(world, "drawn_again", **lucky))
    assert not checks(result)["dcr", "dcr_member_excess"].passed
    assert not checks(result)["attestation", "policy_holds"].passed
    assert "at attempt 2 from the same training rows" in checks(result)["attestation", "policy_holds"].description
    refused(world.run(external(world, "drawn_again", **lucky), "drawn_again/published"), "drawn_again", "at attempt 2")
    nothing_published(world, "drawn_again")


@pytest.fixture(scope="module")
def honest(world: World) -> dg.Definitions:
    return gated(world, "honest", independent)


@pytest.fixture(scope="module")
def first(world: World, honest: dg.Definitions) -> releases.Release:
    """The release of the full run of an honest table."""
    result = world.run(honest)
    assert result.success
    assert all(check.passed for check in checks(result).values())
    (release,) = released(world, "honest")
    return release


def gate_of(defs: dg.Definitions) -> Gate:
    return defs.resources["releases"].gate()


def test_published_alone_after_a_passing_run_is_the_same_release(
    world: World, honest: dg.Definitions, first: releases.Release
) -> None:
    before = read_published(world.root / "releases", "honest")
    result = world.run(honest, "honest/published")
    assert result.success
    assert checks(result)["published", "released"].metadata["release"].value == first.id
    assert released(world, "honest") == [first]
    pd.testing.assert_frame_equal(read_published(world.root / "releases", "honest"), before)
    assert copies(world.private, before) < 0.5


@pytest.mark.slow
def test_every_partition_of_an_honest_table_is_published(world: World) -> None:
    defs = gated(world, "honest_parts", independent, regions=True)
    for region in REGIONS.get_partition_keys():
        assert world.run(defs, partition=region).success
        assert set(read_published(world.root / "releases", "honest_parts", region)["region"]) == {region}


def test_a_rollback_and_a_newer_release(world: World, honest: dg.Definitions, first: releases.Release) -> None:
    def read() -> pd.DataFrame:
        return read_published(world.root / "releases", "honest")

    old, newer = read(), gated(world, "honest", independent, seed=1)
    assert world.run(newer).success
    second, new = released(world, "honest")[-1], read()
    assert second != first
    assert not new.equals(old)
    assert gate_of(honest).roll_back(Place("honest"), first.id) == first
    pd.testing.assert_frame_equal(read(), old)
    # A rollback stays until somebody goes forward on purpose, or there is something new.
    refused(world.run(newer, "honest/published"), "honest", "is not current any more")
    pd.testing.assert_frame_equal(read(), old)
    assert gate_of(honest).roll_back(Place("honest"), second.id) == second
    assert world.run(newer, "honest/published").success
    pd.testing.assert_frame_equal(read(), new)
    assert released(world, "honest") == [first, second]
