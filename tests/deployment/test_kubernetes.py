"""The Kubernetes example: Dagster and Kubernetes accept its values, and only signing containers
receive secrets.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml

pytest.importorskip("dagster_k8s", reason="the extra 'k8s' is not installed")

import kubernetes
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config
from dagster._core.launcher import LaunchRunContext
from dagster_k8s import K8sRunLauncher
from dagster_k8s.client import DagsterKubernetesClient
from dagster_k8s.job import UserDefinedDagsterK8sConfig, get_user_defined_k8s_config
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from pods import (
    HERE,
    IMAGE,
    LAUNCHER,
    ROOT,
    SERVER,
    VALUES,
    Cluster,
    instance_config,
    job_of,
    step_jobs,
)
from standins import people

from privacy_assets import read_published
from privacy_assets.errors import ConfigError
from privacy_assets.gate.keys import SIGNING_VARIABLE, TrustedKeys

SIGNING, SPLIT, PASSWORD = (
    "privacy-assets-signing-key",
    "privacy-assets-split-key",
    "privacy-assets-postgresql",
)
SETTINGS = {entry["name"]: entry["value"] for entry in SERVER["env"]}
MOUNTED = "PRIVACY_ASSETS_TRUSTED_KEYS"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Fake cluster that keeps the requests."""
    made = Cluster()
    monkeypatch.setattr(kubernetes.config, "load_incluster_config", lambda: None)
    monkeypatch.setattr(DagsterKubernetesClient, "production_client", lambda **_: made)
    return made


@pytest.fixture
def instance(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """An instance as the values define it, on SQLite."""
    people(100).to_parquet(tmp_path / "people.parquet")
    monkeypatch.setenv("DEPLOYMENT_ROOT", str(tmp_path))
    for name, value in SETTINGS.items():
        if name.startswith("PRIVACY_ASSETS"):
            monkeypatch.setenv(name, value)
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(
        str(tmp_path / "home"), overrides=instance_config(VALUES)
    ) as made:
        yield made


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """The values with another one at ``path``; a missing key is added."""
    made = copy.deepcopy(VALUES)  # YAML aliases are kept: a shared value changes everywhere
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return made


def secrets_of(container: Any) -> set[str]:
    """Names of the secrets in a container's environment."""
    listed = {source.secret_ref.name for source in container.env_from or [] if source.secret_ref}
    return listed | {one.value_from.secret_key_ref.name for one in container.env if one.value_from}


def container_of(job: Any) -> Any:
    (container,) = job.spec.template.spec.containers
    return container


# --- the instance
# --------------------------------------------------------------------------------------------------


def written(values: dict[str, Any], folder: Path) -> str:
    (folder / "dagster.yaml").write_text(yaml.safe_dump(instance_config(values)))
    return str(folder)


def test_dagster_reads_the_instance_and_it_is_that_of_production(tmp_path: Path) -> None:
    config, _ = dagster_instance_config(written(VALUES, tmp_path))
    production = yaml.safe_load((ROOT / "dagster.production.yaml").read_text())
    same = ("telemetry", "nux", "schedules", "sensors", "concurrency", "retention")
    assert {name: config[name] for name in same} == {name: production[name] for name in same}
    assert config["run_monitoring"] == {
        **production["run_monitoring"],
        "max_resume_run_attempts": 0,
    }
    read = process_config(K8sRunLauncher.config_type(), config["run_launcher"]["config"])
    assert read.success, read.errors
    assert LAUNCHER["class"] == K8sRunLauncher.__name__ and LAUNCHER["module"] == "dagster_k8s"


@pytest.mark.parametrize(
    "path",
    [
        ("dagsterDaemon", "runMonitoring", "maxRuntimeSecond"),
        ("additionalInstanceConfig", "concurency"),
    ],
)
def test_a_misspelled_key_of_the_instance_fails(path: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
        dagster_instance_config(written(changed(*path, to={"purgeAfterDays": 1}), tmp_path))


def test_a_queue_with_limits_of_its_own_would_not_load(tmp_path: Path) -> None:
    """The values name the coordinator by its class, because the chart's section writes
    ``max_concurrent_runs: -1``.
    """
    queue = {
        "module": "dagster",
        "class": "QueuedRunCoordinator",
        "config": {"max_concurrent_runs": -1},
    }
    limited = changed("dagsterDaemon", "runCoordinator", "config", "customRunCoordinator", to=queue)
    with pytest.raises(dg.DagsterInvalidConfigError, match="incompatible with the `concurrency"):
        dagster_instance_config(written(limited, tmp_path))


def test_a_misspelled_key_of_the_run_launcher_a_container_or_a_pod_fails() -> None:
    assert not process_config(
        K8sRunLauncher.config_type(), {**LAUNCHER["config"], "env_secret": []}
    ).success
    for section, key in (("container_config", "enw"), ("pod_spec_config", "securityContex")):
        with pytest.raises(Exception, match="Unexpected keys"):
            UserDefinedDagsterK8sConfig.from_dict({section: {key: {}}})


# --- parts of the values that Kubernetes reads
# ------------------------------------------------------------------------


def read_by_kubernetes(values: dict[str, Any]) -> None:
    """Each part that the chart passes to Kubernetes unchanged."""
    from dagster_k8s.models import k8s_snake_case_dict

    server = values["dagster-user-deployments"]["deployments"][0]
    parts = [
        ("V1Probe", values["dagsterWebserver"]["readinessProbe"]),
        ("V1ResourceRequirements", server["resources"]),
    ]
    for owner in (values["dagsterDaemon"], values["dagsterWebserver"], server):
        parts.append(("V1PodSecurityContext", owner["podSecurityContext"]))
        parts.append(("V1SecurityContext", owner["securityContext"]))
    lists = {
        "V1Volume": "volumes",
        "V1VolumeMount": "volumeMounts",
        "V1EnvVar": "env",
        "V1SecretEnvSource": "envSecrets",
    }
    parts += [(name, one) for name, key in lists.items() for one in server[key]]
    for name, content in parts:
        model = getattr(kubernetes.client, name)
        k8s_model_from_dict(model, k8s_snake_case_dict(model, content))


def test_kubernetes_knows_every_part_and_no_misspelled_one() -> None:
    read_by_kubernetes(VALUES)
    assert all(len(str(one["value"])) for one in SERVER["env"])
    server = ("dagster-user-deployments", "deployments", 0)
    for path in (
        ("securityContext", "readOnlyRoot"),
        ("podSecurityContext", "runAsNonroot"),
        ("volumeMounts", 0, "path"),
    ):
        with pytest.raises(Exception, match="Unexpected keys"):
            read_by_kubernetes(changed(*server, *path, to=True))


def test_nobody_is_root_or_may_become_it() -> None:
    for owner in (SERVER, VALUES["dagsterDaemon"], VALUES["dagsterWebserver"]):
        assert owner["podSecurityContext"]["runAsNonRoot"] is True
        assert owner["securityContext"]["allowPrivilegeEscalation"] is False
    assert SERVER["securityContext"]["readOnlyRootFilesystem"] is True


# --- variables and secrets
# --------------------------------------------------------------------------------------------


def test_the_variables_are_those_that_the_code_reads() -> None:
    named = {name for name in SETTINGS if name.startswith("PRIVACY_ASSETS")}
    files = [*(ROOT / "privacy_assets").rglob("*.py"), *(ROOT / "resources").glob("*.py")]
    read = set(
        re.findall(r"\bPRIVACY_ASSETS_[A-Z_]+\b", "\n".join(file.read_text() for file in files))
    )
    assert named <= read
    resources = (ROOT / "resources/production.py").read_text()
    # each one it needs, and PRIVACY_ASSETS_ENV
    assert set(re.findall(r'EnvVar\("(\w+)"\)', resources)) < named
    assert (ROOT / "resources" / f"{SETTINGS['PRIVACY_ASSETS_ENV']}.py").is_file()
    assert LAUNCHER["config"]["run_k8s_config"]["container_config"]["env"] == SERVER["env"]
    mount = next(one for one in SERVER["volumeMounts"] if one["name"] == "trusted-keys")
    assert SETTINGS[MOUNTED].startswith(mount["mountPath"]) and mount["readOnly"] is True


def test_no_secret_stands_in_the_example() -> None:
    texts = [path.read_text() for path in (ROOT / "deployment").rglob("*") if path.is_file()]
    assert not any("PRIVATE KEY" in text for text in texts)
    assert not {SIGNING_VARIABLE, "PRIVACY_ASSETS_SPLIT_KEY", "DAGSTER_PG_PASSWORD"} & set(SETTINGS)
    assert (
        VALUES["generatePostgresqlPasswordSecret"] is False
        and "postgresqlPassword" not in VALUES["postgresql"]
    )


@pytest.mark.slow
def test_the_signing_key_reaches_steps_and_nothing_else(
    instance: dg.DagsterInstance, cluster: Cluster
) -> None:
    assert SIGNING not in json.dumps(VALUES) and SIGNING_VARIABLE not in json.dumps(VALUES)
    for name in ("dagsterDaemon", "dagsterWebserver"):
        assert not {"env", "envSecrets", "envConfigMaps"} & set(VALUES[name])
    job = job_of("people_pipeline")
    run = instance.create_run_for_job(job.get_definition(), job_code_origin=job.get_python_origin())
    instance.run_launcher.launch_run(LaunchRunContext(run, workspace=None))
    of_run = cluster.jobs.pop()
    of_steps = step_jobs("people_pipeline", instance, cluster)
    assert secrets_of(container_of(of_run)) == {SPLIT, "privacy-assets-storage", PASSWORD}
    assert {"people__publish", "people__attest", "people__sample"} <= set(of_steps)
    for made in of_steps.values():
        assert secrets_of(container_of(made)) == {
            SPLIT,
            "privacy-assets-storage",
            PASSWORD,
            SIGNING,
        }
        assert made.spec.template.spec.automount_service_account_token is False
    assert of_run.spec.template.spec.automount_service_account_token is True  # it starts the steps
    for made in (of_run, *of_steps.values()):
        container, pod = container_of(made), made.spec.template.spec
        assert container.image == IMAGE
        assert (
            container.security_context.read_only_root_filesystem
            and pod.security_context.run_as_non_root
        )
        assert SETTINGS.items() <= {one.name: one.value for one in container.env}.items()
        assert {one.name for one in container.volume_mounts} <= {one.name for one in pod.volumes}


@pytest.mark.parametrize(
    "tag",
    [
        {
            "container_config": {
                "image": "elsewhere",
                "env_from": [{"secret_ref": {"name": SIGNING}}],
            }
        },
        pytest.param({"container_config": {"command": ["env"]}}, marks=pytest.mark.slow),
        pytest.param(
            {"pod_spec_config": {"service_account_name": "admin"}}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"job_spec_config": {"ttl_seconds_after_finished": 1}}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_tag_of_a_run_changes_no_pod(
    tag: dict[str, Any], instance: dg.DagsterInstance, cluster: Cluster
) -> None:
    job = job_of("people_pipeline")
    run = instance.create_run_for_job(
        job.get_definition(),
        job_code_origin=job.get_python_origin(),
        tags={"dagster-k8s/config": json.dumps(tag)},
    )
    with pytest.raises(Exception, match="violated the allowed list"):
        instance.run_launcher.launch_run(LaunchRunContext(run, workspace=None))
    assert cluster.jobs == []


@pytest.mark.usefixtures("instance")  # the code location reads its folder from the environment
def test_the_executor_cannot_be_configured_by_a_run() -> None:
    from resources.production import EXECUTOR

    @dg.job(executor_def=EXECUTOR)
    def processes() -> None: ...

    jobs = {"job_image": job_of("people_pipeline").get_definition(), "max_concurrent": processes}
    for field, job in jobs.items():
        schema = job.run_config_schema.run_config_schema_type
        assert not process_config(schema, {"execution": {"config": {field: 7}}}).success
        assert process_config(schema, {}).success


def test_trusted_keys_are_read_from_a_mount_of_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only ConfigMap mount as a kubelet creates it: links, and folders with open and with
    closed permissions.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    mount, folder = tmp_path / "trusted-keys", tmp_path / "trusted-keys/..2026_01_01_00_00_00.1"
    folder.mkdir(parents=True)
    (folder / "publisher.pem").write_bytes(pem)
    (folder / "publisher.pem").chmod(SERVER["volumes"][0]["configMap"]["defaultMode"])
    (mount / "..data").symlink_to(folder.name)
    (mount / "publisher.pem").symlink_to("..data/publisher.pem")
    folder.chmod(0o755)
    mount.chmod(0o777)
    inside = SETTINGS[MOUNTED].removeprefix("/etc/privacy-assets/")
    with pytest.raises(ConfigError, match="other users may write"):
        _ = TrustedKeys((tmp_path / inside,)).by_id
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert len(TrustedKeys((tmp_path / inside,)).by_id) == 1


# --- devices
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_steps_that_may_use_a_device_ask_for_one(
    instance: dg.DagsterInstance, cluster: Cluster
) -> None:
    made = {
        **step_jobs("nets_pipeline", instance, cluster),
        **step_jobs("nets_leak_study", instance, cluster),
    }
    asks = {
        key
        for key, job in made.items()
        if (container_of(job).resources.limits or {}).get("nvidia.com/gpu") is not None
    }
    assert asks == {
        "nets__embed",
        "nets__fit",
        "nets__prepare",
        "nets__score_on_device",
        "nets__leak_study",
    }
    assert {"nets__score", "nets__sample", "nets__publish"} <= set(made) - asks
    asking = container_of(made["nets__embed"])
    # added to each step's own resources
    assert asking.resources.limits == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert asking.resources.requests == container_of(made["nets__publish"]).resources.requests


def test_the_tags_of_the_page_are_what_dagster_k8s_reads() -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "docs/kubernetes.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    names: dict[str, Any] = {}
    exec(compile(code, "kubernetes.md", "exec"), names)
    found = {
        key.path[-1]: asset.op.tags for asset in names["patients"].assets for key in asset.keys
    }
    tagged = {name for name, tags in found.items() if tags}
    assert {"embedder", "dcr"} <= tagged and not tagged & {
        "source",
        "synthetic",
        "published",
        "generator",
    }
    read = get_user_defined_k8s_config(found["dcr"])
    assert read.container_config["resources"]["limits"] == {"nvidia.com/gpu": 1}


# --- the page and the chart
# -------------------------------------------------------------------------------------------


def test_the_page_makes_every_secret_that_is_named() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    made = set(re.findall(r"create (?:secret generic|configmap) ([\w-]+)", page))
    maps = {one["configMap"]["name"] for one in SERVER["volumes"] if "configMap" in one}
    named = (
        {one["name"] for one in SERVER["envSecrets"]}
        | set(LAUNCHER["config"]["env_secrets"])
        | maps
    )
    assert made == named | {SIGNING, VALUES["global"]["postgresqlSecretName"]}
    assert (
        LAUNCHER["config"]["postgres_password_secret"] == VALUES["global"]["postgresqlSecretName"]
    )
    assert f"-n {LAUNCHER['config']['job_namespace']} " in page and "helm install dagster " in page


VOLUME = yaml.safe_load((ROOT / "deployment/kubernetes/volume.yaml").read_text(encoding="utf-8"))
COMMENTED = [
    yaml.safe_load(line)
    for line in re.findall(
        r"# - (\{.+\})$", (ROOT / "deployment/kubernetes/values.yaml").read_text(), re.MULTILINE
    )
]
GROUP = VOLUME["spec"]["securityContext"]["fsGroup"]
OPENS = """
import os, sys
from privacy_assets.errors import ConfigError
from privacy_assets.gate.deployment import DeploymentSettings
DeploymentSettings(home=sys.argv[1]).open().gate()  # whatever is imported on the way may not be for another user
os.setgroups([int(sys.argv[3])])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
try:
    DeploymentSettings(home=sys.argv[2]).open().gate()
    print("opened")
except ConfigError as error:
    print(error)
"""  # noqa: E501


def test_the_pod_that_prepares_a_volume_has_the_user_of_the_values() -> None:
    pod = k8s_model_from_dict(
        kubernetes.client.V1PodSpec,
        k8s_snake_case_dict(kubernetes.client.V1PodSpec, VOLUME["spec"]),
    )
    values = SERVER["podSecurityContext"]
    assert (
        pod.security_context.run_as_user == values["runAsUser"]
        and pod.security_context.fs_group == values["fsGroup"]
    )
    assert (
        pod.security_context.fs_group_change_policy
        == values["fsGroupChangePolicy"]
        == "OnRootMismatch"
    )
    *variables, volume, mount = COMMENTED
    assert volume == VOLUME["spec"]["volumes"][0]
    assert all(
        one["name"] in SETTINGS and one["value"].startswith(f"{mount['mountPath']}/")
        for one in variables
    )
    k8s_model_from_dict(
        kubernetes.client.V1VolumeMount, k8s_snake_case_dict(kubernetes.client.V1VolumeMount, mount)
    )


@pytest.mark.weekly
@pytest.mark.skipif(
    os.getuid() != 0,
    reason="only root can mount a volume as Kubernetes does, and become another user",
)
def test_a_volume_with_fsgroup_opens_as_the_page_describes_and_otherwise_the_error_says_how(
    tmp_path: Path,
) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        volume, pod = Path(folder) / "volume", Path(folder) / "srv"
        for made in (volume, pod):
            made.mkdir(mode=0o755)

        def mounted(policy: str) -> None:
            """Set group and mode as the kubelet does (SetVolumeOwnership)."""
            for path in [volume, *volume.rglob("*")] if policy == "Always" else [volume]:
                os.chown(path, -1, GROUP)
                path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))

        def opened(home: Path) -> str:
            command = [sys.executable, "-c", OPENS, str(tmp_path / "first"), str(home), str(GROUP)]
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        mounted("OnRootMismatch")
        assert "mount a subPath of it" in opened(volume / "home")
        (container,) = VOLUME["spec"]["containers"]
        command = [part.replace("/volume", str(volume)) for part in container["command"]]
        subprocess.run(command, check=True, user=GROUP, group=GROUP, extra_groups=[GROUP])
        # a subPath is mounted without the folders above it
        (volume / "gate").rename(pod / "privacy")
        assert [opened(pod / "privacy") for _ in range(2)] == ["opened", "opened"]
        (pod / "privacy").rename(volume / "gate")
        mounted("OnRootMismatch")
        (volume / "gate").rename(pod / "privacy")
        assert opened(pod / "privacy") == "opened"
        (pod / "privacy").rename(volume / "gate")
        mounted("Always")
        (volume / "gate").rename(pod / "privacy")
        found = opened(pod / "privacy")
        assert (
            "other users can access" in found and "fsGroupChangePolicy to OnRootMismatch" in found
        )


def test_the_image_has_what_the_values_name() -> None:
    lines = (ROOT / "deployment/kubernetes/Dockerfile").read_text()
    user, group = (
        SERVER["podSecurityContext"]["runAsUser"],
        SERVER["podSecurityContext"]["runAsGroup"],
    )
    assert f"USER {user}:{group}" in lines and "WORKDIR /app" in lines
    for source in re.findall(r"^COPY (.+) \S+$", lines, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())
    compiled = 'ENV NUMBA_CPU_NAME=${CPU} NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=/opt/numba'
    assert compiled in lines, (
        "for the nodes and not for the builder, and where no volume is mounted"
    )
    assert not [one for one in SERVER["volumeMounts"] if "/opt/numba".startswith(one["mountPath"])]
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= set(lines.split()), (
        "the build reads these"
    )
    assert set(re.findall(r"\[([\w,]+)\]", lines)[0].split(",")) == {
        "dagster",
        "k8s",
        "postgres",
        "s3",
    }
    home = LAUNCHER["config"]["dagster_home"]
    assert f"mkdir -p {home}/storage" in lines
    assert f"{home}/storage" in {one["mountPath"] for one in SERVER["volumeMounts"]}


def chart_errors(schema: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Errors of the chart's schema for the values. Our values are partial, so no key is
    required.
    """
    import jsonschema

    found = jsonschema.validators.validator_for(schema)(schema).iter_errors(values)
    return [
        f"{'.'.join(map(str, one.path))}: {one.message}"
        for one in found
        if one.validator != "required"
    ]


@pytest.mark.skipif(
    "PRIVACY_ASSETS_HELM_SCHEMA" not in os.environ,
    reason="PRIVACY_ASSETS_HELM_SCHEMA does not name values.schema.json of Dagster's Helm chart",
)
def test_the_chart_takes_the_values() -> None:
    schema = json.loads(Path(os.environ["PRIVACY_ASSETS_HELM_SCHEMA"]).read_text())
    assert chart_errors(schema, VALUES) == []
    assert set(VALUES) <= set(schema["properties"])  # the schema itself allows additional keys
    for path in (
        ("dagsterDaemon", "runCoordinater"),
        ("dagsterWebserver", "servise"),
        ("runLauncher", "kind"),
    ):
        assert chart_errors(schema, changed(*path, to={}))


# --- a run
# --------------------------------------------------------------------------------------------------


@pytest.mark.weekly
def test_a_run_with_a_process_for_each_pod_publishes(
    instance: dg.DagsterInstance, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container gets the environment of its job only, so a missing variable fails its step."""
    keys = tmp_path / "keys"
    (tmp_path / "private").mkdir(mode=0o700)
    places = {
        "PRIVACY_ASSETS_STORAGE": str(tmp_path / "storage"),
        "PRIVACY_ASSETS_RELEASES": str(tmp_path / "releases"),
        "PRIVACY_ASSETS_PRIVATE": str(tmp_path / "private"),
        "PRIVACY_ASSETS_TRUSTED_KEYS": str(keys),
    }
    command = [sys.executable, "-m", "privacy_assets", "keys", "--new"]
    subprocess.run(command, check=True, env={**os.environ, **places}, capture_output=True)
    signing = tmp_path / "private/signing.key"
    cluster.secrets = {
        SIGNING: {SIGNING_VARIABLE: signing.read_text()},
        SPLIT: {"PRIVACY_ASSETS_SPLIT_KEY": "s" * 32},
        "privacy-assets-storage": {},
        PASSWORD: {"postgresql-password": "unused"},
    }
    signing.unlink()
    paths = os.pathsep.join(map(str, (HERE, ROOT / "tests/helpers", ROOT)))
    cluster.extra = {
        **places,
        "DAGSTER_HOME": str(tmp_path / "home"),
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path),
        "NUMBA_CACHE_DIR": "",
    }
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    with dg.execute_job(job_of("people_pipeline"), instance) as done:
        assert done.success
    assert [process.wait(60) for process in cluster.processes] == [0] * len(cluster.jobs)
    assert len(cluster.jobs) > 5
    assert len(read_published(tmp_path / "releases", "people", trusted_keys=keys)) > 0
    assert not (tmp_path / "private/split.key").exists()
