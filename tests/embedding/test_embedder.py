"""The contrastive embedder."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from privacy_assets.embedding import embedder as module
from privacy_assets.embedding.embedder import Embedder, train_embedder
from privacy_assets.embedding.network import (
    EmbedderNetwork,
    contrastive_accuracy,
    contrastive_loss,
    draw_mask,
    view_logits,
)
from privacy_assets.embedding.settings import EmbedderSettings
from privacy_assets.embedding.training import Trainer
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.encoding import Encoder
from privacy_assets.tables.schema import infer_schema
from tests.tables import as_table, as_tables

SMALL = EmbedderSettings(width=32, batch=128, max_epochs=4)


def mixed(rows, seed=0, missing=0.1):
    """Rows of every kind of column that hang together through one hidden number."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    frame = pd.DataFrame(
        {
            "income": np.exp(hidden + 0.1 * rng.normal(size=rows)),
            "visits": pd.array(np.round(5 + 2 * hidden).astype(int), dtype="Int64"),
            "plan": np.array(list("abcdef"), dtype=object)[np.digitize(hidden, [-1.5, -0.7, 0, 0.7, 1.5])],
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
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def frame():
    return mixed(1500)


@pytest.fixture(scope="module")
def embedder(frame):
    return trained(frame, replace(SMALL, max_epochs=30))


def test_shape_dtype_and_length(embedder, frame):
    points = embed(embedder, frame)
    assert points.shape == (1500, 10) and points.dtype == np.float32
    assert np.abs(np.linalg.norm(points.astype(np.float64), axis=1) - 1).max() < 1e-6


def test_same_seed_same_bytes_and_other_seed_other_bytes(tmp_path):
    frame = mixed(300)
    first = saved_bytes(trained(frame), tmp_path / "a")
    assert first == saved_bytes(trained(frame), tmp_path / "b")
    assert first != saved_bytes(trained(frame, seed=1), tmp_path / "c")


def test_rows_order_and_frame_do_not_matter(tmp_path):
    frame = mixed(300)
    frame = pd.concat([frame, frame.head(40)], ignore_index=True)
    shuffled = frame.sample(frac=1, random_state=3).reset_index(drop=True)
    one = trained([frame.iloc[:200], frame.iloc[200:]])
    other = trained([shuffled.iloc[:50], shuffled.iloc[50:300], shuffled.iloc[300:]])
    assert saved_bytes(one, tmp_path / "a") == saved_bytes(other, tmp_path / "b")


def test_global_state_of_torch_is_left_alone(frame):
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embed(trained(frame.head(200)), frame)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    torch.rand(3)


def test_save_and_load(embedder, frame, tmp_path):
    embedder.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    assert np.array_equal(embed(loaded, frame), embed(embedder, frame))
    assert (loaded.schema, loaded.encoder, loaded.settings) == (embedder.schema, embedder.encoder, embedder.settings)
    assert (loaded.seed, loaded.history) == (embedder.seed, embedder.history)
    assert saved_bytes(embedder, tmp_path / "a") == saved_bytes(loaded, tmp_path / "b")


def test_save_and_load_without_held_out_rows(tmp_path):
    one = trained(mixed(10, missing=0))
    assert one.history[0].validation_loss is None
    one.save(tmp_path)
    assert Embedder.load(tmp_path).history == one.history


@pytest.mark.parametrize("damage", ["weights gone", "facts gone", "weights cut", "other schema", "not json"])
def test_damaged_folder_is_an_input_error(embedder, tmp_path, damage):
    embedder.save(tmp_path)
    weights, facts = tmp_path / "network.safetensors", tmp_path / "embedder.json"
    if damage == "weights gone":
        weights.unlink()
    elif damage == "facts gone":
        facts.unlink()
    elif damage == "weights cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "not json":
        facts.write_text("{")
    else:
        content = json.loads(facts.read_text())
        content["settings"]["width"] = 16
        facts.write_text(json.dumps(content))
    with pytest.raises(InputError, match="no embedder"):
        Embedder.load(tmp_path)


def test_encoder_survives_json(frame):
    table = as_table(frame)
    encoder = Encoder.fit([table], table.schema)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    assert np.array_equal(again.transform(table).codes, encoder.transform(table).codes)


def test_loss_falls_and_accuracy_rises_on_structured_rows(embedder):
    first, last = embedder.history[0], embedder.history[-1]
    assert last.train_loss < first.train_loss - 0.3
    assert last.validation_loss < first.validation_loss - 0.3
    assert last.validation_accuracy > 3 / 128
    assert [epoch.epoch for epoch in embedder.history] == list(range(1, len(embedder.history) + 1))


def test_like_rows_are_closer_than_random_ones(embedder):
    fresh = mixed(400, seed=9, missing=0)
    touched = fresh.copy()
    touched["income"] *= 1.02
    touched["city"] = "x"
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
    assert np.array_equal(embed(embedder, pd.concat([frame.tail(3), frame])), np.concatenate([points[-3:], points]))


@pytest.mark.parametrize("column", ["income", "visits", "plan", "member", "seen", "city"])
def test_a_missing_cell_is_a_value_of_its_own(embedder, column):
    rows = mixed(30, seed=4, missing=0)
    rows["income"] = np.mean(mixed(1500)["income"].dropna())  # missing must differ from the mean, too
    gone = rows.copy()
    gone[column] = gone[column].astype(object)
    gone[column] = None
    assert (np.linalg.norm(embed(embedder, rows) - embed(embedder, gone), axis=1) > 1e-4).all()


@pytest.mark.parametrize(
    ("column", "value"),
    [("income", 30.0), ("visits", 1), ("plan", "f"), ("member", False), ("seen", pd.Timestamp("2021-01-01"))],
)
def test_every_kind_of_column_counts(embedder, column, value):
    row = pd.DataFrame(
        {"income": [1.0], "visits": [5], "plan": ["c"], "member": [True], "seen": [pd.Timestamp("2020-01-01")]}
    ).assign(city="x")
    assert np.linalg.norm(embed(embedder, row) - embed(embedder, row.assign(**{column: value}))) > 1e-3


def test_unseen_categories_are_one_value_of_their_own(embedder):
    row = mixed(1, seed=2, missing=0)
    known = [embed(embedder, row.assign(plan=plan)) for plan in [*"abcdef", None]]
    unseen = embed(embedder, row.assign(plan="never"))
    assert min(np.linalg.norm(unseen - other) for other in known) > 1e-4
    assert np.array_equal(unseen, embed(embedder, row.assign(plan="ever")))


def test_masked_is_not_missing():
    network = EmbedderNetwork([3, 6], 1, 16, 4, 0.0)
    network.initialise(torch.Generator().manual_seed(0))
    values, codes = torch.zeros(1, 1), torch.tensor([[1, 4]])
    plain = network(values, codes)
    for column in range(2):
        mask = torch.zeros(1, 2, dtype=torch.bool)
        mask[0, column] = True
        assert (network(values, codes, mask) - plain).norm() > 1e-3
    # What is masked does not show through.
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert torch.equal(network(values, codes, mask), network(values + 3, codes - 1, mask))


@pytest.mark.parametrize("columns", [2, 3, 7])
def test_masks_are_uniform_in_number_and_place(columns):
    mask = draw_mask(20_000, columns, torch.Generator().manual_seed(0)).numpy()
    counts = np.bincount(mask.sum(axis=1), minlength=columns + 1)
    assert counts[0] == counts[columns] == 0
    expected = 20_000 / (columns - 1)
    assert np.abs(counts[1:columns] - expected).max() < 5 * math.sqrt(expected)
    assert np.abs(mask.mean(axis=0) - 0.5).max() < 0.02


def test_one_column_is_not_masked():
    assert not draw_mask(10, 1, torch.Generator()).any()


def test_loss_and_accuracy_equal_a_loop():
    """Oracle: plain Python over pairs, from the definition."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(9, 4)) for _ in range(2))
    second[:5] += 2 * first[:5]
    loss = right = 0.0
    for i in range(9):
        similar = []
        for j in range(9):
            dot = sum(first[i][k] * second[j][k] for k in range(4))
            lengths = math.sqrt(sum(v * v for v in first[i])) * math.sqrt(sum(v * v for v in second[j]))
            similar.append(math.exp(dot / lengths / 0.1))
        loss -= math.log(similar[i] / sum(similar)) / 9
        right += (max(similar) == similar[i]) / 9
    unit = [torch.nn.functional.normalize(torch.from_numpy(view), dim=1) for view in (first, second)]
    logits = view_logits(*unit, temperature=0.1)
    assert contrastive_loss(logits).item() == pytest.approx(loss, rel=1e-12)
    assert contrastive_accuracy(logits).item() == pytest.approx(right)
    assert 0 < right < 1


def test_max_epochs_is_honoured_and_progress_told(frame):
    heard = []
    history = trained(frame.head(100), replace(SMALL, max_epochs=3), progress=heard.append).history
    assert len(history) == len(heard) == 3
    assert "epoch 2 of at most 3" in heard[1] and "accuracy" in heard[1]


def test_early_stopping_stops_and_keeps_the_best_weights(tmp_path):
    """Rows without structure can only be learned by heart: the validation loss soon rises."""
    noise = pd.DataFrame(np.random.default_rng(0).normal(size=(150, 4)), columns=list("abcd"))
    settings = replace(SMALL, learning_rate=0.02, max_epochs=200, window=3, patience=4)
    stopped = trained(noise, settings)
    losses = [epoch.validation_loss for epoch in stopped.history]
    means = [np.mean(losses[max(0, end - 3) : end]) for end in range(1, len(losses) + 1)]
    assert len(losses) < 200
    assert len(losses) == int(np.argmin(means)) + 1 + 4
    best = int(np.argmin(losses)) + 1
    assert best < len(losses)
    cut = trained(noise, replace(settings, max_epochs=best))
    assert saved_bytes(stopped, tmp_path / "a")[1] == saved_bytes(cut, tmp_path / "b")[1]


def test_paper_preset_is_that_of_the_paper():
    settings = EmbedderSettings(preset="paper")
    assert (settings.width, settings.dropout, settings.temperature, settings.batch) == (1024, 0.1, 0.1, 1024)
    assert (settings.learning_rate, settings.max_epochs, settings.window, settings.patience) == (1e-3, 300, 20, 10)
    paper = trained(mixed(30), replace(settings, max_epochs=1))
    assert [layer.out_features for layer in paper.network.layers] == [1024] * 3
    assert paper.network.last.out_features == 10


def test_dims_grow_with_columns():
    assert [EmbedderSettings().dims_for(columns) for columns in (1, 15, 97, 193)] == [10, 10, 20, 30]
    assert EmbedderSettings(dims=7).dims_for(193) == 7


@pytest.mark.parametrize(
    ("setting", "value"),
    [("preset", "papr"), ("width", 0), ("width", 2.5), ("dims", 0), ("batch", 1), ("dropout", 1.0), ("dropout", -0.1),
     ("temperature", 0), ("learning_rate", math.nan), ("max_epochs", True), ("patience", 0), ("window", "20")],
)  # fmt: skip
def test_wrong_settings_name_themselves(setting, value):
    with pytest.raises(ConfigError, match=setting):
        EmbedderSettings(**{setting: value})


@pytest.mark.parametrize("columns", [1, 2, 4, 100])
def test_narrow_and_wide_tables(columns):
    rng = np.random.default_rng(0)
    data = {f"n{i}": rng.normal(size=200) for i in range(columns - columns // 2)}
    data |= {f"c{i}": rng.integers(0, 4, 200).astype(str) for i in range(columns // 2)}
    frame = pd.DataFrame(data)
    frame = frame.mask(rng.random(frame.shape) < 0.05)
    embedder = trained(frame)
    points = embed(embedder, frame)
    assert points.shape == (200, 20 if columns == 100 else 10) and np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) > 50


@pytest.mark.parametrize("rows", [1, 2, 19, 20, 129])
def test_few_rows(rows):
    frame = mixed(rows, missing=0)
    points = embed(trained(frame), frame)
    assert points.shape == (rows, 10) and np.isfinite(points).all()


def test_no_rows(embedder, frame):
    none = as_table(frame, embedder.schema).take(slice(0))
    assert embedder.embed(none).shape == (0, 10)
    with pytest.raises(InputError, match="no rows"):
        train_embedder([none, none], embedder.schema, SMALL, seed=0)


def test_constant_columns_and_one_outlier():
    frame = mixed(300, missing=0).assign(same="s", one=1.0)
    frame.loc[0, "income"] = 1e12
    points = embed(trained(frame), frame)
    assert np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) > 250


def test_missing_column_is_named(embedder, frame):
    with pytest.raises(InputError, match="'plan'"):
        embedder.embed(as_table(frame.drop(columns="plan")))


def test_diverging_loss_is_an_error():
    with pytest.raises(InputError, match="learning_rate"):
        trained(mixed(300), replace(SMALL, learning_rate=1e30, max_epochs=20))


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
    frame = mixed(300)
    history = trained(frame, replace(SMALL, max_epochs=2)).history
    assert sizes[0] == 90 and sizes[1] == 45
    assert max(sizes[1:]) == 45
    assert sum(sizes[1:]) == 2 * 270
    assert np.isfinite(history[-1].train_loss)


@pytest.mark.slow
def test_real_rows_nearest_neighbours_are_alike(adult):
    """On Adult, rows that are near in the embedding agree in more columns than random ones."""
    frame = adult.head(6000)
    embedder = trained(frame, EmbedderSettings(max_epochs=8))
    points = embed(embedder, frame.head(1000))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    texts = frame.head(1000).select_dtypes(exclude="number").astype(str).to_numpy()
    near = (texts == texts[distances.argmin(axis=1)]).mean()
    random = (texts == np.roll(texts, 1, axis=0)).mean()
    assert near > random + 0.2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_trains_and_embeds_as_the_cpu_does(frame):
    settings = replace(SMALL, max_epochs=30)
    on_gpu = trained(frame, settings, device="cuda")
    again = trained(frame, settings, device="cuda")
    on_cpu = trained(frame, settings)
    assert on_gpu.history == again.history
    assert on_gpu.history[-1].validation_loss == pytest.approx(on_cpu.history[-1].validation_loss, abs=0.3)
    table = as_table(frame, on_gpu.schema)
    assert np.array_equal(on_gpu.embed(table, device="cuda"), on_gpu.embed(table))
