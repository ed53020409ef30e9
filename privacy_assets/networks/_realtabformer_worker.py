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
from collections.abc import Collection
from pathlib import Path
from typing import Any

CONFIG = "rtf_config.json"
WEIGHTS = "weights.safetensors"
LARGEST = "largest.json"
HISTORY = "history.json"
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
    device_type, _, number = device.partition(":")
    number = number or "0"
    if device_type != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return device_type
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        number = visible.split(",")[int(number)]
    os.environ["CUDA_VISIBLE_DEVICES"] = number
    return device_type


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
    return with_library_dtypes(frame, numeric(frame))


def with_library_dtypes(frame: Any, integers: Collection[str]) -> Any:
    """Convert the columns of a frame.

    Args:
        frame: Frame.
        integers: Names of the columns that become int64; the others become object.
    """
    dtypes = {}
    for name in frame:
        dtypes[name] = "int64" if name in integers else "object"
    return frame.astype(dtypes)


def numeric(frame: Any) -> list[str]:
    """Return the names of numeric columns."""
    return list(frame.select_dtypes("number").columns)


def fit(train: str, model: str, seed: str, device: str, settings: str) -> None:
    """Train, and write the model.

    Args:
        train: File of the training table, with the validation rows last.
        model: Folder of the model.
        seed: Non-negative integer.
        device: Torch device.
        settings: JSON mapping of the generator's settings, and "held", the number of validation
            rows.
    """
    device_type = choose_device(device)
    first_settings = json.loads(settings)
    rows = read_rows(train)
    library_seed = int(seed) % 2**31
    curve: dict[float, dict[str, float]] = {}
    trained, losses = train_model(rows, first_settings, device_type, library_seed, curve)
    if (first_settings["overfit"] or 1) > 1:
        second_settings = {
            **first_settings,
            "epochs": OVERFIT_EPOCHS,
            "dropout": 0.0,
            "patience": 0,
        }
        trained, second_losses = train_model(
            rows, second_settings, device_type, library_seed, curve, losses
        )
        add_ratios(curve, len(losses), min(losses + second_losses))
    largest = {name: int(rows[name].max()) for name in numeric(rows)}
    save(trained, Path(model), largest)
    epochs = list(curve.values())
    if len(epochs) > EPOCHS:
        epochs = [*epochs[: EPOCHS - 1], epochs[-1]]
    (Path(model) / HISTORY).write_text(json.dumps(epochs))


def add_ratios(curve: dict[float, dict[str, float]], n_first: int, least_loss: float) -> None:
    """Add the overfitting ratio to the epochs of the second training.

    Args:
        curve: Measurements by epoch.
        n_first: Number of epochs of the first training.
        least_loss: Least validation loss of both trainings.
    """
    for epoch, measurements in curve.items():
        if epoch > n_first and "validation_loss" in measurements:
            measurements["overfitting_ratio"] = measurements["validation_loss"] / least_loss


def train_model(
    rows: Any,
    settings: dict[str, Any],
    device_type: str,
    seed: int,
    curve: dict[float, dict[str, float]],
    first_losses: list[float] | None = None,
) -> tuple[Any, list[float]]:
    """Train the library's object.

    Args:
        rows: Output of :func:`read_rows`.
        settings: Settings of the generator, and "held", the number of validation rows.
        device_type: Type of the torch device.
        seed: Seed, below 2^31.
        curve: Measurements by epoch, to which those of each epoch are added.
        first_losses: Losses of the first training, if this is the second one. It stops when the
            loss exceeds its own minimum and reaches "overfit" times the least loss of both
            trainings.

    Returns:
        The trained object, and its losses on the validation rows.
    """
    from transformers import GPT2Config

    set_seeds(seed)
    dropout = settings["dropout"]
    width = settings["width"]
    n_critic = settings["n_critic"]
    n_validation = settings["held"]
    stops_early = n_validation > 0 and settings["patience"] > 0
    losses: list[float] = []
    trained = recording()(
        n_validation,
        curve,
        losses,
        first_losses,
        settings["overfit"],
        model_type="tabular",
        tabular_config=GPT2Config(
            n_layer=settings["layers"],
            n_embd=width,
            n_head=width // 64,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        ),
        checkpoints_dir=os.path.join(os.environ["TMPDIR"], "checkpoints"),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        random_state=seed or 2**31,  # the library treats 0 as no seed
        train_size=1 - n_validation / len(rows),
        early_stopping_patience=settings["patience"],
        eval_strategy="epoch" if n_validation else "no",
        logging_strategy="epoch",
        save_strategy="epoch" if stops_early or n_critic else "no",
        save_only_model=not n_critic,  # the critic's rounds resume from the optimizer state
        save_total_limit=1,
        load_best_model_at_end=stops_early,
        seed=seed,
        use_cpu=device_type == "cpu",
        report_to=[],
    )
    trained.fit(rows, device=device_type, n_critic=n_critic, gen_kwargs={}, save_full_every_epoch=0)
    return trained, losses


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
            first_losses: list[float] | None,
            ratio: float | None,
        ) -> None:
            self.curve = curve
            self.losses = losses
            self.first_losses = first_losses or []
            self.ratio = ratio

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            names = [name for name in NAMES if name in (logs or {})]
            if not names or state.epoch is None:
                return
            # the second training continues the epoch numbers of the first
            epoch = float(round(state.epoch, 2) + len(self.first_losses))
            measurements = self.curve.setdefault(epoch, {"epoch": epoch})
            for name in names:
                value = float(logs[name])
                if math.isfinite(value):
                    measurements[NAMES[name]] = value

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
        ) -> None:
            self.losses.append(metrics["eval_loss"])
            if not self.first_losses or self.ratio is None:
                return
            loss = self.losses[-1]
            least_loss = min(self.losses + self.first_losses)
            is_overfitted = loss >= self.ratio * least_loss
            control.should_training_stop = loss > min(self.losses) and is_overfitted

    class Recording(REaLTabFormer):
        def __init__(self, n_validation: int, *recorded: Any, **settings: Any) -> None:
            super().__init__(**settings)
            self.n_validation = n_validation
            self.recorded = recorded

        def _split_train_eval_dataset(self, dataset: Any) -> Any:
            if not self.n_validation:
                return super()._split_train_eval_dataset(dataset)
            self.training_args_kwargs.update(
                metric_for_best_model="eval_loss", greater_is_better=False
            )
            n_train = len(dataset) - self.n_validation
            return {
                "train_dataset": dataset.select(range(n_train)),
                "eval_dataset": dataset.select(range(n_train, len(dataset))),
            }

        def _build_tabular_trainer(self, *args: Any, **kwargs: Any) -> Any:
            trainer = super()._build_tabular_trainer(*args, **kwargs)
            trainer.add_callback(Recorder(*self.recorded))
            return trainer

    return Recording


def save(trained: Any, model: Path, largest: dict[str, int]) -> None:
    """Write the configuration, the weights without pickle, and the largest numbers.

    Args:
        trained: The library's object.
        model: Folder of the model.
        largest: Largest number of each numeric column.
    """
    from safetensors.torch import save_file

    folder = Path(os.environ["TMPDIR"]) / "saved"
    trained.full_save_dir = ""
    trained.experiment_id = "model"
    trained.save(folder)
    (model / CONFIG).write_text((folder / "model" / CONFIG).read_text())
    tensors = {}
    for name, tensor in trained.model.state_dict().items():
        tensors[name] = tensor.contiguous().clone()  # the format does not support shared tensors
    save_file(tensors, model / WEIGHTS)
    (model / LARGEST).write_text(json.dumps(largest))


def load(model: Path) -> Any:
    """Load a model written by :func:`save`."""
    import torch
    from realtabformer import REaLTabFormer
    from safetensors.torch import load_file

    folder = Path(os.environ["TMPDIR"]) / "loaded"
    folder.mkdir()
    (folder / CONFIG).write_text((model / CONFIG).read_text())
    torch.save(load_file(model / WEIGHTS), folder / "rtf_model.pt")
    return REaLTabFormer.load_from_dir(folder)


def sample(model: str, out: str, rows: str, seed: str, batch: str) -> None:
    """Draw rows. Rows with a number above the maximum in the training table are redrawn.

    Args:
        model: Folder of the model.
        out: File of the sample.
        rows: Number of rows.
        seed: Non-negative integer.
        batch: Number of rows drawn at a time.
    """
    choose_device("cpu")
    import pandas as pd

    trained = load(Path(model))
    largest = json.loads((Path(model) / LARGEST).read_text())
    set_seeds(int(seed))
    trained.random_state = int(seed) % 2**32
    n_rows = int(rows)
    n_missing = n_rows
    frames: list[Any] = []
    for _ in range(TRIES):
        if n_missing < 1:
            break
        n_samples = n_missing + n_missing // 2 + 8
        gen_batch = min(int(batch), n_samples)
        frame = trained.sample(n_samples=n_samples, gen_batch=gen_batch, device="cpu")
        for name, maximum in largest.items():
            frame = frame[frame[name].astype("float64").between(0, maximum)]
        frames.append(frame)
        n_missing -= len(frame)
    sampled = pd.concat(frames, ignore_index=True).head(n_rows)
    with_library_dtypes(sampled, largest).to_parquet(out)


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
