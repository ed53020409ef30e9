"""Errors that the code location raises when it loads, and the definitions that the factory
builds.
"""

from __future__ import annotations

import inspect
import json
import re
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox
from jsonschema import Draft202012Validator
from standins import LENIENT, table_of

from privacy_assets import PrivacyGate, build_privacy_assets, build_privacy_checks, resources
from privacy_assets.errors import ConfigError
from privacy_assets.infra.settings import Group
from privacy_assets.metrics.policies import default_policy, load_policy
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.studies.leak_study_job import build_leak_study

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


def shape(defs: dg.Definitions) -> dict[str, object]:
    """The properties by which two sets of definitions are compared."""
    assets = list(defs.assets or [])
    specs = {spec.key: spec for asset in assets for spec in asset.specs}
    checks = [spec for found in [*assets, *(defs.asset_checks or [])] for spec in found.check_specs]
    return {
        "deps": {
            key: sorted(dep.asset_key.path for dep in spec.deps) for key, spec in specs.items()
        },
        "groups": {key: spec.group_name for key, spec in specs.items()},
        "owners": {key: list(spec.owners) for key, spec in specs.items()},
        "tags": {key: dict(spec.tags) for key, spec in specs.items()},
        "partitions": {key: spec.partitions_def for key, spec in specs.items()},
        "checks": {check.key: (check.blocking, check.description) for check in checks},
        "jobs": sorted(job.name for job in defs.jobs or []),
        "schedules": sorted((s.name, s.cron_schedule) for s in defs.schedules or []),
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "the source is missing"),
        ({"source": "dmo"}, "Did you mean 'demo'?"),
        ({"source": "people.xlsx"}, "not a path of .parquet or .csv"),
        ({"source": pd.DataFrame({"name": ["Zebulon"]})}, "source: Input should be a valid string"),
        ({"source": "s4://bucket/people.parquet"}, "Did you mean s3://?"),
        ({"source": "demo", "generator": "synthpob"}, "Did you mean 'synthpop'?"),
        (
            {"source": "demo", "generator": {"name": "synthpop", "settings": {"min_leav": 3}}},
            "min_lea",
        ),
        ({"source": "demo", "generator": lambda train, rows, seed: train}, "cannot be imported"),
        ({"source": "demo", "metrics": ["drc"]}, "Did you mean 'dcr'?"),
        (
            {"source": "demo", "metrics": ["singling_out"], "policy": LENIENT},
            "dcr is not among the metrics",
        ),
        ({"source": "demo", "policy": "nowhere.yaml"}, "nowhere.yaml"),
        ({"source": "demo", "split": {"train": 0.5, "holdout": 0.6}}, "sum to 1"),
        (
            {"source": "demo", "kinds": {"age": "number"}},
            "unknown kind 'number' of column 'age'. Did you mean 'numeric'?",
        ),
        ({"source": "demo", "embedder": {"widht": 3}}, "Did you mean 'width'?"),
        ({"synthetic": "s.csv"}, "without train"),
        ({"synthetic": "s.csv", "train": "t.csv"}, "without holdout"),
        (
            {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv", "source": "demo"},
            "source and synthetic cannot be combined",
        ),
        (
            {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv", "split": {"train": 0.5}},
            "split already",
        ),
        ({"source": "demo", "holdout": "h.csv"}, "requires an existing synthetic table"),
        ({"source": "a.csv", "partitions_def": REGIONS}, "{partition}"),
        ({"source": "a_{partition}.csv"}, "has no partitions"),
        ({"source": "demo", "partition_column": "region"}, "has no partitions"),
        ({"source": "demo", "gpu_tags": []}, "gpu_tags must be a mapping of tags, not list"),
        (
            {"source": "demo", "gpu_tags": {"limits": {"a": {1}}}},
            "limits has a value that JSON cannot represent",
        ),
    ],
)
def test_a_wrong_argument_fails_when_the_code_location_loads(
    arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match="(?i)" + re.escape(words)) as caught:
        table_of("people", **arguments)
    assert "people" in str(caught.value) or "nowhere.yaml" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_cannot_be_a_key(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        table_of(name, source="demo")


def test_scores_and_checks_follow_the_registry() -> None:
    defs = table_of("people", source="demo")
    found = shape(defs)
    assert {key.path[-1] for key in found["deps"]} == {
        "source",
        "train",
        "holdout",
        "reference",
        "embedder",
        "generator",
        "synthetic",
        "evaluation_inputs",
        "privacy_report",
        "attestation",
        "published",
        *default_metrics(),
    }
    for limit in default_policy().limits:
        key = dg.AssetCheckKey(dg.AssetKey(["people", limit.metric]), limit.key.replace(".", "_"))
        assert found["checks"][key][0] is False
    blocking = [key for key, (blocks, _) in found["checks"].items() if blocks]
    assert blocking == [dg.AssetCheckKey(dg.AssetKey(["people", "attestation"]), "policy_holds")]
    assert found["deps"][dg.AssetKey(["people", "published"])] == [
        ["people", "attestation"],
        ["people", "synthetic"],
    ]
    assert found["deps"][dg.AssetKey(["people", "privacy_report"])] == [["people", "attestation"]]
    for name in default_metrics():
        assert found["deps"][dg.AssetKey(["people", name])] == [["people", "evaluation_inputs"]]
    parents = {path[-1] for path in found["deps"][dg.AssetKey(["people", "evaluation_inputs"])]}
    assert parents == {"train", "holdout", "reference", "synthetic", "embedder"}


@pytest.mark.parametrize("generator", ["synthpop", "rvae"])
def test_steps_that_may_use_a_device_carry_its_tags_and_no_others(generator: str) -> None:
    """No step is in a pool: on a machine without a device, tables would wait for each other."""
    tags = {
        "dagster-k8s/config": {
            "container_config": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        }
    }
    attacks = {"metrics": ["dcr", "linkability"]}
    spec = {"name": "people", "source": "demo", "generator": generator, "evaluation": attacks}
    component = PrivacyGate.resolve_from_yaml(yaml.safe_dump({**spec, "gpu_tags": tags}))
    expected = {
        "embedder",
        "evaluation_inputs",
        "dcr",
        *(["generator"] if generator == "rvae" else []),
    }
    for defs in (
        build_privacy_assets(TableSpec(**spec), gpu_tags=tags),
        component.build_defs(dg.ComponentTree.for_test().load_context),
    ):
        found = {key.path[-1]: dict(asset.op.tags) for asset in defs.assets for key in asset.keys}
        assert {name for name, its in found.items() if its} == expected
        assert all(
            json.loads(found[name]["dagster-k8s/config"]) == tags["dagster-k8s/config"]
            for name in expected
        )
        assert not any(one.op.pool for one in [*defs.assets, *defs.asset_checks])
        assert not any(check.op.tags for check in defs.asset_checks)
    assert not any(asset.op.tags for asset in build_privacy_assets(TableSpec(**spec)).assets)
    (job,) = build_leak_study(TableSpec(**spec), gpu_tags=tags).jobs
    (study,) = job.all_node_defs
    assert json.loads(study.tags["dagster-k8s/config"]) == tags["dagster-k8s/config"]


def test_privacy_checks_carry_the_tags_of_a_device_when_they_may_use_one() -> None:
    keys = {"train": "train", "holdout": "holdout", "synthetic": "synthetic", "metrics": ["dcr"]}
    for embedder in (True, False):
        (made,) = build_privacy_checks(**keys, embedder=embedder, gpu_tags={"device": "1"})
        assert dict(made.op.tags) == ({"device": "1"} if embedder else {}) and not made.op.pool


def test_groups_and_steps_follow_tables() -> None:
    names = ["people", "visits", "b", "c", "d"]
    defs = dg.Definitions.merge(*(table_of(name, source="demo") for name in names))
    assert [
        *dict.fromkeys(spec.group_name for asset in defs.assets for spec in asset.specs)
    ] == names
    for asset in defs.assets:
        assert {key.path[0] for key in asset.keys} == {asset.op.name.partition("__")[0]}


def test_a_prefix_is_on_all_keys_and_the_rest_stays() -> None:
    plain = shape(table_of("people", source="demo"))
    for prefix in ("lake", ["lake", "eu"]):
        found = shape(table_of("people", source="demo", key_prefix=prefix))
        path = [prefix] if isinstance(prefix, str) else prefix
        assert set(found["deps"]) == {key.with_prefix(path) for key in plain["deps"]}
        assert {check.asset_key for check in found["checks"]} == {
            key.asset_key.with_prefix(path) for key in plain["checks"]
        }
    for wrong in ("a/b", "", 3, ["a", 3]):
        with pytest.raises(
            ConfigError, match="table people: key_prefix must be a name without slashes"
        ):
            table_of("people", source="demo", key_prefix=wrong)


def test_a_downstream_asset_in_the_group_of_a_table_needs_no_key() -> None:
    @dg.asset(group_name="people")
    def by_sex(published: Any) -> None: ...

    defs = dg.Definitions.merge(*(table_of(name, source="demo") for name in ("people", "visits")))
    here = dg.Definitions([by_sex], resources=resources())
    graph = dg.Definitions.merge(defs, here).resolve_asset_graph()
    assert graph.get(dg.AssetKey("by_sex")).parent_keys == {dg.AssetKey(["people", "published"])}


@pytest.mark.parametrize(
    ("run", "days"), [({}, 30), ({"stale_after_days": 2}, 2), ({"stale_after_days": None}, None)]
)
def test_the_release_goes_stale_when_the_table_says_so(
    run: dict[str, Any], days: int | None
) -> None:
    defs = build_privacy_assets(TableSpec(name="people", source="demo", run=run))
    policies = {
        spec.key.path[-1]: spec.freshness_policy
        for asset in defs.assets or []
        for spec in asset.specs
    }
    policy = policies.pop("published")
    assert not any(policies.values())
    assert policy == (
        None if days is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(days=days))
    )


def test_every_asset_has_its_labels() -> None:
    labels = {"owners": ["team:data"], "tags": {"area": "health"}, "group_name": "gate"}
    for asset in build_privacy_assets("people", source="demo", **labels).assets:
        for spec in asset.specs:
            assert (
                spec.group_name == "gate"
                and list(spec.owners) == ["team:data"]
                and spec.tags["area"] == "health"
            )
            assert "privacy" in spec.kinds and spec.description
            assert spec.metadata["dagster/code_references"].code_references[0].file_path == __file__


FULL = {
    "data": {"source": "people_{partition}.parquet", "subject": "pid", "kinds": {"age": "integer"}},
    "generator": {
        "name": "synthpop",
        "settings": {},
        "rows": 100,
        "filter": [{"name": "memorization", "settings": {"crowd": 3}}, "outliers"],
    },
    "split": {"train": 0.5, "holdout": 0.5},
    "evaluation": {"metrics": ["dcr"], "embedder": False},
    "policy": LENIENT,
    "run": {"seed": 3},
}
OWN = {
    "owners": ["team:data"],
    "tags": {"area": "health"},
    "group_name": "gate",
    "schedule": "0 6 * * *",
}
FILES = {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv"}


@pytest.mark.parametrize(
    ("spec", "in_yaml", "in_python"),
    [
        ({"source": "demo"}, {}, {}),
        (
            FULL,
            {**OWN, "partitions_def": {"type": "static", "partition_keys": ["north", "south"]}},
            {**OWN, "partitions_def": REGIONS},
        ),
        ({"data": FILES, "evaluation": {"metrics": ["dcr"]}, "policy": LENIENT}, {}, {}),
        ({"source": "demo", "subject": {"column": "person", "exact": True}}, {}, {}),
        (
            {},
            {"assets": {"source": "raw/people"}},
            {"assets": {"source": dg.AssetKey(["raw", "people"])}},
        ),
    ],
)
def test_every_door_takes_the_same_spec(
    tmp_path: Path,
    spec: dict[str, object],
    in_yaml: dict[str, object],
    in_python: dict[str, object],
) -> None:
    gate = PrivacyGate.resolve_from_yaml(yaml.safe_dump({"name": "people", **spec, **in_yaml}))
    context = dg.ComponentTree.for_test().load_context
    python = shape(build_privacy_assets(TableSpec(name="people", **spec), **in_python))
    assert shape(gate.build_defs(context)) == python
    (tmp_path / "people.yaml").write_text(yaml.safe_dump({"name": "people", **spec}))
    assert (
        shape(build_privacy_assets(TableSpec.load(tmp_path / "people.yaml"), **in_python)) == python
    )


def test_short_keywords_are_those_of_the_groups() -> None:
    short = {"source": "demo", "subject": "person", "generator": "baynet", "policy": LENIENT}
    groups = {
        "data": {"source": "demo", "subject": "person"},
        "generator": {"name": "baynet"},
        "policy": LENIENT,
    }
    assert TableSpec(name="people", **short) == TableSpec(name="people", **groups)
    assert shape(build_privacy_assets("people", **short)) == shape(
        build_privacy_assets(TableSpec(name="people", **groups))
    )
    more = {
        "data": {"drop": ["x"]},
        "split": {"train": 0.6, "holdout": 0.4},
        "evaluation": {"embedder": False},
        "run": {"seed": 3},
    }
    assert shape(build_privacy_assets("people", **short, **more)) == shape(
        build_privacy_assets(TableSpec(name="people", **short, **more))
    )
    with pytest.raises(ConfigError, match="table people: data was passed in addition to a spec"):
        build_privacy_assets(TableSpec(name="people", source="demo"), data={"drop": ["x"]})
    with pytest.raises(
        ConfigError, match="table people, data has no setting 'dorp'. Did you mean 'drop'"
    ):
        build_privacy_assets("people", source="demo", data={"dorp": ["x"]})
    with pytest.raises(ConfigError, match="table people, data: source occurs twice"):
        TableSpec(name="people", source="demo", data={"source": "demo"})
    with pytest.raises(ConfigError, match="table people: policy was passed in addition to a spec"):
        build_privacy_assets(TableSpec(name="people", source="demo"), policy=LENIENT)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"data": {"subject": 3}},
            "table people, data: subject: Input should be a valid string. Expected: the name of a",
        ),
        (
            {"data": {"sorce": "demo"}},
            "table people, data has no setting 'sorce'. Did you mean 'source'?",
        ),
        (
            {"split": {"shares": {"train": 0.5}}},
            "table people, split has no setting 'shares'. Known: ",
        ),
        (
            {"run": {"workers": "rya"}},
            "table people, run: workers: Input should be 'local' or 'ray'.",
        ),
        ({"evalution": {}}, "table people has no setting 'evalution'. Did you mean 'evaluation'?"),
        ({"subjekt": "pid"}, "table people has no setting 'subjekt'. Did you mean 'subject'?"),
        (
            {"zzz": 1},
            "table people has no setting 'zzz'. Known: data, evaluation, generator, name,"
            " policy, run, source, split"
            ", subject.",
        ),
        ({"drop": ["pid"]}, "table people has no setting 'drop'. Known: data, evaluation,"),
        ({"seed": 3}, "table people has no setting 'seed'. Known: data, evaluation,"),
        (
            {"data": {"drop": "pid"}},
            "table people, data: drop: Input should be a valid tuple. Expected: a list",
        ),
        (
            {"data": {3: {}}},
            "table people, data has no setting int: names of settings are strings.",
        ),
        (
            {"generator": {3: {}}},
            "table people, generator has no setting int: names of settings are strings.",
        ),
        ({"generator": {"settings": {3: 1}}}, "table people, settings has no setting int"),
        ({"policy": {"limits": [{0: 1}]}}, "table people, limits has no setting int"),
        (
            {"name": 3},
            "table: name: Input should be a valid string. Expected: at most 128 letters,"
            " digits and",
        ),
        ({"name": "t" * 129}, f"table {'t' * 129}: name: String should have at most 128"),
        (
            {"split": {"train": "half"}},
            "table people, split: train: Input should be a valid number.",
        ),
    ],
)
def test_a_wrong_setting_is_one_error_that_names_table_group_and_setting(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        TableSpec(**{"name": "people", **given})
    assert str(caught.value).startswith(told)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("metrics", [[["dcr"]], [{"dcr": {}}], [None], [3], [["dcr", ["copies"]]]])
def test_metrics_that_are_no_names_are_a_config_error(metrics: Any) -> None:
    spec = TableSpec(name="people", source="demo", evaluation={"metrics": metrics})
    with pytest.raises(
        ConfigError, match=r"table people, evaluation: metrics: each name must be a string, not"
    ):
        build_privacy_assets(spec)


def test_a_file_that_cannot_be_read_as_a_table_names_itself(tmp_path: Path) -> None:
    file = tmp_path / "people.yaml"
    with pytest.raises(ConfigError, match="people.yaml: no such file"):
        TableSpec.load(file)
    for text, told in (
        ("- 3", "expected one mapping"),
        ("name: people\nname: others", "line 2: the key 'name' occurs twice, first in line 1"),
        (
            "name: people\nrun: {seed: x}",
            "people.yaml: table people, run: seed: Input should be a valid integer",
        ),
        ("name: people\n3: x", "has no setting int"),
        (
            "name: people\n\trun: 3",
            "people.yaml, line 2: cannot be read as YAML (found character a tab",
        ),
        (
            "name: people\nsource x\nrun: 3",
            "line 3: cannot be read as YAML, in the block that begins in line 2 (could not find",
        ),
        ("name: *secret", "line 1: cannot be read as YAML (found undefined alias …)"),
        ("name: !secret x", "line 1: a tag (!) is not accepted. Fix: leave it out"),
        ("name: [1, 2}", "line 1: cannot be read as YAML (expected ',' or ']', but got '}')"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(told)):
            TableSpec.load(file)


def test_a_policy_file_may_stand_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(yaml.safe_dump(LENIENT))
    (tmp_path / "people.yaml").write_text("name: people\nsource: demo\npolicy: limits.yaml\n")
    assert TableSpec.load(tmp_path / "people.yaml").policy == load_policy(LENIENT)


def test_texts_of_a_group_stay_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's templates convert a quoted number to a number; templates are still rendered."""
    monkeypatch.setenv("LEAF", "40")
    command = ["python", "m.py", "{train}", "{out}", "{rows}", "{seed}", "5", "1e5"]
    text = yaml.safe_dump(
        {"name": "people", "generator": {"name": "command", "settings": {"command": command}}}
    )
    gate = PrivacyGate.resolve_from_yaml(text)
    assert gate.generator == {"name": "command", "settings": {"command": command}}
    leaf = (
        "name: people\ngenerator: {name: synthpop, settings: {min_samples_leaf: '{{ env.LEAF }}',"
        " visit: ['1', a]}}\n"
    )
    settings = PrivacyGate.resolve_from_yaml(leaf).generator["settings"]
    assert str(settings["min_samples_leaf"]) == "40" and settings["visit"] == ["1", "a"]
    assert PrivacyGate.resolve_from_yaml("name: people\ngenerator: baynet\n").generator == "baynet"


def test_the_component_takes_the_spec_and_what_the_factory_takes_beside_it() -> None:
    with pytest.raises(Exception, match="sorce"):
        PrivacyGate.resolve_from_yaml("name: people\nsorce: demo\n")
    factory = [
        name for name in inspect.signature(build_privacy_assets).parameters if name != "table"
    ]
    assert set(PrivacyGate.model_fields) == {*TableSpec.model_fields, *factory}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.part)
def test_the_schema_of_the_component_has_the_settings_of_each_group(group: type[Group]) -> None:
    """`dg check yaml` validates the schema only. A value may be a template."""
    check = Draft202012Validator(PrivacyGate.model().model_json_schema())
    valid = dict.fromkeys(group.model_fields, "{{ env.VALUE }}")
    assert not list(check.iter_errors({"name": "people", group.part: valid}))
    (error,) = check.iter_errors({"name": "people", group.part: {**valid, "dorp": ["claim_id"]}})
    assert list(error.absolute_path) == [group.part] and "'dorp' was unexpected" in error.message


TWICE = """
type: privacy_assets.PrivacyGate
attributes:
  name: people
  source: demo
  policy:
    extends: default
    limits: [{statistic: dcr.privacy_score, at_most: 0.01}]
    limits: [{statistic: dcr.privacy_score, at_most: 0.9}]
"""


def test_a_key_that_stands_twice_in_the_file_of_a_component_is_an_error() -> None:
    """Dagster's own parser uses the last value."""
    with create_defs_folder_sandbox() as sandbox:
        file = sandbox.defs_folder_path / "people" / "defs.yaml"
        file.parent.mkdir()
        file.write_text(TWICE)
        with pytest.raises(ComponentTreeException) as caught, sandbox.build_all_defs():
            pass
        told = "".join(traceback.format_exception(caught.value))
        assert (
            "ConfigError" in told
            and "defs.yaml, line 9: the key 'limits' occurs twice, first in line 8" in told
        )
        file.write_text("\n".join(line for line in TWICE.splitlines() if "0.9" not in line))
        with sandbox.build_all_defs() as defs:
            assert dg.AssetKey(["people", "published"]) in shape(defs)["deps"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"holdout": "train"}, "different assets"),
        ({"metrics": ["drc"]}, "Did you mean 'dcr'"),
        ({"policy": "no.yaml"}, "no.yaml"),
    ],
)
def test_wrong_arguments_of_checks(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_privacy_checks(
            **{"train": "train", "holdout": "holdout", "synthetic": "synthetic", **changes}
        )
