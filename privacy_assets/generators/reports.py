"""What a program may say while it runs: messages of Dagster Pipes, of which only numbers under known names are kept.

A message is a line of JSON (https://docs.dagster.io, "Dagster Pipes"). Of a program that reads private rows nothing
else can be shown: its texts, log lines, errors, asset checks and the names that it makes up may quote them.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy_assets.compute.progress import Progress, advance

MESSAGES = "DAGSTER_PIPES_MESSAGES"
_VERSION = "__dagster_pipes_version"
_BLOCK, _LINE, _ALL, _EPOCHS = 1 << 20, 1 << 16, 1 << 26, 10_000
_SAID = "the program: epochs"
_NAME = re.compile(r"[a-z]+(_[a-z]+){0,4}")
# A name is made of these words alone: no category or person can be called so by accident.
_WORDS = frozenset(
    [
        "epoch", "epochs", "step", "steps", "batch", "batches", "round", "rounds", "iteration", "iterations",
        "tokens", "parameters", "layers", "train", "training", "valid", "validation", "val", "eval", "test",
        "generator", "discriminator", "critic", "encoder", "decoder", "student", "teacher", "loss", "losses",
        "perplexity", "accuracy", "auc", "error", "precision", "recall", "reconstruction", "kl", "divergence",
        "entropy", "likelihood", "learning", "rate", "lr", "grad", "gradient", "norm", "penalty", "clip", "noise",
        "sigma", "epsilon", "delta", "sensitivity", "threshold", "temperature", "best", "last", "weighted", "per",
        "second", "seconds", "minutes", "runtime", "patience", "overfitting", "ratio",
    ]
)  # fmt: skip


def numbers(given: object) -> dict[str, float]:
    """What may be shown of a mapping: finite numbers below 1e15, to six digits, under names made of known words."""
    found: dict[str, float] = {}
    for name, cell in given.items() if isinstance(given, Mapping) else ():
        value = cell.get("raw_value") if isinstance(cell, Mapping) else cell  # metadata of Pipes carries its type
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
            continue
        if isinstance(name, str) and _NAME.fullmatch(name) and _WORDS.issuperset(name.split("_")):
            found[name] = float(f"{value:.6g}")
    return found


class Reports:
    """The file that a program writes its messages to, and what they said.

    ``rows`` is the training curve: one mapping an epoch, in order, from custom messages that have an ``epoch``;
    ``metadata`` is the last value of every other number; ``methods`` are the kinds of message that came. ``progress``
    is told each epoch, and of how many where the message has ``epochs``. At most 64 MiB are read.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        path.touch(mode=0o600)
        self.path, self.progress = path, progress
        self.rows: list[dict[str, float]] = []
        self.metadata: dict[str, float] = {}
        self.methods: set[str] = set()
        self._stream = path.open("rb")  # held open: what the program does to the name of the file changes nothing
        self._rest, self._read = b"", 0

    def close(self) -> None:
        """Read no more."""
        self._stream.close()
        advance(self.progress, _SAID, None)

    def begin(self) -> None:
        """Forget the curve and the facts of an earlier program."""
        self.rows, self.metadata = [], {}

    def read(self) -> bool:
        """Take what was written since, a MiB at most; False when there was nothing."""
        block = self._stream.read(_BLOCK) if self._read < _ALL else b""
        self._read += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > _LINE:
            self._rest = b""
        return bool(block)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line) if len(line) <= _LINE else None
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict) or _VERSION not in message or not isinstance(message.get("method"), str):
            return
        method, params = message["method"], message.get("params")
        self.methods.add(method)
        params = params if isinstance(params, dict) else {}
        if method == "report_custom_message":
            self._note(numbers(params.get("payload")))
        elif method == "report_asset_materialization":
            self.metadata |= numbers(params.get("metadata"))

    def _note(self, found: dict[str, float]) -> None:
        epochs = found.pop("epochs", None)
        if "epoch" not in found:
            self.metadata |= found
            return
        last = self.rows[-1]["epoch"] if self.rows else None
        if last == found["epoch"]:
            self.rows[-1] |= found
            return
        if len(self.rows) >= _EPOCHS:
            self.rows.pop()
        self.rows.append({"epoch": found["epoch"], **found})
        advance(self.progress, _SAID, found["epoch"], epochs)


@dataclass(frozen=True, slots=True)
class Channel:
    """``variables`` tell a program where to write messages, ``reports`` reads them."""

    variables: Mapping[str, str]
    reports: Reports


_OPEN: ContextVar[Channel | None] = ContextVar("channel of programs", default=None)


@contextmanager
def use_channel(channel: Channel) -> Iterator[None]:
    """Programs that start in this block report by ``channel``: an orchestrator's, with variables of its own."""
    token = _OPEN.set(channel)
    try:
        yield
    finally:
        _OPEN.reset(token)


@contextmanager
def channel_in(folder: Path, progress: Progress) -> Iterator[Channel]:
    """The channel in use, else one of its own in ``folder``.

    The latter tells where messages go but gives no context: a program with ``dagster_pipes`` then does as it does
    outside of Dagster, and one that writes the messages itself is heard all the same.
    """
    outer = _OPEN.get()
    if outer is not None:
        outer.reports.begin()
        yield outer
        return
    with closing(Reports(folder / "messages", progress)) as reports:
        yield Channel({MESSAGES: encoded({"path": str(reports.path)})}, reports)


def encoded(params: Mapping[str, Any]) -> str:
    """Parameters as Dagster Pipes puts them into a variable: base64 of compressed JSON."""
    return base64.b64encode(zlib.compress(json.dumps(params).encode())).decode()
