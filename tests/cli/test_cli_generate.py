"""The commands ``generators`` and ``generate``: options, files, exit status, and messages without private values."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from privacy_assets.cli.main import main
from privacy_assets.cli.shared import settings
from privacy_assets.compute.devices import Device
from privacy_assets.generators import GENERATORS, generator_info
from privacy_assets.generators.base import Training
from privacy_assets.generators.copies import Copy, FittedCopy
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table

SECRET = "Zebulon-77123"
ROWS = 240


def people() -> pd.DataFrame:
    """Every dtype that a table can have, with missing values; two rows a person."""
    g = np.random.default_rng(0)
    born = pd.Series(pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 20_000, ROWS), unit="D"))
    frame = pd.DataFrame({"person": np.arange(ROWS) // 2, "age": g.integers(18, 90, ROWS).astype("int8")})
    frame = frame.assign(
        wage=g.lognormal(10, 1, ROWS),
        score=g.normal(size=ROWS).astype("float32"),
        visits=pd.array(g.integers(0, 9, ROWS), dtype="Int64"),
        town=g.choice(list("abcd"), ROWS),
        grade=pd.Categorical(g.choice(["low", "high"], ROWS)),
        smoker=g.random(ROWS) < 0.3,
        insured=pd.array(g.random(ROWS) < 0.5, dtype="boolean"),
        born=born.astype("datetime64[ns]"),
        seen=born.dt.tz_localize("Europe/Berlin") + pd.Timedelta("61s"),
    )
    for place, column in enumerate(["wage", "visits", "town", "grade", "insured", "born", "seen"]):
        frame.loc[place::7, column] = None
    frame.loc[17, "town"] = SECRET
    return frame


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "people.parquet"
    people().to_parquet(path, index=False)
    return path


def generate(data: Path | str, out: Path | str, *more: str, generator: str = "copy") -> int:
    person = [] if any(word.startswith("--subject") for word in more) else ["--subject=person"]
    return main(["generate", f"--data={data}", f"--generator={generator}", f"--out={out}", *person, *more])


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def resample(model: Path, out: Path, *more: str) -> int:
    return main(["generate", f"--from-model={model}", f"--out={out}", *more])


# --- generators -------------------------------------------------------------------------------------------------------


def test_the_list_is_that_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generators"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()[2:] if not line.startswith(" ")]
    assert [row[0] for row in rows] == list(GENERATORS)
    text = " ".join(shown.split())
    for info, row in zip(generator_info(), rows, strict=True):
        here = "no" if not info.available else "elsewhere" if info.apart else "yes"
        assert row[1] == here and info.licence in row
        assert (row[2] == "yes") == GENERATORS[info.name].repeatable and info.summary in text
        assert all(f"{name} (required)" in text for name in info.required) and all(
            name in text for name in info.settings
        )
    assert main(["generators", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["generators"]
    assert [one["name"] for one in listed] == list(GENERATORS)
    by_name = {one["name"]: one for one in listed}
    assert by_name["synthpop"]["settings"] == {"min_leaf": 50, "visit": None} and by_name["synthpop"]["repeatable"]
    assert by_name["command"]["required"] == ["command"] and not by_name["command"]["repeatable"]


def test_what_is_missing_is_listed_and_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generate(data, tmp_path / "s.parquet", f"--model={tmp_path / 'm'}") == 0
    monkeypatch.setattr(Copy, "modules", ("no_such_module",))
    monkeypatch.setattr(Copy, "extra", "ctgan")
    capsys.readouterr()
    assert main(["generators"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = next(place for place, words in enumerate(lines) if words[0] == "copy")
    assert lines[at][1:] == ["no", "yes", "Apache-2.0", "ctgan"]
    assert "Needs no_such_module: pip install 'privacy-assets[ctgan]'" in [" ".join(words) for words in lines[at:]]
    assert main(["generators", "--json"]) == 0
    (found,) = [one for one in json.loads(capsys.readouterr().out)["generators"] if one["name"] == "copy"]
    assert (found["available"], found["missing"]) == (False, ["no_such_module"])
    assert found["install"] == "pip install 'privacy-assets[ctgan]'"
    assert generate(data, tmp_path / "t.parquet") == 2
    assert resample(tmp_path / "m", tmp_path / "t.parquet", "--rows=5") == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all("Fix: pip install 'privacy-assets[ctgan]'" in line for line in told)
    assert not (tmp_path / "t.parquet").exists()


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", ["copy", "noisy_copy", "baynet", "synthpop"])
def test_columns_dtypes_and_missing_values_are_those_of_the_table(
    data: Path, tmp_path: Path, generator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.parquet"
    assert generate(data, out, "--rows=300", generator=generator) == 0
    real, made = pd.read_parquet(data).drop(columns="person"), pd.read_parquet(out)
    assert len(made) == 300 and list(made.columns) == list(real.columns)
    assert made.dtypes.to_dict() == real.dtypes.to_dict()
    assert list(made.columns[made.isna().any()]) == list(real.columns[real.isna().any()])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and listed(tmp_path) == ["in", out.name]
    printed = capsys.readouterr()
    assert printed.out == "" and SECRET not in printed.err
    assert f"training {generator} on 240 rows of 10 columns" in printed.err and "wrote 300 rows" in printed.err


def test_the_rows_are_as_many_as_those_of_the_table_by_default(data: Path, tmp_path: Path) -> None:
    assert generate(data, tmp_path / "s.parquet") == 0
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "s.parquet").sort_values(["wage", "score"], ignore_index=True),
        people().drop(columns="person").sort_values(["wage", "score"], ignore_index=True),
        check_dtype=False,  # of text
    )


def test_it_says_that_nothing_is_judged_and_the_command_that_does_it_runs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, holdout = tmp_path / "my table.parquet", tmp_path / "h.parquet"
    people().assign(person=lambda frame: frame["person"] + 1000, wage=1.5).to_parquet(holdout, index=False)
    assert generate(data, out, "--quiet", "--kind=visits=numeric") == 0
    told = capsys.readouterr().err
    budget, *_, command, holdout_is = told.splitlines()
    assert (
        budget == "privacy budget: none (no formal guarantee)" and "of people whom the generator has not" in holdout_is
    )
    assert f"NOT JUDGED: {out} can repeat private rows" in told and "training" not in told
    words = [str(holdout) if word == "HOLDOUT" else word for word in shlex.split(command)]
    assert words[:2] == ["privacy-assets", "evaluate"] and words[-2:] == ["--kind", "visits=numeric"]
    assert main([*words[1:], "--metrics=dcr", "--no-embedder", "--quiet"]) == 1
    assert "dcr.identical_excess" in capsys.readouterr().out


@pytest.mark.parametrize(("generator", "suffix"), [("baynet", "parquet"), ("synthpop", "pq"), ("noisy_copy", "csv")])
def test_the_same_seed_gives_the_same_bytes_also_from_a_saved_model(
    data: Path, tmp_path: Path, generator: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, other, later, more = (tmp_path / f"{name}.{suffix}" for name in "abcde")
    model = tmp_path / "model"
    assert generate(data, first, "--seed=0", f"--model={model}", "--rows=99", generator=generator) == 0
    assert generate(data, again, "--rows=99", generator=generator) == 0
    assert generate(data, other, "--seed=1", "--rows=99", generator=generator) == 0
    capsys.readouterr()
    assert resample(model, later, "--rows=99") == 0
    told = capsys.readouterr().err
    assert "training" not in told and "--train TRAIN --holdout HOLDOUT" in told
    assert resample(model, more, "--rows=500", "--seed=7") == 0
    assert first.read_bytes() == again.read_bytes() == later.read_bytes() != other.read_bytes()
    assert len(read_table(more)) == 500
    assert stat.S_IMODE(model.stat().st_mode) == 0o700
    assert listed(tmp_path) == sorted(["in", "model", *(f"{name}.{suffix}" for name in "abcde")])


def test_csv_comes_and_goes_with_its_kinds(tmp_path: Path) -> None:
    source, out = tmp_path / "p.csv", tmp_path / "s.csv"
    real = people().drop(columns=["person", "seen"])
    real.assign(stay=pd.Timestamp("2020-02-03 04:05:06.5")).to_csv(source, index=False)
    assert main(["generate", f"--data={source}", "--generator=copy", f"--out={out}", "--seed=4"]) == 0
    read, made = read_table(source), read_table(out)
    assert infer_schema(made) == infer_schema(read) and made.dtypes.to_dict() == read.dtypes.to_dict()
    assert ".0" not in "".join(pd.read_csv(out, dtype=str)["visits"].dropna())
    order = ["score", "age"]
    pd.testing.assert_frame_equal(
        made.sort_values(order, ignore_index=True), read.sort_values(order, ignore_index=True)
    )


def test_a_csv_made_from_parquet_holds_the_very_values(data: Path, tmp_path: Path) -> None:
    """Else a copied row would not be found to be one."""
    assert generate(data, tmp_path / "s.csv") == 0
    schema = infer_schema(people().drop(columns="person"))
    real, made = (
        Table.of(frame, schema, where="it").frame()
        for frame in (people()[schema.names], read_table(tmp_path / "s.csv"))
    )
    order = ["score", "age"]
    pd.testing.assert_frame_equal(
        made.sort_values(order, ignore_index=True), real.sort_values(order, ignore_index=True), check_exact=True
    )


@pytest.mark.parametrize("text", ["007", "NA", "true", "1.50", "2020-01-01T00:00:00"])
def test_a_csv_that_would_be_read_as_another_table_is_refused_before_the_training(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made = tmp_path / "p.parquet", []
    pd.DataFrame({"age": range(20), "code": [text] * 20}).to_parquet(source)
    monkeypatch.setattr(Copy, "_fit", lambda *_: made.append(1))
    assert main(["generate", f"--data={source}", "--generator=copy", f"--out={tmp_path / 's.csv'}"]) == 2
    told = capsys.readouterr().err
    assert "as CSV" in told and "write Parquet" in told and text not in told and made == []
    monkeypatch.undo()
    assert main(["generate", f"--data={source}", "--generator=copy", f"--out={tmp_path / 's.parquet'}"]) == 0
    assert set(pd.read_parquet(tmp_path / "s.parquet")["code"]) == {text}


# --- options ----------------------------------------------------------------------------------------------------------


def test_settings_kinds_and_the_subject_arrive(data: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "m", tmp_path / "s.parquet"
    more = ["--set=noise=0", "--set=redraw=0.25", "--kind=age=categorical", f"--model={model}"]
    assert generate(data, out, *more, generator="noisy_copy") == 0
    manifest = json.loads((model / "generator.json").read_text())
    assert manifest["settings"] == {"noise": 0, "redraw": 0.25}
    kinds = {column["name"]: column["kind"] for column in manifest["schema"]}
    assert kinds["age"] == "categorical" and "person" not in kinds
    real, made = pd.read_parquet(data), pd.read_parquet(out)
    assert made["age"].dtype == "int8"
    np.testing.assert_allclose(made["wage"].dropna().sort_values(), real["wage"].dropna().sort_values())
    assert "person" not in pq.read_schema(out).names


def test_numbers_with_an_exponent_are_numbers() -> None:
    pairs = ["a=1e-5", "b=[1e3, x, 2]", "c={k: 2.5E+1}", "d='1e'", "e=1.5", "f=e5"]
    expected = {"a": 1e-5, "b": [1000.0, "x", 2], "c": {"k": 25.0}, "d": "1e", "e": 1.5, "f": "e5"}
    assert settings(pairs) == expected


@pytest.mark.parametrize(
    ("modules", "more", "device"), [((), [], "cpu"), (("torch",), [], "best"), ((), ["--device=cpu"], "cpu")]
)
def test_device_checkpoint_seed_and_progress_reach_the_training(
    data: Path, tmp_path: Path, modules: tuple[str, ...], more: list[str], device: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given: list[Training] = []

    def fit(self: Copy, train: Table, training: Training) -> FittedCopy:
        given.append(training)
        training.progress("epoch 1 of 1")
        return FittedCopy(self, train)

    monkeypatch.setattr(Copy, "_fit", fit)
    monkeypatch.setattr(Copy, "modules", modules)
    monkeypatch.setattr("privacy_assets.compute.devices.accelerators", lambda: [Device("best", "card")])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where it is leased
    folder = tmp_path / "checkpoint"
    assert (
        generate(data, tmp_path / "s.csv", *more, "--seed=5", f"--checkpoint={folder}", "--kind=grade=categorical") == 0
    )
    (training,) = given
    assert (training.device, training.checkpoint, training.seed) == (device, folder, 5)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and "  epoch 1 of 1\n" in capsys.readouterr().err
    assert generate(data, tmp_path / "s.csv", *more, "--quiet") == 0
    assert "epoch" not in capsys.readouterr().err and given[1].checkpoint is None


def test_the_privacy_budget_is_told_also_of_a_saved_model(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "m", tmp_path / "s.parquet"
    assert generate(data, out, "--set=epsilon=0.5", f"--model={model}", "--quiet", generator="privbayes") == 0
    assert resample(model, out, "--rows=10", "--quiet") == 0
    first, again = [line for line in capsys.readouterr().err.splitlines() if line.startswith("privacy budget")]
    assert first == again and "epsilon 0.5" in first and "values of town" in first and SECRET not in first


def test_a_function_of_ones_own_promises_no_same_rows(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def make(train, rows, seed):\n    return train.sample(rows, replace=True, random_state=seed)\n"
    (tmp_path / "own_generator.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert generate(data, tmp_path / "s.parquet", "--rows=7", generator="own_generator:make") == 0
    told = capsys.readouterr().err
    assert len(pd.read_parquet(tmp_path / "s.parquet")) == 7
    assert "callable does not promise the same rows for the same seed" in told


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--data=absent.csv"], "absent.csv"), (["--generator=copyy"], "Did you mean 'copy'"),
     (["--generator=nowhere:made"], "cannot be imported"), (["--rows=0"], "at least one row"),
     (["--rows=-3"], "at least one row"), (["--seed=-1"], "seed"), (["--rows=many"], None),
     (["--set=noise"], "KEY=VALUE"),
     (["--generator=noisy_copy", "--set=noize=2"], "Did you mean 'noise'"),
     (["--generator=noisy_copy", "--set=noise=-1"], "noise must be"),
     (["--generator=noisy_copy", "--set=noise=much"], "noise must be a number"),
     (["--generator=command"], "needs the settings command"), (["--kind=town"], "COLUMN=KIND"),
     (["--kind=town=txt"], "unknown kind"), (["--kind=twon=categorical"], "Did you mean 'town'"),
     (["--kind=town=numeric"], "column 'town', row"), (["--subject=persn"], "subject column is missing"),
     (["--subject=town"], "column 'town', row 2: the subject is missing"), (["--device=tpu"], "tpu"),
     (["--out=s.txt"], "suffix"), (["--out=s"], "suffix"), (["--out=/no/such/folder/s.csv"], "folder does not exist"),
     (["--out=dir.csv"], "this is a folder"), (["--from-model=m"], None),
     (["--model=/no/such/folder/m"], "nothing can be written")],
)  # fmt: skip
def test_bad_input_exits_with_2_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    more: list[str], words: str | None,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.csv").mkdir()
    before = sorted(tmp_path.rglob("*"))
    if words is None:
        with pytest.raises(SystemExit) as caught:
            generate(data, "s.csv", *more)
        assert caught.value.code == 2
    else:
        assert generate(data, "s.csv", *more) == 2
        told = capsys.readouterr().err
        assert words in told and SECRET not in told and "Traceback" not in told
    assert sorted(tmp_path.rglob("*")) == before


def test_data_needs_a_generator(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", f"--data={data}", "--out=s.csv"]) == 2
    assert "`privacy-assets generators`" in capsys.readouterr().err


def test_the_table_cannot_take_the_place_of_what_it_is_made_from(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, before = tmp_path / "m", data.read_bytes()
    assert generate(data, tmp_path / "s.parquet", f"--model={model}") == 0
    (tmp_path / "link.parquet").symlink_to(data)
    os.link(data, tmp_path / "hard.parquet")
    (tmp_path / "folder").symlink_to(data.parent)
    for table, out in [
        (data, data), (data, tmp_path / "folder" / data.name), (data, tmp_path / "hard.parquet"),
        (data, tmp_path / "link.parquet"), (tmp_path / "link.parquet", data), (data.parent, data.parent / "new.csv"),
        (data.parent, tmp_path / "folder" / "new.pq"), (f"{data.parent}/*.parquet", data.parent / "new.parquet"),
    ]:  # fmt: skip
        capsys.readouterr()
        assert generate(table, out) == 2
        assert "a part of --data" in capsys.readouterr().err
    assert generate(f"{data.parent}/*.parquet", data.parent / "new.csv") == 0
    for folder in ("--model", "--checkpoint"):
        assert generate(data, tmp_path / "new" / "s.csv", f"{folder}={tmp_path / 'new'}") == 2
    assert resample(model, model / "train.parquet", "--rows=5") == 2
    assert data.read_bytes() == before and listed(data.parent) == ["new.csv", data.name]


def test_a_model_needs_a_new_folder_and_a_checkpoint_one_of_its_own(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.csv"
    assert generate(data, out, f"--model={data}") == 2
    assert generate(data, out, f"--model={data.parent}") == 2
    assert generate(data, out, f"--checkpoint={data}") == 2
    assert generate(data, out, f"--checkpoint={tmp_path / 'm'}", f"--model={tmp_path / 'm'}") == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" Fix")[0].rpartition(": ")[2] for line in told[:3]] == [
        "there is something already.", "there is something already.", "this is not a folder."]  # fmt: skip
    assert "two folders" in told[3] and listed(tmp_path) == ["in"]


@pytest.mark.parametrize(
    "option",
    [
        "--generator=copy",
        "--set=a=1",
        "--subject=person",
        "--kind=a=numeric",
        "--device=cpu",
        "--checkpoint=c",
        "--model=n",
    ],
)
def test_a_saved_model_takes_no_options_of_the_training(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resample(tmp_path, tmp_path.parent / "s.csv", "--rows=5", option) == 2
    assert f"{option.split('=')[0]} is for training" in capsys.readouterr().err


def test_a_saved_model_needs_rows_and_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").mkdir()
    assert resample(tmp_path / "m", tmp_path / "s.csv") == 2
    assert resample(tmp_path / "m", tmp_path / "s.csv", "--rows=2") == 2
    told = capsys.readouterr().err
    assert "needs --rows" in told and "no fitted generator can be read" in told


# --- interrupted and broken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "error", "status"),
    [("privacy_assets.generators.copies.FittedCopy._sample", KeyboardInterrupt(), 130),
     ("privacy_assets.generators.copies.FittedCopy._sample", ValueError(SECRET), 2),
     ("privacy_assets.generators.copies.Copy._fit", RuntimeError(SECRET), 2),
     ("privacy_assets.tables.writing.parquet_bytes", KeyboardInterrupt(), 130),
     ("privacy_assets.storage.files.os.fsync", KeyboardInterrupt(), 130),
     ("privacy_assets.storage.files.os.replace", OSError(28, "No space left on device"), 2)],
)  # fmt: skip
def test_what_is_interrupted_or_fails_leaves_the_old_file_and_nothing_else(
    data: Path, tmp_path: Path, place: str, error: BaseException, status: int,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(*_: object, **__: object) -> None:
        raise error

    out = tmp_path / "s.parquet"
    out.write_bytes(b"old")
    monkeypatch.setattr(place, stop)
    assert generate(data, out) == status
    told = capsys.readouterr().err
    assert SECRET not in told and "wrote" not in told and "NOT JUDGED" not in told
    assert out.read_bytes() == b"old" and listed(tmp_path) == ["in", "s.parquet"]
    if isinstance(error, OSError):
        assert f"{out}: cannot be written (No space left on device)" in told


def test_an_interrupted_model_is_not_there_and_a_saved_one_outlives_the_sampling(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    model, out = tmp_path / "m", tmp_path / "s.parquet"
    with monkeypatch.context() as patched:
        patched.setattr(FittedCopy, "_save", stop)
        assert generate(data, out, f"--model={model}") == 130
    assert listed(tmp_path) == ["in"]
    with monkeypatch.context() as patched:
        patched.setattr(FittedCopy, "_sample", stop)
        assert generate(data, out, f"--model={model}") == 130
    assert listed(tmp_path) == ["in", "m"]
    assert resample(model, out, "--rows=3") == 0


def test_a_folder_that_cannot_be_written_to_is_told_before_the_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("privacy_assets.cli.generate.tempfile.TemporaryFile", denied)
    assert generate(data, tmp_path / "s.csv") == 2
    assert f"{tmp_path / 's.csv'}: nothing can be written there (Permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [1, 2])
def test_a_table_of_one_or_two_rows(tmp_path: Path, rows: int) -> None:
    pd.DataFrame({"age": [30, 41], "town": ["a", None]}).head(rows).to_csv(tmp_path / "p.csv", index=False)
    status = main(["generate", f"--data={tmp_path / 'p.csv'}", "--generator=synthpop", f"--out={tmp_path / 's.csv'}"])
    assert status == 0 and len(read_table(tmp_path / "s.csv")) == rows


def test_help_says_what_is_private_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "not judged" in text and "holdout" in text and "`privacy-assets evaluate`" in text
    assert text.count("as private as the table") == 2 and "left out of training" in text


def test_a_generator_in_an_environment_of_its_own_says_how_to_make_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generators"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "realtabformer elsewhere yes MIT" in told
    assert "Needs an environment of its own, whose python is a setting: python -m venv rtf" in told
