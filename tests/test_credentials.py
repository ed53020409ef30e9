"""Credentials in a URL are rejected at every place that accepts a URL, and no message repeats
them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privacy_assets import (
    PrivacyIOManager,
    ReleaseResource,
    build_source_sensor,
    evaluate,
    read_published,
)
from privacy_assets.airflow.deployment import AirflowDeployment
from privacy_assets.cli.main import main
from privacy_assets.dagster.table import source_from_metadata, source_metadata
from privacy_assets.errors import ConfigError
from privacy_assets.infra.objects import ObjectPath, check_no_credentials, location
from privacy_assets.infra.parallel import on_ray
from privacy_assets.metrics.policies import load_policy
from privacy_assets.pipeline.resolve import RowSource
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.reading import read_table

SECRET = "pASSw0rd"
NO_SLASHES = f"https:user:{SECRET}@host/x.csv"
WITH = [
    f"s3://KEY:{SECRET}@bucket/x.csv",
    f"s3:/KEY:{SECRET}@bucket/x.csv",
    f"s3://KEY%3A{SECRET}%40bucket/x.csv",
    f"s3://KEY:{SECRET}%2540bucket/x.csv",
    f"s3://KEY:{SECRET}/more@bucket/x.csv",
    f"https://user:{SECRET}@host/x.csv",
    f"https://{SECRET}@host/x.csv",
    f"https://user:{SECRET}\uff20host/x.csv",
    f"https://user:{SECRET}@[::1]:80/x.csv",
    f"zip://a.csv::s3://KEY:{SECRET}@bucket/x.zip",
    f"https://host/x.csv?format=csv&X-Amz-Signature={SECRET}",
    f"https://host/x.csv?sv=1&sig={SECRET}",
    f"https://host/x.csv?access_token={SECRET}",
    f"https://host/x.csv#token={SECRET}",
    *(
        f"https://host/x.csv?{name}={SECRET}"
        for name in ("key", "pass", "pw", "code", "jwt", "session", "a/b")
    ),
    f"https://host/x.csv?{SECRET}",
    f"https://host/x.csv?format=csv&{SECRET}",
    f"https://host/x.csv%3Fkey%3D{SECRET}",
    f"zip://a.csv::https://host/x.zip?key={SECRET}",
    f"https://host/x.csv;sas={SECRET}",
    f"s3://bucket/x.csv?versionId=1&key={SECRET}",
    f"abfs://container@account.dfs.core.windows.net/x.csv;AccountKey={SECRET}",
    f"s3://bucket/x.csv?endpoint_url=https://user:{SECRET}@host",
    f"s3:/bucket/x.csv?key={SECRET}",
    f"oci://user:{SECRET}@ns/x.csv",
    f"sftp://user:{SECRET}@host/x.csv",
    f"abfs://container:{SECRET}@account/x.csv",
    *(
        f"{start}user:{SECRET}@host/x.csv"
        for start in ("https:", "HTTPS:", "https//", "htps:", "//", "s3:", "sftp:")
    ),
    f"https:{SECRET}@host/x.csv",
    f"https%3Auser:{SECRET}@host/x.csv",
    f"https:host/x.csv?key={SECRET}",
    f"https:host/x.csv?{SECRET}",
]
WITHOUT = [
    "s3://bucket/a@b.csv",
    "s3://bucket/part-*.csv",
    "https://host:8080/x.csv",
    "https://[::1]:80/x.csv",
    "https://host/x.csv?format=csv",
    "s3://bucket/x.csv?versionId=1",
    "s3://bucket/part-?/year=2024/x.csv",
    "s3://bucket/a&b/year=2024/x.csv",
    "gs://bucket/x.csv?generation=1",
    "oci://bucket@ns/x.csv",
    "github://org:repo@main/x.csv",
    "github://org:repo/x.csv",
    "abfs://container@account.dfs.core.windows.net/x.csv",
    "sftp://user@host/x.csv",
    "/folder/a:b@c/x.csv",
    "file:///a/u:p@b.csv",
    "C:/users/x.csv",
    "ray://host:10001",
    "a:b@c",
    "http:localhost:80",
    "sftp:user@host",
    "image:tag@sha256:0a",
    "/data//a@b.csv",
    "note: https: see a@b",
]


def rejected(call: Callable[[], object]) -> str:
    words = "URL must not contain credentials.*AWS_ACCESS_KEY_ID.*store_conn_id"
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("url", WITH)
def test_a_url_with_credentials_is_no_location(url: str) -> None:
    for call in (location, read_table, RowSource.of, load_policy, TableSpec.load):
        rejected(lambda call=call: call(url, "source") if call == RowSource.of else call(url))
    rejected(lambda: location(ObjectPath(url)))
    rejected(lambda: read_published(url, "t"))
    rejected(lambda: evaluate(url, "h.csv", "s.csv"))


@pytest.mark.parametrize("url", WITHOUT)
def test_other_urls_and_paths_pass(url: str) -> None:
    check_no_credentials(url)


@pytest.mark.parametrize("url", [WITH[0], WITH[5], WITH[10], NO_SLASHES])
def test_every_url_of_a_spec_is_looked_at(url: str) -> None:
    files = {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv", "reference": "r.csv"}
    specs: list[dict[str, Any]] = [{"source": url}, {"policy": url}, {"data": {"source": url}}]
    specs += [{"data": {**files, role: url}} for role in files]
    specs += [
        {
            "source": "demo",
            "generator": {
                "name": "command",
                "settings": {"command": ["python", "m.py", f"--db={url}"]},
            },
        },
        {"source": "demo", "evaluation": {"metrics": {"shadow_membership": {"generator": url}}}},
    ]
    for spec in specs:
        assert rejected(lambda spec=spec: TableSpec(name="t", **spec)).startswith("table t, ")


@pytest.mark.parametrize("text", ["/srv/{{ var.value.gate }}/x.parquet", "{% if x %}a{% endif %}"])
def test_a_template_in_any_setting_is_blocked_and_makes_no_folder(
    text: str, tmp_path: Path
) -> None:
    specs: list[dict[str, Any]] = [
        {"source": text},
        {"policy": text},
        {"data": {"source": Path(text)}},
    ]
    specs += [
        {"source": "demo", "subject": text},
        {"source": "demo", "run": {"airflow_pool": text}},
    ]
    specs += [
        {
            "source": "demo",
            "generator": {"name": "command", "settings": {"command": ["python", text]}},
        }
    ]
    for spec in specs:
        with pytest.raises(
            ConfigError, match=r"table t, .*is a template, and settings are not rendered"
        ):
            TableSpec(name="t", **spec)
    here = str(tmp_path / text.strip("/"))
    for field in ("home", "releases"):
        with pytest.raises(ConfigError, match="is a template"):
            ReleaseResource(**{field: here}).open()
    with pytest.raises(ConfigError, match="is a template"):
        read_published(here, "t")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", [WITH[0], WITH[5], NO_SLASHES])
def test_every_url_of_a_deployment_is_looked_at(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for field in ("home", "releases", "private", "trusted_keys", "signing_key"):
        rejected(lambda field=field: ReleaseResource(**{field: url}))
    for field in ("base", "releases", "trusted_keys", "report_url", "home"):
        rejected(lambda field=field: PrivacyIOManager(**{field: url}))
    for field in (
        "home",
        "releases",
        "private",
        "trusted_keys",
        "signing_key",
        "values",
        "report_url",
    ):
        rejected(lambda field=field: AirflowDeployment(**{field: url}))
    monkeypatch.setenv("PRIVACY_ASSETS_REPORT_URL", url)
    rejected(lambda: AirflowDeployment().page(tmp_path, tmp_path))
    for variable in ("PRIVACY_ASSETS_RELEASES", "PRIVACY_ASSETS_PRIVATE"):
        monkeypatch.setenv(variable, url)
        rejected(lambda: AirflowDeployment().open())
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", url)
    rejected(
        lambda: ReleaseResource(releases=str(tmp_path / "r"), private=str(tmp_path / "p")).trusted()
    )
    rejected(lambda: build_source_sensor("t", url))
    rejected(lambda: on_ray(url).__enter__())


COMMANDS = [
    ["run", "URL"],
    ["run", "t.yaml", "--home", "URL"],
    ["run", "t.yaml", "--releases=URL"],
    ["run", "t.yaml", "--private", "URL"],
    ["run", "t.yaml", "--ray", "URL"],
    ["verify", "URL"],
    ["verify", "x.parquet", "--attestation", "URL"],
    ["verify", "x.parquet", "--key", "URL"],
    ["evaluate", "--train", "URL", "--holdout", "h.csv", "--synthetic", "s.csv"],
    ["releases", "--releases", "URL"],
    [
        "evaluate",
        "--train",
        "t.csv",
        "--holdout",
        "h.csv",
        "--synthetic",
        "s.csv",
        "--policy",
        "URL",
    ],
    ["generate", "--set", "log=URL"],
    ["no such command", "URL"],
    ["prepare", "--releases", "URL"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("url", [WITH[0], WITH[2], WITH[5], NO_SLASHES])
def test_no_command_repeats_credentials(
    words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("URL", url) for word in words]) == 2
    said = capsys.readouterr()
    assert "a URL must not contain credentials" in said.err and SECRET not in said.err + said.out


@pytest.mark.parametrize("url", ["https:host/x.csv", "s3:bucket/x.csv"])
def test_bypass_60_a_url_without_slashes_is_not_a_path(url: str) -> None:
    with pytest.raises(ConfigError, match="is neither a path nor a URL"):
        location(url)


def test_an_unknown_parameter_is_blocked_with_the_known_ones_and_the_fix() -> None:
    told = rejected(lambda: location("https://host/x.csv?author=smith"))
    assert (
        "its only parameters are versionId, " in told
        and "Fix: leave out the others, or copy the file." in told
    )
    assert "smith" not in told and "author" not in told, "a name can be a secret as well"


def test_the_metadata_of_a_source_has_no_parameter_that_may_be_a_secret() -> None:
    rejected(lambda: source_metadata(RowSource("file", f"https://host/x.csv?code={SECRET}")))
    given = RowSource("file", "s3://bucket/x.csv?versionId=1")
    assert source_from_metadata(source_metadata(given)["privacy_assets/source"]).path == given.path


def test_what_describes_a_source_leaves_the_query_out() -> None:
    assert RowSource("file", "https://host/x.csv?version=3").describe() == "https://host/x.csv"
    assert RowSource("file", "./x.csv").describe() == "./x.csv"
