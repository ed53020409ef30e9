"""Classes that installed packages add by entry points: found by name, loaded only if used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distributions import METRIC, Installer

from privacy_assets.errors import ConfigError
from privacy_assets.generators.registry import GENERATORS, build_generator
from privacy_assets.infra.registry import Registry
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics, statistic_specs


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    monkeypatch.setattr(METRICS, "_loaded", {})
    return Installer(tmp_path, monkeypatch)


def test_a_metric_of_another_package_is_loaded_by_its_name_only(install: Installer) -> None:
    install()
    assert "third" in METRICS.extensions() and "third" in METRICS.of_others()
    assert "third" not in METRICS.shipped() and "third" not in default_metrics()
    assert not [name for name in statistic_specs() if name.startswith("third")]
    with pytest.raises(ConfigError, match=r"unknown metric 'thirt'. Did you mean 'third'\?"):
        build_metric("thirt")
    assert "acme_metrics" not in sys.modules
    assert build_metric("third").name == "third"
    assert METRICS.distribution("third") == "acme 1.5"
    assert "third" not in list(METRICS), "other tables of this process are evaluated as before"
    assert "third.share" in statistic_specs(["third", "nobody"])


def test_an_unknown_name_lists_what_is_installed(install: Installer) -> None:
    install()
    with pytest.raises(ConfigError, match="unknown metric 'zzzzz'. Known: .*shadow_mem.*third"):
        build_metric("zzzzz")
    assert "acme_metrics" not in sys.modules


SECRET = "private value"
BROKEN = {
    "a missing module": ("import not_there_at_all", "it raises ModuleNotFoundError"),
    "an error": (f"raise RuntimeError('{SECRET}')", "it raises RuntimeError"),
    "an exit": ("raise SystemExit(0)", "it raises SystemExit"),
    "no such class": ("x = 1", "it raises AttributeError"),
    "a function": ("def Third(): pass", "it is not a subclass of Metric"),
    "another class": ("class Third: name = 'third'", "it is not a subclass of Metric"),
    "not declared": (METRIC.replace("@declared", ""), "not decorated with @declared"),
    "another name": (METRIC.replace('"third"', '"fourth"'), "the name of the class is different"),
    "default limits": (
        METRIC + "    default_limits = (1,)\n",
        "only metrics of privacy-assets have default_limits",
    ),
}


@pytest.mark.parametrize(("code", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_entry_point_is_named_without_its_message(
    install: Installer, code: str, problem: str
) -> None:
    install("acme_metrics:Third", code)
    with pytest.raises(ConfigError) as caught:
        build_metric("third")
    message = str(caught.value)
    assert message.startswith(
        "metric third: the entry point 'acme_metrics:Third' of acme 1.5 cannot be used: "
    )
    assert problem in message and SECRET not in message
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert "dcr" in METRICS and build_metric("dcr")


def test_two_distributions_with_one_name_are_an_error(install: Installer) -> None:
    install()
    install("other_metrics:Third", METRIC, distribution="other 2")
    with pytest.raises(ConfigError, match=r"third: several distributions .*: acme 1.5, other 2\."):
        build_metric("third")
    assert not {"acme_metrics", "other_metrics"} & set(sys.modules)


@pytest.mark.parametrize("name", ["dcr", "shadow_membership"])
def test_a_name_of_this_package_cannot_be_taken(install: Installer, name: str) -> None:
    install("acme_metrics:Third", METRIC.replace("third", name), name=name)
    with pytest.raises(ConfigError, match=f"metric {name}.*acme 1.5"):
        build_metric(name)
    assert "acme_metrics" not in sys.modules


def test_missing_entry_points_of_this_package_are_stated() -> None:
    registry = Registry[Metric](
        Metric,  # type: ignore[type-abstract]
        "privacy_assets.no_group",
        "privacy_assets.metrics.dcr:Dcr",
    )
    words = "entry points of privacy-assets are missing.*Fix: install privacy-assets again"
    with pytest.raises(ConfigError, match=f"unknown metric 'ctgan'.*{words}"):
        registry.find("ctgan")
    with pytest.raises(ConfigError, match=words):
        registry.shipped()


def test_generators_are_found_in_the_same_way() -> None:
    assert "rvae" not in list(GENERATORS) and build_generator("rvae").name == "rvae"
    assert GENERATORS.distribution("rvae") is None and GENERATORS.distribution("synthpop") is None
