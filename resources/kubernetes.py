"""Kubernetes: the resources of production, and a pod for each step (docs/kubernetes.md)."""

from typing import Any

from dagster_k8s import k8s_job_executor

from privacy_assets import fixed
from resources.production import RESOURCES

__all__ = ["EXECUTOR", "RESOURCES"]

# Only steps sign: neither the run's own pod nor the code server, the webserver or the daemon is given the key.
SIGNING_SECRET = "privacy-assets-signing-key"
STEPS: dict[str, Any] = {
    "max_concurrent": 4,
    "env_secrets": [SIGNING_SECRET],
    "step_k8s_config": {"pod_spec_config": {"automount_service_account_token": False}},
}
EXECUTOR = fixed(k8s_job_executor, STEPS)
