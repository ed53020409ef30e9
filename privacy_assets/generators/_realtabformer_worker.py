"""Train REaLTabFormer, or draw rows from it: run by path in an environment of its own, where this package is not.

``fit TRAIN MODEL SEED DEVICE SETTINGS`` and ``sample MODEL OUT ROWS SEED BATCH``. Tables are those of ``DigitCoding``:
whole numbers from 0 on, and texts. A model is ``rtf_config.json``, ``weights.safetensors`` and ``largest.json``.
"""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS, LARGEST = "rtf_config.json", "weights.safetensors", "largest.json"
NAMES = {"loss": "loss", "eval_loss": "validation_loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
OVERFIT_EPOCHS = 100  # at most (Palacios 4.2)
TRIES = 20  # rounds of drawing more rows than are missing


def report(method: str, params: dict[str, Any]) -> None:
    """Send a message of Dagster Pipes, where somebody listens."""
    variable = os.environ.get("DAGSTER_PIPES_MESSAGES")
    if variable is None:
        return
    path = json.loads(zlib.decompress(base64.b64decode(variable))).get("path")
    if path is not None:
        message = {"__dagster_pipes_version": "0.1", "method": method, "params": params}
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(message) + "\n")


def choose_device(device: str) -> str:
    """Let the libraries see ``device`` alone, and name it as they do."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(number or 0)] if seen else number or "0"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return kind


def set_seeds(seed: int) -> None:
    """Seed every generator of random numbers that the libraries use."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (that is what the library draws from)
    torch.manual_seed(seed)


def read_rows(path: str) -> Any:
    """The training table as the library takes it: whole numbers, and texts as objects."""
    import pandas as pd

    frame = pd.read_parquet(path)
    return frame.astype({name: "int64" if name in numeric(frame) else "object" for name in frame})


def numeric(frame: Any) -> list[str]:
    """Columns of numbers."""
    return list(frame.select_dtypes("number").columns)


def fit(train: str, model: str, seed: str, device: str, settings: str) -> None:
    """Train on the table ``train``, whose last "held" rows judge, and write into the folder ``model``."""
    kind, chosen = choose_device(device), json.loads(settings)
    rows, number = read_rows(train), int(seed) % 2**31
    built, losses = trained(rows, chosen, kind, number)
    if (chosen["overfit"] or 1) > 1:
        again = {**chosen, "epochs": OVERFIT_EPOCHS, "dropout": 0.0, "patience": 0}
        built, _ = trained(rows, again, kind, number, losses)
    save(built, Path(model), {name: int(rows[name].max()) for name in numeric(rows)})


def trained(
    rows: Any, chosen: dict[str, Any], kind: str, number: int, before: list[float] | None = None
) -> tuple[Any, list[float]]:
    """The trained library object and its losses on the rows held.

    With the losses of a training ``before``, it goes on until its own is "overfit" times the least of them.
    """
    from transformers import GPT2Config

    set_seeds(number)
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), chosen["dropout"])
    size = {"n_layer": chosen["layers"], "n_embd": chosen["width"], "n_head": chosen["width"] // 64}
    critic, held = chosen["n_critic"], chosen["held"]
    stops = held > 0 and chosen["patience"] > 0
    losses: list[float] = []
    built = reporting()(
        held,
        losses,
        before,
        chosen["overfit"],
        model_type="tabular",
        tabular_config=GPT2Config(**size, **drop),
        checkpoints_dir=os.path.join(os.environ["TMPDIR"], "checkpoints"),
        epochs=chosen["epochs"],
        batch_size=chosen["batch_size"],
        random_state=number or 2**31,  # the library takes 0 for no seed at all
        train_size=1 - held / len(rows),
        early_stopping_patience=chosen["patience"],
        eval_strategy="epoch" if held else "no",
        logging_strategy="epoch",
        save_strategy="epoch" if stops or critic else "no",
        save_only_model=not critic,  # the critic's rounds go on from the optimiser's state
        save_total_limit=1,
        load_best_model_at_end=stops,
        seed=number,
        use_cpu=kind == "cpu",
        report_to=[],
    )
    built.fit(rows, device=kind, n_critic=critic, gen_kwargs={}, save_full_every_epoch=0)
    return built, losses


def reporting() -> type:
    """The library's class, which holds out the last rows, and whose trainers report every epoch."""
    from realtabformer import REaLTabFormer
    from transformers import TrainerCallback

    class Telling(TrainerCallback):
        def __init__(self, epochs: int, losses: list[float], before: list[float] | None, ratio: float | None) -> None:
            self.losses, self.best, self.ratio = losses, min(before) if before else None, ratio
            self.past = len(before or ())  # the second training's epochs are counted on from the first's
            self.epochs = epochs + self.past

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            measured = {ours: logs[theirs] for theirs, ours in NAMES.items() if theirs in (logs or {})}
            if measured and state.epoch is not None:
                if self.best is not None and "validation_loss" in measured:
                    measured["overfitting_ratio"] = measured["validation_loss"] / self.best
                payload = {"epoch": round(state.epoch, 2) + self.past, "epochs": self.epochs, **measured}
                report("report_custom_message", {"payload": payload})

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            self.losses.append(metrics["eval_loss"])
            if self.best is not None and self.ratio is not None:
                loss, lowest = self.losses[-1], min(self.losses)
                control.should_training_stop = loss > lowest and loss >= self.ratio * self.best

    class Reporting(REaLTabFormer):
        def __init__(self, held: int, *watched: Any, **more: Any) -> None:
            super().__init__(**more)
            self.held, self.watched = held, watched

        def _split_train_eval_dataset(self, dataset: Any) -> Any:
            if not self.held:
                return super()._split_train_eval_dataset(dataset)
            self.training_args_kwargs.update(metric_for_best_model="eval_loss", greater_is_better=False)
            end = len(dataset) - self.held
            return {
                "train_dataset": dataset.select(range(end)),
                "eval_dataset": dataset.select(range(end, len(dataset))),
            }

        def _build_tabular_trainer(self, *args: Any, **kwargs: Any) -> Any:
            trainer = super()._build_tabular_trainer(*args, **kwargs)
            trainer.add_callback(Telling(self.epochs, *self.watched))
            return trainer

    return Reporting


def save(built: Any, model: Path, largest: dict[str, int]) -> None:
    """Write what the library saves, its weights without pickle."""
    from safetensors.torch import save_file

    place = Path(os.environ["TMPDIR"]) / "saved"
    built.full_save_dir, built.experiment_id = "", "model"
    built.save(place)
    (model / CONFIG).write_text((place / "model" / CONFIG).read_text())
    # Copies: some tensors are one and the same, which the format has no word for.
    save_file({name: tensor.contiguous().clone() for name, tensor in built.model.state_dict().items()}, model / WEIGHTS)
    (model / LARGEST).write_text(json.dumps(largest))


def load(model: Path) -> Any:
    """Inverse of :func:`save`."""
    import torch
    from realtabformer import REaLTabFormer
    from safetensors.torch import load_file

    place = Path(os.environ["TMPDIR"]) / "loaded"
    place.mkdir()
    (place / CONFIG).write_text((model / CONFIG).read_text())
    torch.save(load_file(model / WEIGHTS), place / "rtf_model.pt")
    return REaLTabFormer.load_from_dir(place)


def sample(model: str, out: str, rows: str, seed: str, batch: str) -> None:
    """Draw rows; those with a number beyond the largest of the training table are drawn again."""
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
    """Before the libraries read it: nothing comes from a network, and no cache of private rows outlives the run."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1"
    os.environ.update(HF_HOME=os.environ["TMPDIR"], TOKENIZERS_PARALLELISM="false")


def main() -> None:
    """Do what the first argument says."""
    stay_offline()
    report("opened", {"extras": {}})
    {"fit": fit, "sample": sample}[sys.argv[1]](*sys.argv[2:])
    report("closed", {})


if __name__ == "__main__":
    main()
