"""The command ``generate`` and its list: options, files, exit status, and messages without private
values.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.options import settings
from privacy_assets.generators import generator_info
from privacy_assets.generators.base import Training
from privacy_assets.generators.copies import Copy, FittedCopy
from privacy_assets.infra.devices import Device
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import without_rare_values
from tests.cli.conftest import Command, Said
from tests.cli.people import SECRET, people
from tests.helpers.marks import weekly_except
from tests.shipped import GENERATORS

Generate = Callable[..., Said]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    people().to_parquet(tmp_path / "in" / "people.parquet", index=False)
    return tmp_path / "in" / "people.parquet"


@pytest.fixture
def generate(data: Path, command: Command) -> Generate:
    def call(
        out: Path | str,
        *more: str,
        table: Path | str = data,
        generator: str = "copy",
        status: int = 0,
    ) -> Said:
        asked = [f"--data={table}", f"--generator={generator}", f"--out={out}", "--subject=person"]
        return command("generate", *asked, *more, status=status)

    return call


@pytest.fixture
def resample(command: Command) -> Generate:
    def call(model: Path, out: Path, *more: str, status: int = 0) -> Said:
        return command("generate", f"--from-model={model}", f"--out={out}", *more, status=status)

    return call


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def assert_same_rows(made: pd.DataFrame, real: pd.DataFrame, **how: bool) -> None:
    first, second = (
        frame.sort_values(["score", "age"], ignore_index=True) for frame in (made, real)
    )
    pd.testing.assert_frame_equal(first, second, **how)


# --- the list
# --------------------------------------------------------------------------------------------------


def test_the_list_is_that_of_the_registry(command: Command) -> None:
    shown = command("generate", "--list").out
    rows = [line.split() for line in shown.splitlines()[2:] if not line.startswith(" ")]
    assert [row[0] for row in rows] == list(GENERATORS)
    text = " ".join(shown.split())
    for info, row in zip(generator_info(), rows, strict=True):
        assert row[1] == (
            "no" if not info.available else "elsewhere" if info.separate_environment else "yes"
        )
        assert (row[2] == "yes") == GENERATORS[info.name].repeatable and info.license in row
        assert all(part in text for part in (info.summary, *info.settings))
        assert all(f"{name} (required)" in text for name in info.required)
    assert "Needs a separate environment, whose Python is a setting: python -m venv rtf" in text
    by_name = {
        one["name"]: one
        for one in json.loads(command("generate", "--list", "--json").out)["generators"]
    }
    assert list(by_name) == list(GENERATORS)
    assert (
        by_name["synthpop"]["settings"]
        == {"min_samples_leaf": 100, "shrinkage": 30.0, "smoothing": True, "visit": None}
        and by_name["synthpop"]["repeatable"]
    )
    assert by_name["command"]["required"] == ["command"] and not by_name["command"]["repeatable"]


def test_what_is_missing_is_listed_and_told(
    generate: Generate,
    resample: Generate,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate(tmp_path / "s.parquet", f"--model={tmp_path / 'm'}")
    monkeypatch.setattr(Copy, "modules", ("no_such_module",))
    monkeypatch.setattr(Copy, "extra", "ctgan")
    install = "pip install 'privacy-assets[ctgan]'"
    text = " ".join(command("generate", "--list").out.split())
    assert "copy no yes Apache-2.0 ctgan" in text and f"Needs no_such_module: {install}" in text
    (found,) = [
        one
        for one in json.loads(command("generate", "--list", "--json").out)["generators"]
        if one["name"] == "copy"
    ]
    assert (found["available"], found["missing"], found["install"]) == (
        False,
        ["no_such_module"],
        install,
    )
    assert f"Fix: {install}" in generate(tmp_path / "t.parquet", status=2).err
    assert (
        f"Fix: {install}"
        in resample(tmp_path / "m", tmp_path / "t.parquet", "--rows=5", status=2).err
    )
    assert not (tmp_path / "t.parquet").exists()


# --- output files
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generator", "suffix"),
    weekly_except(
        [("baynet", "parquet"), ("synthpop", "pq"), ("noisy_copy", "csv")],
        ("synthpop", "pq"),
        ("noisy_copy", "csv"),
    ),
)
def test_a_table_like_the_real_one_with_the_same_bytes_for_the_same_seed_also_from_a_saved_model(
    generate: Generate, resample: Generate, data: Path, tmp_path: Path, generator: str, suffix: str
) -> None:
    first, again, other, later, more = (tmp_path / f"{name}.{suffix}" for name in "abcde")
    model = tmp_path / "model"
    said = generate(first, "--seed=0", f"--model={model}", "--rows=99", generator=generator)
    assert (
        f"training {generator} on 240 rows of 10 columns" in said.err
        and "wrote 99 rows" in said.err
    )
    assert said.out == "" and SECRET not in said.err
    generate(again, "--rows=99", generator=generator)
    generate(other, "--seed=1", "--rows=99", generator=generator)
    said = resample(model, later, "--rows=99")
    assert "training" not in said.err and "--train TRAIN --holdout HOLDOUT" in said.err
    resample(model, more, "--rows=500", "--seed=7")
    assert first.read_bytes() == again.read_bytes() == later.read_bytes() != other.read_bytes()
    assert (
        stat.S_IMODE(first.stat().st_mode) == 0o600 and stat.S_IMODE(model.stat().st_mode) == 0o700
    )
    assert listed(tmp_path) == sorted(["in", "model", *(f"{name}.{suffix}" for name in "abcde")])
    real, made = pd.read_parquet(data).drop(columns="person"), read_table(more)
    assert len(made) == 500 and list(made.columns) == list(real.columns)
    if suffix != "csv":
        assert made.dtypes.to_dict() == real.dtypes.to_dict()
        assert list(made.columns[made.isna().any()]) == list(real.columns[real.isna().any()])


@pytest.mark.slow
def test_it_says_that_nothing_is_judged_and_the_command_that_does_it_runs(
    generate: Generate, tmp_path: Path, command: Command
) -> None:
    out, holdout = tmp_path / "my table.parquet", tmp_path / "h.parquet"
    people().assign(person=lambda frame: frame["person"] + 1000, wage=1.5).to_parquet(
        holdout, index=False
    )
    told = generate(out, "--quiet", "--kind=visits=numeric", "--drop=seen").err
    assert len(pd.read_parquet(out)) == len(people())
    budget, *_, judge, holdout_is = told.splitlines()
    assert budget == "privacy budget: none (no formal guarantee)"
    assert "rows of other people of the same population" in holdout_is
    assert f"NOT EVALUATED: {out} can repeat private rows" in told and "training" not in told
    words = [str(holdout) if word == "HOLDOUT" else word for word in shlex.split(judge)]
    assert words[:2] == ["privacy-assets", "evaluate"]
    assert words[-4:] == ["--kind", "visits=numeric", "--drop", "seen"]
    judged = command(*words[1:], "--metrics=dcr", "--no-embedder", "--quiet", status=1)
    assert "dcr.privacy_score" in judged.out


@pytest.mark.slow
def test_csv_comes_and_goes_with_its_kinds_and_values(command: Command, tmp_path: Path) -> None:
    """Otherwise a copied row would not be recognized as a copy."""
    source, out = tmp_path / "p.csv", tmp_path / "s.csv"
    # no value is rare
    real = pd.concat([people().drop(columns=["person", "seen"])] * 6, ignore_index=True)
    real.assign(stay=pd.Timestamp("2020-02-03 04:05:06.5")).to_csv(source, index=False)
    command("generate", f"--data={source}", "--generator=copy", f"--out={out}", "--seed=4")
    read, made = read_table(source), read_table(out)
    assert (
        infer_schema(made) == infer_schema(read) and made.dtypes.to_dict() == read.dtypes.to_dict()
    )
    assert ".0" not in "".join(pd.read_csv(out, dtype=str)["visits"].dropna())
    assert_same_rows(made, read)
    real.to_parquet(tmp_path / "p.parquet")
    command(
        "generate",
        f"--data={tmp_path / 'p.parquet'}",
        "--generator=copy",
        f"--out={out}",
        "--seed=4",
    )
    schema = infer_schema(real)
    parts = [
        Table.of(frame[schema.names], schema, where="it").frame()
        for frame in (read_table(out), real)
    ]
    assert_same_rows(*parts, check_exact=True)


@pytest.mark.parametrize("text", ["007", "NA", "V27", "-"])
def test_codes_are_written_as_they_came(command: Command, tmp_path: Path, text: str) -> None:
    source = tmp_path / "p.parquet"
    pd.DataFrame({"age": range(20), "code": [text] * 20}).to_parquet(source)
    for name in ("s.csv", "s.parquet"):
        command("generate", f"--data={source}", "--generator=copy", f"--out={tmp_path / name}")
        assert set(read_table(tmp_path / name)["code"]) == {text}


@pytest.mark.parametrize("rows", [1, 2])
def test_a_table_of_one_or_two_rows(command: Command, tmp_path: Path, rows: int) -> None:
    pd.DataFrame({"age": [30, 41], "town": ["a", None]}).head(rows).to_csv(
        tmp_path / "p.csv", index=False
    )
    command(
        "generate",
        f"--data={tmp_path / 'p.csv'}",
        "--generator=synthpop",
        f"--out={tmp_path / 's.csv'}",
    )
    assert len(read_table(tmp_path / "s.csv")) == rows


# --- options
# --------------------------------------------------------------------------------------------------


def test_settings_kinds_and_the_subject_arrive(
    generate: Generate, data: Path, tmp_path: Path
) -> None:
    model, out = tmp_path / "m", tmp_path / "s.parquet"
    more = ["--set=noise=0", "--set=redraw=0.25", "--kind=age=categorical", f"--model={model}"]
    generate(out, *more, generator="noisy_copy")
    manifest = json.loads((model / "generator.json").read_text())
    assert manifest["settings"] == {"noise": 0, "redraw": 0.25}
    kinds = {column["name"]: column["kind"] for column in manifest["schema"]}
    assert kinds["age"] == "categorical" and "person" not in kinds
    real, made = pd.read_parquet(data), pd.read_parquet(out)
    assert made["age"].dtype == "Int8", "rare ages are missing"
    np.testing.assert_allclose(
        made["wage"].quantile([0.1, 0.5, 0.9]), real["wage"].quantile([0.1, 0.5, 0.9]), rtol=0.1
    )


def test_numbers_with_an_exponent_are_numbers() -> None:
    pairs = ["a=1e-5", "b=[1e3, x, 2]", "c={k: 2.5E+1}", "d='1e'", "e=1.5", "f=e5"]
    expected = {"a": 1e-5, "b": [1000.0, "x", 2], "c": {"k": 25.0}, "d": "1e", "e": 1.5, "f": "e5"}
    assert settings(pairs) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("modules", "device"), [((), "cpu"), (("torch",), "best")])
def test_device_checkpoint_seed_and_progress_reach_the_training(
    generate: Generate,
    tmp_path: Path,
    modules: tuple[str, ...],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Training] = []

    def fit(self: Copy, train: Table, training: Training) -> FittedCopy:
        given.append(training)
        training.progress("epoch 1 of 1")
        return FittedCopy(self, train)

    monkeypatch.setattr(Copy, "_fit", fit)
    monkeypatch.setattr(Copy, "modules", modules)
    monkeypatch.setattr(
        "privacy_assets.infra.devices.accelerators", lambda: [Device("best", "card")]
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the folder of the device lease
    folder = tmp_path / "checkpoint"
    said = generate(
        tmp_path / "s.csv", "--seed=5", f"--checkpoint={folder}", "--kind=grade=categorical"
    )
    (training,) = given
    assert (training.device, training.checkpoint, training.seed) == (device, folder, 5)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and "  epoch 1 of 1\n" in said.err
    assert (
        "epoch" not in generate(tmp_path / "s.csv", "--quiet").err and given[1].checkpoint is None
    )


def test_the_privacy_budget_is_told_also_of_a_saved_model(
    generate: Generate, resample: Generate, tmp_path: Path
) -> None:
    model, out = tmp_path / "m", tmp_path / "s.parquet"
    said = generate(out, "--set=epsilon=0.5", f"--model={model}", "--quiet", generator="privbayes")
    first, again = (
        told.err.splitlines()[0] for told in (said, resample(model, out, "--rows=10", "--quiet"))
    )
    assert first == again and first.startswith("privacy budget")
    assert "epsilon 0.5" in first and "values of town" in first and SECRET not in first


@pytest.mark.slow
def test_a_function_of_ones_own_promises_no_same_rows(
    generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def make(train, rows, seed):\n    return train.sample(rows, replace=True,"
        " random_state=seed)\n"
    )
    (tmp_path / "own_generator.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    said = generate(tmp_path / "s.parquet", "--rows=7", generator="own_generator:make")
    assert len(pd.read_parquet(tmp_path / "s.parquet")) == 7
    assert "callable does not guarantee the same rows for the same seed" in said.err


def test_values_of_few_people_are_replaced_before_training(
    command: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    contact = np.where(
        rng.random(600) < 0.05, [f"name{i}@x.org" for i in range(600)], rng.choice(list("abc"), 600)
    )
    pay = np.round(rng.lognormal(10, 1, 600), 2)
    frame = pd.DataFrame({"contact": contact, "x": rng.integers(0, 9, 600), "pay": pay})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "made.csv"
    model = tmp_path / "model"
    said = command(
        "generate",
        f"--data={tmp_path / 'rows.csv'}",
        "--generator=synthpop",
        f"--out={out}",
        f"--model={model}",
    )
    made = pd.read_csv(out)
    assert set(made["contact"]) == {"a", "b", "c", "other"}
    assert "Categories that fewer than 5 people have are published as" in said.err
    tables = real_tables({"train": frame}, {"train": "train"})
    shared = set(without_rare_values(tables, 5)["train"]["pay"].cells)
    assert made["pay"].nunique() > 20 and set(made["pay"]) <= shared
    command(
        "generate",
        f"--from-model={model}",
        "--rows=300",
        f"--out={tmp_path / 'again.csv'}",
        "--seed=5",
    )
    assert set(pd.read_csv(tmp_path / "again.csv")["pay"]) <= shared


# --- rejected input
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_table_cannot_take_the_place_of_what_it_is_made_from(
    generate: Generate, resample: Generate, data: Path, tmp_path: Path
) -> None:
    model, before = tmp_path / "m", data.read_bytes()
    generate(tmp_path / "s.parquet", f"--model={model}")
    (tmp_path / "link.parquet").symlink_to(data)
    os.link(data, tmp_path / "hard.parquet")
    (tmp_path / "folder").symlink_to(data.parent)
    for table, out in [
        (data, data),
        (data, tmp_path / "folder" / data.name),
        (data, tmp_path / "hard.parquet"),
        (data, tmp_path / "link.parquet"),
        (tmp_path / "link.parquet", data),
        (data.parent, data.parent / "new.csv"),
        (data.parent, tmp_path / "folder" / "new.pq"),
        (f"{data.parent}/*.parquet", data.parent / "new.parquet"),
    ]:
        assert "a part of --data" in generate(out, table=table, status=2).err
    generate(data.parent / "new.csv", table=f"{data.parent}/*.parquet")
    for folder in ("--model", "--checkpoint"):
        generate(tmp_path / "new" / "s.csv", f"{folder}={tmp_path / 'new'}", status=2)
    resample(model, model / "train.parquet", "--rows=5", status=2)
    assert data.read_bytes() == before and listed(data.parent) == ["new.csv", data.name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model={in}/people.parquet", "exists already"),
        ("--model={in}", "exists already"),
        ("--checkpoint={in}/people.parquet", "this is not a folder"),
        ("--checkpoint={in}/m --model={in}/m", "name the same folder"),
    ],
)
def test_a_model_needs_a_new_folder_and_a_checkpoint_one_of_its_own(
    generate: Generate, data: Path, tmp_path: Path, options: str, words: str
) -> None:
    more = options.replace("{in}", str(data.parent)).split()
    assert words in generate(tmp_path / "s.csv", *more, status=2).err
    assert listed(tmp_path) == ["in"] and listed(data.parent) == [data.name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            (f"--rows=5 {option}", f"{option.split('=')[0]} cannot be combined")
            for option in (
                "--generator=copy",
                "--set=a=1",
                "--subject=person",
                "--kind=a=numeric",
                "--device=cpu",
                "--checkpoint=c",
                "--model=n",
            )
        ),
        ("", "requires --rows"),
        ("--rows=2", "no fitted generator can be read"),
    ],
)
def test_a_saved_model_takes_rows_alone_and_must_be_there(
    resample: Generate, tmp_path: Path, options: str, words: str
) -> None:
    (tmp_path / "m").mkdir()
    assert words in resample(tmp_path / "m", tmp_path / "s.csv", *options.split(), status=2).err


# --- interruption and corruption
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "error", "status"),
    [
        ("privacy_assets.generators.copies.FittedCopy._sample", KeyboardInterrupt(), 130),
        ("privacy_assets.generators.copies.Copy._fit", RuntimeError(SECRET), 2),
        ("privacy_assets.tables.writing.parquet_bytes", KeyboardInterrupt(), 130),
        ("privacy_assets.infra.folders.os.fsync", KeyboardInterrupt(), 130),
        ("privacy_assets.infra.folders.os.replace", OSError(28, "No space left on device"), 2),
    ],
)
def test_what_is_interrupted_or_fails_leaves_the_old_file_and_nothing_else(
    generate: Generate,
    tmp_path: Path,
    place: str,
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise error

    out = tmp_path / "s.parquet"
    out.write_bytes(b"old")
    monkeypatch.setattr(place, stop)
    told = generate(out, status=status).err
    assert SECRET not in told and "wrote" not in told and "NOT EVALUATED" not in told
    assert out.read_bytes() == b"old" and listed(tmp_path) == ["in", "s.parquet"]
    assert (
        not isinstance(error, OSError)
        or "No space left on device). Fix: free space on this disk" in told
    )


def test_an_interrupted_model_is_not_there_and_a_saved_one_outlives_the_sampling(
    generate: Generate, resample: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    model, out = tmp_path / "m", tmp_path / "s.parquet"
    for method, left in (("_save", ["in"]), ("_sample", ["in", "m"])):
        with monkeypatch.context() as patched:
            patched.setattr(FittedCopy, method, stop)
            generate(out, f"--model={model}", status=130)
        assert listed(tmp_path) == left
    resample(model, out, "--rows=3")


def test_a_folder_that_cannot_be_written_to_is_told_before_the_training(
    generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("privacy_assets.cli.generate.tempfile.TemporaryFile", denied)
    told = generate(tmp_path / "s.csv", status=2).err
    assert f"{tmp_path / 's.csv'}: cannot be written (Permission denied)" in told
