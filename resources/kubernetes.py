"""Kubernetes: the resources of production, and one pod per step (docs/kubernetes.md)."""

from typing import Any

from dagster_k8s import k8s_job_executor

from privacy_assets import frozen_config
from resources.production import RESOURCES

__all__ = ["EXECUTOR", "RESOURCES"]

# Only steps sign. The run pod, the code server, the webserver and the daemon do not receive the
# key.
SIGNING_SECRET = "privacy-assets-signing-key"
STEPS: dict[str, Any] = {
    "max_concurrent": 4,
    "env_secrets": [SIGNING_SECRET],
    "step_k8s_config": {"pod_spec_config": {"automount_service_account_token": False}},
}
EXECUTOR = frozen_config(k8s_job_executor, STEPS)
