"""Fixtures of tests that run whole tables."""

from dagster_fixtures import _known_secrets, _known_secrets_of_a_test, _quicker, instance, world

__all__ = ["_known_secrets", "_known_secrets_of_a_test", "_quicker", "instance", "world"]
