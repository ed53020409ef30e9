"""Commands and functions as generators: their input, how they end, and the text that errors may
contain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import own_functions as own
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from processes import gone, killed

from privacy_assets.errors import ConfigError, StepError
from privacy_assets.generators import build_generator, load_generator, programs
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.infra.temp_folders import WorkFolder
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table
from tests.generators.known import SAMPLES
from tests.generators.known import TRAIN as KNOWN

SECRET = "Zebulon-77123"
linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc, and needs prctl")
FRAME = pd.DataFrame(
    {
        "n": pd.Series([1, 2, None, 300], dtype="Int16"),
        "x": [0.5, None, 2.5, -1.0],
        "c": pd.Series(["a", SECRET, None, "a"], dtype="category"),
        "b": pd.array([True, None, False, True], dtype="boolean"),
        "d": pd.to_datetime(["2020-01-01", None, "2021-02-03", "2020-01-01"]),
    }
)
SCHEMA = infer_schema(FRAME)
TRAIN = Table.of(FRAME, SCHEMA, where="t")
TEXTS = f"(out.set_column(1, 'x', [[{SECRET!r}] * len(out)]),"  # where numbers should be


@pytest.fixture
def program(tmp_path: Path) -> object:
    """A generator whose command runs the given lines of Python."""

    def make(lines: str, **settings: object) -> object:
        path = tmp_path / "program.py"
        pandas = "import pandas as pd\n" if "pd." in lines else ""  # the import takes half a second
        path.write_text(f"import os, subprocess, sys, time\n{pandas}{lines}")
        command = [sys.executable, str(path), "{train}", "{out}", "{rows}", "{seed}"]
        return build_generator("command", {"command": command, **settings}).fit(TRAIN, seed=0)

    return make


@pytest.mark.slow
def test_it_is_given_the_private_dtypes_and_no_secrets(
    program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", SECRET)
    monkeypatch.setenv("MODEL_FOLDER", "here")
    seen = tmp_path / "seen"
    seen.mkdir()
    lines = f"""
pd.read_parquet(sys.argv[1]).to_pickle({str(seen / "train")!r})
pd.Series({{**os.environ, "mode": oct(os.stat(os.path.dirname(sys.argv[1])).st_mode)}}).to_pickle({str(seen / "env")!r})
open(os.path.join(os.environ["TMPDIR"], "left"), "w").close()
"""  # noqa: E501
    program(lines + SAMPLES, variables=["MODEL_FOLDER"]).sample(3, seed=0).frame()  # type: ignore[operator]
    pd.testing.assert_frame_equal(pd.read_pickle(seen / "train"), TRAIN.to_published_frame())
    environment = pd.read_pickle(seen / "env")
    allowed = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "MODEL_FOLDER", "mode"}
    assert set(environment.index) <= allowed and environment["MODEL_FOLDER"] == "here"
    assert environment["mode"].endswith("700") and not Path(environment["TMPDIR"]).exists()
    monkeypatch.delenv("MODEL_FOLDER")
    with pytest.raises(StepError, match="needs the environment variable MODEL_FOLDER"):
        program(SAMPLES, variables=["MODEL_FOLDER"]).sample(3, seed=0).frame()  # type: ignore[operator]


FAILED = (
    "generator command: {} failed, took longer than {:g} seconds or returned an unusable table."
    " The reason may contain private values and is not shown. Fix: {}."
)
UNLOGGED = "set log to a private file, run it again and read that file"
# Endings by which a program could encode a private number, and the reason in the log.
ENDINGS = {
    "prints": (f"print({SECRET!r})", "wrote no file to {out}"),
    "raises": (f"raise ValueError({SECRET!r})", f"ValueError: {SECRET}"),
    "raises another error": ("{}['n']", "KeyError: 'n'"),
    "exits with 2": ("sys.exit(2)", "exited with status 2. Fix: read its output"),
    "exits with 64": ("sys.exit(64)", "exited with status 64. Fix: read its output"),
    "exits with 127": ("sys.exit(127)", "exited with status 127. Fix: read its output"),
    "exits after writing": (SAMPLES + "sys.exit(4)", "exited with status 4. Fix: read its output"),
    "kills itself": ("os.kill(os.getpid(), 9)", "was killed by signal 9. Fix: read"),
    "kills itself otherwise": ("os.kill(os.getpid(), 15)", "was killed by signal 15. Fix: read"),
    "kills its supervisor": ("os.kill(os.getppid(), 9)", "was killed by signal 9. Fix: read"),
    "removes its folder": (
        "import shutil; shutil.rmtree(os.path.dirname(sys.argv[1]))",
        "wrote no file to {out}",
    ),
    "writes text": (f"open(sys.argv[2], 'w').write({SECRET!r})", "ArrowInvalid: "),
    "writes a folder": ("os.mkdir(sys.argv[2])", "wrote no file to {out}"),
    "writes damaged metadata": (
        SAMPLES
        + "out = out.replace_schema_metadata({'pandas': '{}'}); pq.write_table(out, sys.argv[2])",
        "KeyError: ",
    ),
    "drops a column": (
        SAMPLES.replace("train.take", "train.drop_columns('b').take"),
        "column 'b': the column is",
    ),
    "drops another column": (
        SAMPLES.replace("train.take", "train.drop_columns('c').take"),
        "column 'c': the column",
    ),
    "adds a column": (
        SAMPLES.replace("(out,", "(out.append_column('other', [[1] * len(out)]),"),
        "1 columns are not",
    ),
    "writes too few rows": (SAMPLES.replace("int(sys.argv[3])", "2"), "the number of rows differs"),
    "writes no rows": (SAMPLES.replace("int(sys.argv[3])", "0"), "privacy-assets: "),
    "writes text among numbers": (
        SAMPLES.replace("(out,", TEXTS),
        "column 'x', row 0: a value is not",
    ),
    "overflows": (
        SAMPLES.replace(
            "(out,", "(out.set_column(0, 'n', [[70_000] * len(out)]).replace_schema_metadata(),"
        ),
        "does not fit the dtype",
    ),
}


QUICK = {
    "prints",
    "raises",
    "exits with 2",
    "kills itself",
    "writes a folder",
    "drops a column",
    "writes too few rows",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENDINGS],
)
def test_a_failure_is_one_sentence_whatever_the_program_did(
    program: object, ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its exit status, signal, exception and the position of an invalid cell could encode a private
    number.
    """
    lines, reason = ENDINGS[ending]
    log = tmp_path / "log"
    told = []
    for number in (20, 21) if ending == "writes too few rows" else (20,):
        with pytest.raises(StepError) as caught:
            program(lines, log=str(log)).sample(number, seed=0)  # type: ignore[operator]
        assert caught.value.__cause__ is caught.value.__context__ is None
        places = [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)[1:]]
        told.append((str(caught.value), places))
    assert {message for message, _ in told} == {FAILED.format("python", 3600, f"read {str(log)!r}")}
    with pytest.raises(StepError) as caught:
        program("sys.exit(1)", log=str(log)).sample(20, seed=0)  # type: ignore[operator]
    assert {tuple(places) for _, places in told} == {
        tuple(frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)[1:])
    }
    assert reason in log.read_text() and SECRET not in "".join(capfd.readouterr())


def test_without_a_log_the_message_asks_for_one(program: object) -> None:
    with pytest.raises(StepError) as caught:
        program("sys.exit(3)", timeout=60).sample(20, seed=0)  # type: ignore[operator]
    assert str(caught.value) == FAILED.format("python", 60, UNLOGGED)


def test_a_log_that_cannot_be_opened_is_blocked_before_the_program_runs(
    program: object, tmp_path: Path
) -> None:
    fitted = program(f"open({str(tmp_path / 'ran')!r}, 'w')", log=str(tmp_path / "no" / "log"))  # type: ignore[operator]
    with pytest.raises(
        StepError, match=r"log '.*' cannot be opened. Fix: set log to a file in an existing folder"
    ):
        fitted.sample(20, seed=0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_what_is_printed_goes_to_the_log_that_is_named(program: object, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    fitted = program(f"print({SECRET!r} * 400_000)\n" + SAMPLES, log=str(log))  # type: ignore[operator]
    for runs in (1, 2):
        fitted.sample(3, seed=0).frame()
        assert log.stat().st_size == runs * (400_000 * len(SECRET) + 1)
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StepError, match=f"read {str(log)!r}"):
        program("print('why', file=sys.stderr); sys.exit(5)", log=str(log)).sample(
            3, seed=0
        ).frame()  # type: ignore[operator]
    told = log.read_text().partition("why\nprivacy-assets: ")[2]
    assert told.endswith(" exited with status 5. Fix: read its output in the log.\n")


LEAVES = """
import own_functions
leave = getattr(own_functions, "leaves_others_behind" if {ends} else "never_ends")
leave(pd.read_parquet(sys.argv[1]), 1, 0)
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize("ends", [True, False])
def test_nothing_that_it_started_is_left(
    program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """This covers its own session and others."""
    monkeypatch.setenv("NOTE", str(tmp_path / "note"))
    monkeypatch.setenv("PYTHONPATH", str(Path(own.__file__).parent))
    given = {"variables": ["NOTE", "PYTHONPATH"]}
    if ends:
        assert (
            len(program(LEAVES.format(ends=True) + SAMPLES, **given).sample(4, seed=0).frame()) == 4
        )  # type: ignore[operator]
    else:
        clock, note = time.monotonic, tmp_path / "note"

        def later() -> float:
            """An hour passes once the program has started its children."""
            return clock() + 3600 * (note.exists() and note.read_text().endswith("."))

        monkeypatch.setattr(time, "monotonic", later)
        with pytest.raises(StepError, match="took longer than 600 seconds"):
            program(LEAVES.format(ends=False), **given, timeout=600).sample(4, seed=0).frame()  # type: ignore[operator]
        monkeypatch.undo()
    pids = (tmp_path / "note").read_text().rstrip(".").split()
    assert len(pids) == 3 and all(gone(int(pid)) for pid in pids)


KILLED = """
import sys
import pandas as pd
from privacy_assets.generators import build_generator
from privacy_assets.tables.table import Table

frame = pd.DataFrame({"a": [1, 2, 3]})
code = "import sys, pandas, own_functions; own_functions.never_ends(pandas.read_parquet(sys.argv[1]), 1, 0)"
given = {
    "callable": {"function": "own_functions:never_ends"},
    "command": {"command": [sys.executable, "-c", code, "{train}", "{out}", "{rows}", "{seed}"]},
}
name = sys.argv[1]
built = build_generator(name, {**given[name], "variables": ["NOTE", "PYTHONPATH"]})
built.fit(Table.read(frame), seed=0).sample(2, seed=0)
"""  # noqa: E501


@pytest.mark.slow
@linux
@pytest.mark.parametrize("name", ["callable", "command"])
def test_a_killed_parent_takes_all_with_it_and_the_next_sweeps_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "tmp"
    work.mkdir()
    pids = killed(
        ["-c", KILLED, name], tmp_path / "note", NOTE=str(tmp_path / "note"), TMPDIR=str(work)
    )
    assert len(pids) == 3 and all(gone(pid) for pid in pids)
    assert list(work.rglob("train.parquet")), "its parent was killed, so it is not removed"
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    with WorkFolder() as held, WorkFolder() as other:
        assert sorted(work.iterdir()) == sorted([held, other]), "what others hold stays"
        assert held.stat().st_mode & 0o777 == 0o700
    assert not list(work.iterdir())


def test_a_program_that_prints_without_end_is_stopped(
    program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MAX_OUTPUT", 100_000)
    log = tmp_path / "log.txt"
    lines = f"while True: print({SECRET!r} * 1000, flush=True)"
    with pytest.raises(StepError, match="failed"):
        program(lines, log=str(log)).sample(3, seed=0).frame()  # type: ignore[operator]
    assert log.stat().st_size > 100_000
    assert log.read_text().endswith(
        "privacy-assets: the program printed more than 100,000 bytes.\n"
    )


TRAIN_LINES = """
import os, random, shutil, sys, time
if sys.argv[1] == "train":
    train, model, seed = sys.argv[2:]
    os.makedirs(model + "/deep")
    open(model + "/deep/seed", "w").write(seed)
    shutil.copy(train, model + "/rows")
    {in_train}
else:
    model, out, rows, seed = sys.argv[2:]
    import pyarrow.parquet as pq
    rows = pq.read_table(model + "/rows").take(random.Random(int(seed)).choices(range(4), k=int(rows)))
    {in_sample}
    pq.write_table(rows, out)
    os.remove(model + "/rows")
"""  # noqa: E501


@pytest.fixture
def trained(tmp_path: Path) -> object:
    """A function that fits a command with two parts."""

    def fit(in_train: str = "pass", in_sample: str = "pass", **settings: object) -> object:
        path = tmp_path / "parts.py"
        path.write_text(TRAIN_LINES.format(in_train=in_train, in_sample=in_sample))
        train = [sys.executable, str(path), "train", "{train}", "{model}", "{seed}"]
        command = [sys.executable, str(path), "sample", "{model}", "{out}", "{rows}", "{seed}"]
        return build_generator("command", {"command": command, "train": train, **settings}).fit(
            TRAIN, seed=7
        )

    return fit


@pytest.mark.slow
def test_a_command_of_two_parts_is_trained_once(trained: object, tmp_path: Path) -> None:
    fitted = trained()  # type: ignore[operator]
    frame = fitted.sample(50, seed=0).frame()
    pd.testing.assert_frame_equal(
        fitted.sample(50, seed=0).frame(), frame
    )  # changes that a sample makes to its model persist there
    assert not fitted.sample(50, seed=1).frame().equals(frame)
    fitted.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        ".gitignore",
        "generator.json",
        "model",
    ]
    assert (tmp_path / "model/model/deep/seed").read_text() == "7"
    loaded = load_generator(tmp_path / "model")
    kept = loaded.model.path
    assert loaded.generator == fitted.generator
    pd.testing.assert_frame_equal(loaded.sample(50, seed=0).frame(), frame)
    del loaded
    assert kept.name == "model" and not kept.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"in_train": f"raise ValueError({SECRET!r})"}, f"ValueError: {SECRET}"),
        ({"in_train": "time.sleep(300)", "timeout": 2}, "took longer than 2 seconds"),
        ({"in_train": "shutil.rmtree(model)"}, "wrote nothing to {model}"),
        ({"in_train": "os.symlink('/nowhere', model + '/link')"}, "is not a readable regular file"),
        ({"in_train": "os.mkfifo(model + '/pipe')"}, "is not a readable regular file"),
        ({"in_train": "open(model + '/Zoë', 'w')"}, "with a printable ASCII name"),
        ({"in_sample": f"raise KeyError({SECRET!r})"}, f"KeyError: {SECRET!r}"),
    ],
)
def test_failures_of_either_part(
    trained: object, settings: dict, reason: str, tmp_path: Path
) -> None:
    log, seconds = tmp_path / "log", settings.get("timeout", 3600)
    with pytest.raises(StepError) as caught:
        trained(**settings, log=str(log)).sample(20, seed=0)  # type: ignore[operator]
    assert str(caught.value) == FAILED.format("python", seconds, f"read {str(log)!r}")
    assert reason in log.read_text()


def test_a_command_leaves_no_training_curve(trained: object) -> None:
    curve = json.dumps([{"epoch": 1.0, "loss": 987654.0}])
    assert trained(f"open(model + '/history.json', 'w').write({curve!r})").history == ()  # type: ignore[operator]


def test_commands_that_are_not_there() -> None:
    command = ["no-such-program", "{train}", "{out}", "--rows={rows}", "{seed}{brace}"]
    fitted = build_generator("command", {"command": command}).fit(TRAIN, seed=0)
    with pytest.raises(
        StepError, match=r"no-such-program could not be started \(FileNotFoundError\)"
    ):
        fitted.sample(3, seed=0).frame()
    pd.testing.assert_frame_equal(fitted.train.frame(), TRAIN.frame())


# Functions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (own.raises, "ValueError: cannot handle"),
        pytest.param(own.exits, own.SECRET, marks=pytest.mark.slow),
        (own.returns_text, "the function returned str, not a DataFrame"),
        pytest.param(own.returns_foreign_columns, "ValueError", marks=pytest.mark.slow),
        pytest.param(
            own.mixes_types, "column 'age', row 0: a value is not", marks=pytest.mark.slow
        ),
    ],
)
def test_the_reason_of_a_failing_function_is_in_the_log_alone(
    function: Callable[..., object], reason: str, tmp_path: Path
) -> None:
    fitted = CallableGenerator(function, log=str(tmp_path / "log")).fit(KNOWN, seed=0)
    with pytest.raises(StepError) as caught:
        fitted.sample(20, seed=0)
    assert str(caught.value) == (
        f"generator callable: own_functions:{function.__name__} failed, took longer than 86400"
        " seconds or returned an"
        " unusable table. The reason may contain private values and is not shown. Fix: read"
        f" {str(tmp_path / 'log')!r}."
    )
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert reason in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_functions_get_a_fresh_table_in_the_users_dtypes(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"n": pd.Series([1, 2, 3], dtype="int8"), "c": pd.Series(["a", "b", "a"], dtype="category")}
    )
    spy = CallableGenerator(own.spies, variables=["SEEN"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SEEN", str(tmp_path / "seen"))
        spy.fit(Table.read(frame), seed=0).sample(2, seed=5).frame()
    assert_frame_equal(pd.read_pickle(tmp_path / "seen"), frame)
    fitted = build_generator(own.changes_its_input).fit(KNOWN, seed=0)
    for _ in range(2):
        assert set(fitted.sample(20, seed=0).frame()["age"]) == {0}
    assert set(fitted.train.frame()["age"].dropna()) != {0}


def test_functions_by_name_and_what_cannot_be_imported() -> None:
    by_name = build_generator("own_functions:uniform")
    assert (
        by_name
        == build_generator(own.uniform)
        == build_generator("callable", {"function": own.uniform})
    )
    for nameless in (lambda train, rows, seed: train, partial(own.uniform)):
        with pytest.raises(ConfigError, match="cannot be imported by name"):
            CallableGenerator(nameless)
    with pytest.raises(ConfigError, match="three arguments"):
        CallableGenerator(own.takes_one)


@pytest.mark.slow
def test_a_module_is_looked_for_and_not_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module's top level is user code, and this process may hold keys."""
    package = tmp_path / "looked_for"
    package.mkdir()
    for file in (package / "__init__.py", package / "part.py"):
        file.write_text(
            "import own_functions\n\ndef f(train, rows, seed):\n    return"
            " own_functions.uniform(train, rows, seed)\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    found = [build_generator(f"looked_for{part}:f") for part in ("", ".part")]
    assert len(found[1].fit(KNOWN, seed=0).sample(3, seed=0).frame()) == 3
    assert not [name for name in sys.modules if name.startswith("looked_for")]
    for absent in ("looked_for.other:f", "looked_for.part.deeper:f", "looked_for.part"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            build_generator("callable", {"function": absent})
    absent = CallableGenerator("looked_for:g", log=str(tmp_path / "log")).fit(KNOWN, seed=0)
    with pytest.raises(StepError, match="looked_for:g failed"):
        absent.sample(3, seed=0)
    assert (
        "AttributeError: module 'looked_for' has no attribute 'g'" in (tmp_path / "log").read_text()
    )


def test_a_module_in_folders_without_code_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bare_outer" / "inner"
    folder.mkdir(parents=True)
    (folder / "part.py").write_text("def f(train, rows, seed):\n    return train.head(rows)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        build_generator("bare_outer.inner.part:f").settings()["function"]
        == "bare_outer.inner.part:f"
    )
    assert "bare_outer.inner.part" not in sys.modules


@pytest.mark.slow
def test_a_function_of_a_script(tmp_path: Path) -> None:
    """The script's main block does not run again."""
    (tmp_path / "script.py").write_text(
        "import pandas as pd\n"
        "from privacy_assets.generators import build_generator\n"
        "from privacy_assets.tables.table import Table\n"
        "def f(train, rows, seed):\n    return train.sample(rows, replace=True,"
        " random_state=seed)\n"
        "if __name__ == '__main__':\n"
        "    frame = pd.DataFrame({'a': [1, 2, 3]})\n"
        "    fitted = build_generator(f).fit(Table.read(frame), seed=0)\n"
        "    print(len(fitted.sample(5, seed=0)))\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "5\n", done.stderr
