"""Train REaLTabFormer or sample from it; run by path in a separate environment, in which this
package is not installed.

``fit TRAIN MODEL SEED DEVICE SETTINGS`` and ``sample MODEL OUT ROWS SEED BATCH``. Tables are the
output of ``DigitCoding``: non-negative integers, and strings. A model consists of
``rtf_config.json``, ``weights.safetensors``, ``largest.json`` and the training curve
``history.json``.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS, LARGEST, HISTORY = (
    "rtf_config.json",
    "weights.safetensors",
    "largest.json",
    "history.json",
)
NAMES = {
    "loss": "loss",
    "eval_loss": "validation_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
}
OVERFIT_EPOCHS = 100  # maximum (Palacios 4.2)
EPOCHS = 10_000  # maximum length of the training curve
TRIES = 20  # maximum number of rounds, each drawing more rows than are missing


def choose_device(device: str) -> str:
    """Make ``device`` the only one that the libraries see, and return its type."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            seen.split(",")[int(number or 0)] if seen else number or "0"
        )
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return kind


def set_seeds(seed: int) -> None:
    """Seed all random number generators that the libraries use."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the library uses this state)
    torch.manual_seed(seed)


def read_rows(path: str) -> Any:
    """Read the training table in the library's dtypes: int64, and object for strings."""
    import pandas as pd

    frame = pd.read_parquet(path)
    return frame.astype({name: "int64" if name in numeric(frame) else "object" for name in frame})


def numeric(frame: Any) -> list[str]:
    """Return the names of numeric columns."""
    return list(frame.select_dtypes("number").columns)


def fit(train: str, model: str, seed: str, device: str, settings: str) -> None:
    """Train on the table ``train`` and write to the folder ``model``. The last "held" rows are for
    validation.
    """
    kind, chosen = choose_device(device), json.loads(settings)
    rows, number = read_rows(train), int(seed) % 2**31
    curve: dict[float, dict[str, float]] = {}
    built, losses = trained(rows, chosen, kind, number, curve)
    if (chosen["overfit"] or 1) > 1:
        again = {**chosen, "epochs": OVERFIT_EPOCHS, "dropout": 0.0, "patience": 0}
        built, second = trained(rows, again, kind, number, curve, losses)
        add_ratios(curve, len(losses), min(losses + second))
    save(built, Path(model), {name: int(rows[name].max()) for name in numeric(rows)})
    epochs = list(curve.values())
    (Path(model) / HISTORY).write_text(
        json.dumps([*epochs[: EPOCHS - 1], *epochs[EPOCHS - 1 :][-1:]])
    )


def add_ratios(curve: dict[float, dict[str, float]], first: int, least: float) -> None:
    """Add the ratio of the validation loss to ``least`` to the epochs after the ``first`` ones."""
    for epoch, measured in curve.items():
        if epoch > first and "validation_loss" in measured:
            measured["overfitting_ratio"] = measured["validation_loss"] / least


def trained(
    rows: Any,
    chosen: dict[str, Any],
    kind: str,
    number: int,
    curve: dict[float, dict[str, float]],
    before: list[float] | None = None,
) -> tuple[Any, list[float]]:
    """Return the trained library object and its losses on the validation rows, and add each epoch
    to ``curve``.

    Given the losses of a training ``before``, training stops when the loss exceeds its own minimum
    and reaches "overfit" times the least loss of both trainings.
    """
    from transformers import GPT2Config

    set_seeds(number)
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), chosen["dropout"])
    size = {"n_layer": chosen["layers"], "n_embd": chosen["width"], "n_head": chosen["width"] // 64}
    critic, held = chosen["n_critic"], chosen["held"]
    stops = held > 0 and chosen["patience"] > 0
    losses: list[float] = []
    built = recording()(
        held,
        curve,
        losses,
        before,
        chosen["overfit"],
        model_type="tabular",
        tabular_config=GPT2Config(**size, **drop),
        checkpoints_dir=os.path.join(os.environ["TMPDIR"], "checkpoints"),
        epochs=chosen["epochs"],
        batch_size=chosen["batch_size"],
        random_state=number or 2**31,  # the library treats 0 as no seed
        train_size=1 - held / len(rows),
        early_stopping_patience=chosen["patience"],
        eval_strategy="epoch" if held else "no",
        logging_strategy="epoch",
        save_strategy="epoch" if stops or critic else "no",
        save_only_model=not critic,  # the critic's rounds resume from the optimizer state
        save_total_limit=1,
        load_best_model_at_end=stops,
        seed=number,
        use_cpu=kind == "cpu",
        report_to=[],
    )
    built.fit(rows, device=kind, n_critic=critic, gen_kwargs={}, save_full_every_epoch=0)
    return built, losses


def recording() -> type:
    """Return a subclass of the library's class that uses the last rows for validation and records
    every epoch.
    """
    from realtabformer import REaLTabFormer
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def __init__(
            self,
            curve: dict[float, dict[str, float]],
            losses: list[float],
            before: list[float] | None,
            ratio: float | None,
        ) -> None:
            self.curve, self.losses, self.before, self.ratio = curve, losses, before or [], ratio
            # the second training continues the epoch numbers of the first
            self.past = len(self.before)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            measured = {
                ours: float(logs[theirs])
                for theirs, ours in NAMES.items()
                if theirs in (logs or {})
            }
            if measured and state.epoch is not None:
                epoch = float(round(state.epoch, 2) + self.past)
                finite = {name: value for name, value in measured.items() if math.isfinite(value)}
                self.curve.setdefault(epoch, {"epoch": epoch}).update(finite)

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
        ) -> None:
            self.losses.append(metrics["eval_loss"])
            if self.before and self.ratio is not None:
                loss, lowest = self.losses[-1], min(self.losses)
                control.should_training_stop = loss > lowest and loss >= self.ratio * min(
                    lowest, *self.before
                )

    class Recording(REaLTabFormer):
        def __init__(self, held: int, *watched: Any, **more: Any) -> None:
            super().__init__(**more)
            self.held, self.watched = held, watched

        def _split_train_eval_dataset(self, dataset: Any) -> Any:
            if not self.held:
                return super()._split_train_eval_dataset(dataset)
            self.training_args_kwargs.update(
                metric_for_best_model="eval_loss", greater_is_better=False
            )
            end = len(dataset) - self.held
            return {
                "train_dataset": dataset.select(range(end)),
                "eval_dataset": dataset.select(range(end, len(dataset))),
            }

        def _build_tabular_trainer(self, *args: Any, **kwargs: Any) -> Any:
            trainer = super()._build_tabular_trainer(*args, **kwargs)
            trainer.add_callback(Recorder(*self.watched))
            return trainer

    return Recording


def save(built: Any, model: Path, largest: dict[str, int]) -> None:
    """Write the configuration, the weights without pickle, and the largest number of each
    column.
    """
    from safetensors.torch import save_file

    place = Path(os.environ["TMPDIR"]) / "saved"
    built.full_save_dir, built.experiment_id = "", "model"
    built.save(place)
    (model / CONFIG).write_text((place / "model" / CONFIG).read_text())
    # Copied, because the format does not support shared tensors.
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in built.model.state_dict().items()},
        model / WEIGHTS,
    )
    (model / LARGEST).write_text(json.dumps(largest))


def load(model: Path) -> Any:
    """Load a model written by :func:`save`."""
    import torch
    from realtabformer import REaLTabFormer
    from safetensors.torch import load_file

    place = Path(os.environ["TMPDIR"]) / "loaded"
    place.mkdir()
    (place / CONFIG).write_text((model / CONFIG).read_text())
    torch.save(load_file(model / WEIGHTS), place / "rtf_model.pt")
    return REaLTabFormer.load_from_dir(place)


def sample(model: str, out: str, rows: str, seed: str, batch: str) -> None:
    """Draw rows. Rows with a number above the maximum in the training table are redrawn."""
    choose_device("cpu")
    import pandas as pd

    built, largest = load(Path(model)), json.loads((Path(model) / LARGEST).read_text())
    set_seeds(int(seed))
    built.random_state = int(seed) % 2**32
    wanted = int(rows)
    parts: list[Any] = []
    for _ in range(TRIES):
        missing = wanted - sum(len(part) for part in parts)
        if missing < 1:
            break
        count = missing + missing // 2 + 8
        drawn = built.sample(n_samples=count, gen_batch=min(int(batch), count), device="cpu")
        inside = [drawn[name].astype("float64").between(0, top) for name, top in largest.items()]
        parts.append(drawn[pd.concat(inside, axis=1).all(axis=1)] if inside else drawn)
    frame = pd.concat(parts, ignore_index=True).head(wanted)
    frame.astype({name: "int64" if name in largest else "object" for name in frame}).to_parquet(out)


def stay_offline() -> None:
    """Disable network access, and put caches into the temporary folder; called before the libraries
    are imported.
    """
    for name in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
    ):
        os.environ[name] = "1"
    os.environ.update(HF_HOME=os.environ["TMPDIR"], TOKENIZERS_PARALLELISM="false")


def main() -> None:
    """Run the command named by the first argument."""
    stay_offline()
    {"fit": fit, "sample": sample}[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
