"""A generator with long training: its curve, its device, and an interrupted run that resumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from standins import failures, made, people, people_table, run

from privacy_assets import ReleaseResource
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.generators import build_generator
from privacy_assets.pipeline.training import checkpoint_folder, fitting_seed, training_checkpoint
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared

SMALL = {
    "name": "rvae",
    "settings": {"hidden_dims": [16], "latent": 4, "epochs": 4, "batch_size": 100},
}


def kept(instance: dg.DagsterInstance) -> list[Path]:
    folder = checkpoint_folder(Path(instance.root_directory), ReleaseTarget("people"))
    return sorted(folder.rglob("*.pt")) if folder is not None else []


@pytest.mark.slow
def test_the_curve_is_metadata_and_nothing_is_left_over(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    result = run(people_table(tmp_path, generator=SMALL), instance)
    assert result.success, failures(result)
    told = made(result)["generator"]
    assert told["epochs"] == 4 and told["device"] == "cpu" and told["same seed, same rows"] is True
    assert "loss by epoch" in told and "validation loss by epoch" in told
    shown = float(told["training"].records[-1].data["validation_loss"])
    assert told["last validation_loss"] == pytest.approx(shown, rel=1e-3)
    assert told["privacy budget"] == "none (no formal guarantee)"
    assert kept(instance) == []


@pytest.mark.slow
def test_a_run_that_broke_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    from privacy_assets.networks import training

    monkeypatch.setattr(training, "_CHECKPOINT_SECONDS", 0.0)
    whole = training.Loop._report
    reference = made(run(people_table(tmp_path, generator=SMALL), instance))["generator"]

    def broken(self: object, losses: dict) -> None:
        if losses["epoch"] == 3:
            raise MemoryError
        whole(self, losses)

    monkeypatch.setattr(training.Loop, "_report", broken)
    assert not run(people_table(tmp_path, generator=SMALL), instance).success
    left = kept(instance)
    assert len(left) == 1 and left[0].stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(training.Loop, "_report", whole)
    epochs: list[int] = []
    monkeypatch.setattr(
        training.Loop, "_report", lambda self, losses: epochs.append(losses["epoch"])
    )
    again = made(run(people_table(tmp_path, generator=SMALL), instance))["generator"]
    assert epochs == [3, 4] and kept(instance) == []
    assert again["last validation_loss"] == reference["last validation_loss"]


@pytest.mark.slow
def test_a_stored_generator_that_was_changed_makes_no_table(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Its budget statement goes into the report, so the model is signed_file with the deployment's
    key.
    """
    defs = people_table(tmp_path, generator={"name": "privbayes", "settings": {"epsilon": 5}})
    assert "generator" in made(run(defs, instance))
    (model,) = (tmp_path / "storage/people/generator").glob("model-*")
    (state,) = (path for path in model.iterdir() if path.suffix != ".json")
    budget, mac = (model / name for name in ("generator.json", "trained_on.json"))
    for file, old, new in (
        (budget, b"5", b"4"),
        (mac, b'"mac": "', b'"mac": "0'),
        (state, b"", b" "),
        (None, b"", b""),
    ):
        changed = file or model / "more.json"
        whole = file.read_bytes() if file else b""
        changed.write_bytes(whole.replace(old, new) if old else whole + new)
        assert changed.read_bytes() != whole or file is None
        result = run(defs, instance, "synthetic")
        assert not result.success and "synthetic" not in made(result)
        assert "the stored generator was changed" in str(failures(result))
        changed.write_bytes(whole)
    changed.unlink()
    assert "synthetic" in made(run(defs, instance, "synthetic"))


@pytest.mark.slow
def test_no_module_is_imported_for_a_stored_generator_that_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    """A model can name a function of any module, and importing it runs code, so the mac is
    verified first.
    """
    modules = tmp_path / "modules"
    modules.mkdir()
    ran = tmp_path / "ran"
    (modules / "planted_module.py").write_text(
        f"open({str(ran)!r}, 'w').close()\n\n\ndef sample(train, rows, seed):\n    return train\n"
    )
    monkeypatch.syspath_prepend(str(modules))
    defs = people_table(tmp_path, generator="standins:independent")
    assert run(defs, instance).success
    (manifest,) = (tmp_path / "storage/people/generator").glob("model-*/generator.json")
    manifest.write_text(
        manifest.read_text().replace("standins:independent", "planted_module:sample")
    )
    result = run(defs, instance, "synthetic")
    assert "the stored generator was changed" in str(failures(result))
    assert not ran.exists()


def test_rows_in_another_order_or_other_settings_are_another_training(tmp_path: Path) -> None:
    """Batches are drawn by position, so a checkpoint belongs to one order of the rows."""
    seen: list[Path] = []

    class Watched:
        latent = 4

        def settings(self) -> dict[str, object]:
            return {"latent": self.latent}

    settings: Any = SimpleNamespace(
        generator=Watched(), generator_label="watched", distributions={}
    )
    train = canonical_table(people(50), Declared(subject="pid"))
    backwards = train.take(slice(None, None, -1))
    for latent, rows in (
        (4, train),
        (4, train),
        (4, backwards),
        (5, train),
    ):
        settings.generator.latent = latent
        with training_checkpoint(settings, rows.digest, 0, tmp_path / "place") as checkpoint:
            assert checkpoint is not None
            seen.append(checkpoint)
    assert seen[0] == seen[1] and len(set(seen)) == 3


def test_the_seed_of_noise_is_known_to_the_deployment_only(tmp_path: Path) -> None:
    """The seed of the settings appears in report and attestation."""
    here, elsewhere = (ReleaseResource(home=str(tmp_path / n)) for n in "ab")
    for resource in (here, elsewhere):
        resource.gate()

    def settings_of(generator: str, seed: int) -> SimpleNamespace:
        run = SimpleNamespace(seed=seed)
        return SimpleNamespace(generator=build_generator(generator), spec=SimpleNamespace(run=run))

    private = [settings_of("privbayes", seed) for seed in (0, 1)]
    found = [fitting_seed(settings, place) for settings in private for place in (here, elsewhere)]
    assert len(set(found)) == 4 and min(found) > 1000
    assert fitting_seed(private[0], here) == found[0]
    assert fitting_seed(settings_of("synthpop", 5), here) == 5
