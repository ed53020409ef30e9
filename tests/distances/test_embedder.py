"""The contrastive embedder."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cosine

from privacy_assets.distances import embedder as module
from privacy_assets.distances.embedder import Embedder, train_embedder
from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.distances.network import (
    EmbedderNetwork,
    Trainer,
    contrastive_accuracy,
    contrastive_loss,
    draw_mask,
    view_logits,
)
from privacy_assets.errors import InputError
from privacy_assets.infra.progress import Lines
from privacy_assets.tables.inference import infer_schema
from tests.tables import as_table, as_tables

SMALL = EmbedderSettings(width=32, batch_size=128, max_epochs=4)


def mixed(rows, seed=0, missing=0.1):
    """Rows with every kind of column, all dependent on one hidden number."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    frame = pd.DataFrame(
        {
            "income": np.exp(hidden + 0.1 * rng.normal(size=rows)),
            "visits": pd.array(np.round(5 + 2 * hidden).astype(int), dtype="Int64"),
            "plan": np.array(list("abcdef"), dtype=object)[
                np.digitize(hidden, [-1.5, -0.7, 0, 0.7, 1.5])
            ],
            "member": pd.array(hidden > 0, dtype="boolean"),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.round(100 * hidden), unit="D"),
            "city": np.array(["x", "y", "z"], dtype=object)[rng.integers(0, 3, rows)],
        }
    )
    for name in frame.columns:
        frame.loc[rng.random(rows) < missing, name] = None
    return frame


def trained(frames, settings=SMALL, seed=0, **options):
    frames = [frames] if isinstance(frames, pd.DataFrame) else frames
    schema = infer_schema(pd.concat(frames, ignore_index=True))
    return train_embedder(as_tables(frames, schema), schema, settings, seed=seed, **options)


def embed(embedder, frame):
    return embedder.embed(as_table(frame, embedder.schema))


def saved_bytes(embedder, folder):
    embedder.save(folder)
    return [path.read_bytes() for path in sorted(folder.glob("[!.]*"))]


@pytest.fixture(scope="module")
def frame():
    return mixed(1500)


@pytest.fixture(scope="module")
def embedder(frame):
    return trained(frame, replace(SMALL, max_epochs=30))


def test_the_rows_and_the_seed_decide_the_bytes_and_nothing_else(tmp_path):
    """The order of rows, their table and torch's global state do not matter; the state stays
    unchanged.
    """
    frame = mixed(300)
    frame = pd.concat([frame, frame.head(40)], ignore_index=True)
    shuffled = frame.sample(frac=1, random_state=3).reset_index(drop=True)
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        one = trained([frame.iloc[:200], frame.iloc[200:]])
        embed(one, frame)
        assert torch.get_num_threads() == 2 and torch.equal(before, torch.get_rng_state())
    finally:
        torch.set_num_threads(threads)
    torch.manual_seed(6)
    other = trained([shuffled.iloc[:50], shuffled.iloc[50:300], shuffled.iloc[300:]])
    assert saved_bytes(one, tmp_path / "a") == saved_bytes(other, tmp_path / "b")
    assert (
        saved_bytes(one, tmp_path / "a")[1]
        != saved_bytes(trained(frame, seed=1), tmp_path / "c")[1]
    )


def test_save_and_load(embedder, frame, tmp_path):
    embedder.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    assert np.array_equal(embed(loaded, frame), embed(embedder, frame))
    assert (loaded.schema, loaded.encoder, loaded.settings) == (
        embedder.schema,
        embedder.encoder,
        embedder.settings,
    )
    assert (loaded.seed, loaded.history) == (embedder.seed, embedder.history)
    assert loaded.fingerprint() == embedder.fingerprint()
    assert saved_bytes(embedder, tmp_path / "a") == saved_bytes(loaded, tmp_path / "b")


@pytest.mark.parametrize(
    ("file", "damaged"),
    [
        ("network.safetensors", lambda path: path.unlink()),
        ("network.safetensors", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("embedder.json", lambda path: path.unlink()),
        ("embedder.json", lambda path: path.write_text("{")),
        (
            "embedder.json",
            lambda path: path.write_text(
                json.dumps(json.loads(path.read_text()) | {"settings": {}})
            ),
        ),
    ],
)
def test_damaged_folder_is_an_input_error(embedder, tmp_path, file, damaged):
    embedder.save(tmp_path)
    damaged(tmp_path / file)
    with pytest.raises(InputError, match="no embedder"):
        Embedder.load(tmp_path)


def test_training_brings_like_rows_together(embedder):
    """The loss falls, the accuracy rises, and perturbed rows are nearer to their originals than to
    other rows.
    """
    first, last = embedder.history[0], embedder.history[-1]
    assert (
        last.train_loss < first.train_loss - 0.3
        and last.validation_loss < first.validation_loss - 0.3
    )
    assert last.validation_accuracy > 3 / 128
    fresh = mixed(400, seed=9, missing=0)
    touched = fresh.assign(income=1.02 * fresh["income"], city="x")
    points, near = embed(embedder, fresh), embed(embedder, touched)
    to_near = np.linalg.norm(points - near, axis=1)
    to_random = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1)
    assert np.median(to_near) < 0.5 * np.median(to_random)
    assert (to_near < to_random).mean() > 0.85


def test_equal_rows_have_equal_bits_wherever_they_stand(embedder, frame):
    points = embed(embedder, frame)
    order = np.random.default_rng(0).permutation(len(frame))
    assert np.array_equal(embed(embedder, frame.iloc[order]), points[order])
    assert np.array_equal(embed(embedder, frame.iloc[order[:7]]), points[order[:7]])
    assert np.array_equal(
        embed(embedder, pd.concat([frame.tail(3), frame])), np.concatenate([points[-3:], points])
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("income", 30.0),
        ("visits", 1),
        ("plan", "f"),
        ("plan", "never seen"),
        ("member", False),
        ("seen", pd.Timestamp("2021-01-01")),
    ],
)
def test_every_kind_of_column_counts_and_missing_and_unseen_are_values_of_their_own(
    embedder, frame, column, value
):
    plain = {
        "visits": 5,
        "plan": "c",
        "member": True,
        "seen": pd.Timestamp("2020-01-01"),
        "city": "unseen",
    }
    plain["income"] = frame["income"].mean()  # missing must also differ from the mean
    rows = pd.DataFrame([plain] * 4).astype(object)
    rows.loc[1, column], rows.loc[2, column], rows.loc[3, "city"] = value, None, "another"
    points = embed(embedder, rows)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(points[one] - points[other]) > 1e-3
    assert np.array_equal(points[0], points[3])


def test_masked_is_not_missing():
    network = EmbedderNetwork([3, 6], 1, 16, 4, 0.0)
    network.initialize(torch.Generator().manual_seed(0))
    values, codes = torch.zeros(1, 1), torch.tensor([[1, 4]])
    plain = network(values, codes)
    for column in range(2):
        mask = torch.zeros(1, 2, dtype=torch.bool)
        mask[0, column] = True
        assert (network(values, codes, mask) - plain).norm() > 1e-3
    # Masked cells do not influence the output.
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert torch.equal(network(values, codes, mask), network(values + 3, codes - 1, mask))


def test_masks_are_uniform_in_number_and_place():
    for columns in (2, 7):
        mask = draw_mask(20_000, columns, torch.Generator().manual_seed(0)).numpy()
        counts = np.bincount(mask.sum(axis=1), minlength=columns + 1)
        assert counts[0] == counts[columns] == 0
        expected = 20_000 / (columns - 1)
        assert np.abs(counts[1:columns] - expected).max() < 5 * math.sqrt(expected)
        assert np.abs(mask.mean(axis=0) - 0.5).max() < 0.02
    assert not draw_mask(10, 1, torch.Generator()).any(), "one column is not masked"


def test_loss_and_accuracy_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(9, 4)) for _ in range(2))
    second[:5] += 2 * first[:5]
    similar = np.exp([[1 - cosine(one, other) for other in second] for one in first]) ** (1 / 0.1)
    loss = -np.log(similar.diagonal() / similar.sum(axis=1)).mean()
    right = np.mean([row.argmax() == place for place, row in enumerate(similar)])
    unit = [
        torch.nn.functional.normalize(torch.from_numpy(view), dim=1) for view in (first, second)
    ]
    logits = view_logits(*unit, temperature=0.1)
    assert contrastive_loss(logits).item() == pytest.approx(loss, rel=1e-12)
    assert contrastive_accuracy(logits).item() == pytest.approx(right) and 0 < right < 1


def test_early_stopping_stops_and_keeps_the_best_weights(tmp_path):
    """Rows without structure can only be memorized, so the validation loss soon rises."""
    noise = pd.DataFrame(np.random.default_rng(0).normal(size=(150, 4)), columns=list("abcd"))
    settings = replace(SMALL, learning_rate=0.02, max_epochs=200, window=3, patience=4)
    stopped = trained(noise, settings)
    losses = [epoch.validation_loss for epoch in stopped.history]
    means = [np.mean(losses[max(0, end - 3) : end]) for end in range(1, len(losses) + 1)]
    assert len(losses) < 200
    assert len(losses) == int(np.argmin(means)) + 1 + 4
    best = int(np.argmin(losses)) + 1
    assert best < len(losses)
    found, kept = stopped.description, stopped.history[best - 1]
    assert (found["epochs"], found["kept_epoch"]) == (len(losses), best)
    figures = [found[name] for name in ("train_loss", "validation_loss", "validation_accuracy")]
    assert figures == pytest.approx(
        [kept.train_loss, kept.validation_loss, kept.validation_accuracy], abs=5e-5
    )
    assert found["settings"] == asdict(settings) | {"dims": 10}
    cut = trained(noise, replace(settings, max_epochs=best))
    assert saved_bytes(stopped, tmp_path / "a")[1] == saved_bytes(cut, tmp_path / "b")[1]


@pytest.mark.parametrize(("max_steps", "epochs"), [(1, 1), (3, 1), (4, 2), (9, 3)])
def test_training_ends_with_its_budget_of_steps(max_steps, epochs, monkeypatch):
    """270 training rows make three batches. The last epoch is cut short and still evaluated; each
    step is reported.
    """
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)
    heard: list[str] = []
    progress = Lines(heard.append)
    embedder = trained(
        mixed(300), replace(SMALL, max_steps=max_steps, max_epochs=300), progress=progress
    )
    assert len(embedder.history) == epochs
    assert len(heard) == max_steps and f": {max_steps} of {max_steps}" in heard[-1]
    assert all(math.isfinite(epoch.validation_loss) for epoch in embedder.history)
    more = trained(mixed(300), replace(SMALL, max_steps=max_steps + 1, max_epochs=300))
    assert (
        more.history[: epochs - 1] == embedder.history[: epochs - 1]
        and more.fingerprint() != embedder.fingerprint()
    )


def test_a_large_table_is_learnt_from_a_part_of_its_rows_that_their_order_does_not_decide(tmp_path):
    frame, settings = mixed(2000), replace(SMALL, max_rows=100, batch_size=1024)
    whole = trained(frame, replace(settings, max_rows=2000))
    part = trained(frame, settings)
    assert part.history != whole.history and part.embed(as_table(frame, part.schema)).shape == (
        2000,
        10,
    )
    shuffled = trained([frame.sample(frac=1, random_state=1).reset_index(drop=True)], settings)
    assert saved_bytes(part, tmp_path / "a")[1] == saved_bytes(shuffled, tmp_path / "b")[1]


def test_the_default_preset_has_a_budget_and_what_is_given_comes_first():
    default, paper = EmbedderSettings(), EmbedderSettings(preset="paper", max_steps=7)
    assert (default.width, default.max_steps, default.max_rows) == (256, 80, 50_000)
    assert (paper.width, paper.max_steps, paper.max_rows) == (1024, 7, None)


def test_paper_preset_is_that_of_the_paper():
    settings = EmbedderSettings(preset="paper")
    assert (settings.width, settings.dropout, settings.temperature, settings.batch_size) == (
        1024,
        0.1,
        0.1,
        1024,
    )
    assert (settings.max_steps, settings.max_rows) == (None, None)
    assert (settings.learning_rate, settings.max_epochs, settings.window, settings.patience) == (
        1e-3,
        300,
        20,
        10,
    )
    paper = trained(mixed(30), replace(settings, max_epochs=1))
    assert [layer.out_features for layer in paper.network.layers] == [1024] * 3


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_dimensions_are_those_of_the_paper(preset):
    settings = EmbedderSettings(preset=preset)
    # columns of Adult, Texas and Census (5.1), and their dimensions (5.2)
    published = {15: 10, 28: 20, 37: 30}
    assert {columns: settings.dims_for(columns) for columns in published} == published
    found = [settings.dims_for(columns) for columns in range(1, 300)]
    assert found == sorted(found) and set(found) == {10, 20, 30}
    # appendix C
    assert all(dims < columns for columns, dims in enumerate(found, start=1) if columns > 10)
    assert replace(settings, dims=7).dims_for(28) == 7


def wide(columns):
    rng = np.random.default_rng(0)
    data = {f"n{i}": rng.normal(size=200) for i in range(columns - columns // 2)}
    data |= {f"c{i}": rng.integers(0, 4, 200).astype(str) for i in range(columns // 2)}
    frame = pd.DataFrame(data)
    return frame.mask(rng.random(frame.shape) < 0.05)


SHAPES = {
    "one row": mixed(1, missing=0),
    "too few rows to hold one out": mixed(19, missing=0),
    "enough of them": mixed(20, missing=0),
    "one column": wide(1),
    "a hundred columns": wide(100),
    "constants and an outlier": mixed(300, missing=0).assign(
        same="s", one=1.0, income=[1e12, *range(299)]
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tables_of_every_shape(shape, tmp_path):
    frame = SHAPES[shape]
    embedder = trained(frame)
    points = embed(embedder, frame)
    assert (
        points.shape == (len(frame), 30 if frame.shape[1] == 100 else 10)
        and points.dtype == np.float32
    )
    assert np.abs(np.linalg.norm(points.astype(np.float64), axis=1) - 1).max() < 1e-6
    assert len(np.unique(points, axis=0)) > len(frame) / 4
    assert (embedder.history[0].validation_loss is None) == (len(frame) < 20)
    assert (embedder.description["validation_accuracy"] is None) == (len(frame) < 20)
    embedder.save(tmp_path)
    assert Embedder.load(tmp_path).history == embedder.history


def test_what_cannot_be_embedded_or_trained_on_is_told(embedder, frame):
    none = as_table(frame, embedder.schema).take(slice(0))
    assert embedder.embed(none).shape == (0, 10)
    with pytest.raises(InputError, match="no rows"):
        train_embedder([none, none], embedder.schema, SMALL, seed=0)
    with pytest.raises(InputError, match="'plan'"):
        embedder.embed(as_table(frame.drop(columns="plan")))
    with pytest.raises(InputError, match="learning_rate"):
        trained(frame.head(300), replace(SMALL, learning_rate=1e30, max_epochs=20))


def test_out_of_memory_while_embedding_changes_nothing(embedder, frame, monkeypatch):
    points, whole = embed(embedder, frame), module._embed_block

    def tight(network, rows, start, on, size):
        if size > 100:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return whole(network, rows, start, on, size)

    monkeypatch.setattr(module, "_embed_block", tight)
    assert np.abs(embed(embedder, frame) - points).max() < 1e-6


def test_out_of_memory_while_training_halves_the_batch(monkeypatch):
    learn, sizes = Trainer._learn, []

    def tight(self, rows):
        sizes.append(len(rows))
        if len(rows) > 70:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return learn(self, rows)

    monkeypatch.setattr(Trainer, "_learn", tight)
    history = trained(mixed(300), replace(SMALL, max_epochs=2)).history
    assert sizes[:2] == [90, 45] and max(sizes[1:]) == 45 and sum(sizes[1:]) == 2 * 270
    assert np.isfinite(history[-1].train_loss)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_trains_and_embeds_as_the_cpu_does(frame, embedder):
    settings = replace(SMALL, max_epochs=30)
    on_gpu = trained(frame, settings, device="cuda")
    assert on_gpu.history == trained(frame, settings, device="cuda").history
    assert on_gpu.history[-1].validation_loss == pytest.approx(
        embedder.history[-1].validation_loss, abs=0.3
    )
    table = as_table(frame, on_gpu.schema)
    assert np.array_equal(on_gpu.embed(table, device="cuda"), on_gpu.embed(table))
