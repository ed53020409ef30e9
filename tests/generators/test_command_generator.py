"""Commands as generators: what they are given, how they end, and what may be said about it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest
from processes import gone, killed

from privacy_assets.errors import InputError, StepError
from privacy_assets.generators import build_generator, load_generator, programs
from privacy_assets.generators.reports import MESSAGES
from privacy_assets.storage.work import WorkFolder
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table
from tests.generators.known import SAMPLES

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
        pandas = "import pandas as pd\n" if "pd." in lines else ""  # half a second
        path.write_text(f"import os, subprocess, sys, time\n{pandas}{lines}")
        command = [sys.executable, str(path), "{train}", "{out}", "{rows}", "{seed}"]
        return build_generator("command", {"command": command, **settings}).fit(TRAIN, seed=0)

    return make


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
"""
    program(lines + SAMPLES, variables=["MODEL_FOLDER"]).sample(3, seed=0).frame()  # type: ignore[operator]
    pd.testing.assert_frame_equal(pd.read_pickle(seen / "train"), TRAIN.restored())
    environment = pd.read_pickle(seen / "env")
    allowed = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "MODEL_FOLDER", "mode", MESSAGES}
    assert set(environment.index) <= allowed and environment["MODEL_FOLDER"] == "here"
    assert environment["mode"].endswith("700") and not Path(environment["TMPDIR"]).exists()
    monkeypatch.delenv("MODEL_FOLDER")
    with pytest.raises(StepError, match="needs the environment variable MODEL_FOLDER"):
        program(SAMPLES, variables=["MODEL_FOLDER"]).sample(3, seed=0).frame()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (f"print({SECRET!r}); raise ValueError({SECRET!r})", r"ended with exit status 1 \(ValueError\)\."),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        (f"print({SECRET!r})", r"wrote no file to \{out\}"),
        (f"open(sys.argv[2], 'w').write({SECRET!r})", r"no Parquet file that can be read \(ArrowInvalid\)"),
        (SAMPLES + "sys.exit(4)", "ended with exit status 4"),
        (SAMPLES.replace("train.take", "train.drop_columns('b').take"), "column 'b': the column is missing"),
        (SAMPLES.replace("int(sys.argv[3])", "2"), "2 rows came where 20 were asked for"),
        (SAMPLES.replace("(out,", TEXTS), "column 'x', row 0: a value is not"),
    ],
)
def test_failures_are_told_without_what_was_printed(
    program: object, lines: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((StepError, InputError), match=message) as caught:
        program(lines).sample(20, seed=0).frame()  # type: ignore[operator]
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert SECRET not in str(chain[-1])
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    assert SECRET not in "".join(capfd.readouterr())


def test_what_is_printed_goes_to_the_log_that_is_named(program: object, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    fitted = program(f"print({SECRET!r} * 400_000)\n" + SAMPLES, log=str(log))  # type: ignore[operator]
    for runs in (1, 2):
        fitted.sample(3, seed=0).frame()
        assert log.stat().st_size == runs * (400_000 * len(SECRET) + 1)
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StepError, match="exit status 5"):
        program("print('why', file=sys.stderr); sys.exit(5)", log=str(log)).sample(3, seed=0).frame()  # type: ignore[operator]
    assert log.read_text().endswith("why\n")


LEAVES = """
from tests.generators import own_functions
leave = getattr(own_functions, "leaves_others_behind" if {ends} else "never_ends")
leave(pd.read_parquet(sys.argv[1]), 1, 0)
"""


@linux
@pytest.mark.parametrize("ends", [True, False])
def test_nothing_that_it_started_is_left(
    program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Neither in its session nor in others."""
    monkeypatch.setenv("NOTE", str(tmp_path / "note"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    given = {"variables": ["NOTE", "PYTHONPATH"]}
    if ends:
        assert len(program(LEAVES.format(ends=True) + SAMPLES, **given).sample(4, seed=0).frame()) == 4  # type: ignore[operator]
    else:
        clock, note = time.monotonic, tmp_path / "note"

        def later() -> float:
            """An hour passes when the program has started what it starts."""
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
"""


@linux
@pytest.mark.parametrize("name", ["callable", "command"])
def test_a_killed_parent_takes_all_with_it_and_the_next_sweeps_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "tmp"
    work.mkdir()
    pids = killed(["-c", KILLED, name], tmp_path / "note", NOTE=str(tmp_path / "note"), TMPDIR=str(work))
    assert len(pids) == 3 and all(gone(pid) for pid in pids)
    assert list(work.rglob("train.parquet")), "nobody is there to remove it"
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    with WorkFolder() as held, WorkFolder() as other:
        assert sorted(work.iterdir()) == sorted([held, other]), "what others hold stays"
        assert held.stat().st_mode & 0o777 == 0o700
    assert not list(work.iterdir())


def test_a_program_that_prints_without_end_is_stopped(
    program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PRINTED", 100_000)
    log = tmp_path / "log.txt"
    lines = f"while True: print({SECRET!r} * 1000, flush=True)"
    with pytest.raises(StepError, match="printed more than 100,000 bytes"):
        program(lines, log=str(log)).sample(3, seed=0).frame()  # type: ignore[operator]
    assert log.stat().st_size > 100_000


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
"""


@pytest.fixture
def trained(tmp_path: Path) -> object:
    """A function that fits a command of two parts."""

    def fit(in_train: str = "pass", in_sample: str = "pass", **settings: object) -> object:
        path = tmp_path / "parts.py"
        path.write_text(TRAIN_LINES.format(in_train=in_train, in_sample=in_sample))
        train = [sys.executable, str(path), "train", "{train}", "{model}", "{seed}"]
        command = [sys.executable, str(path), "sample", "{model}", "{out}", "{rows}", "{seed}"]
        return build_generator("command", {"command": command, "train": train, **settings}).fit(TRAIN, seed=7)

    return fit


@pytest.mark.slow
def test_a_command_of_two_parts_is_trained_once(trained: object, tmp_path: Path) -> None:
    fitted = trained()  # type: ignore[operator]
    frame = fitted.sample(50, seed=0).frame()
    pd.testing.assert_frame_equal(
        fitted.sample(50, seed=0).frame(), frame
    )  # what a sample does to its model stays there
    assert not fitted.sample(50, seed=1).frame().equals(frame)
    fitted.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["generator.json", "model"]
    assert (tmp_path / "model/model/deep/seed").read_text() == "7"
    loaded = load_generator(tmp_path / "model")
    kept = loaded.model.path
    assert loaded.generator == fitted.generator
    pd.testing.assert_frame_equal(loaded.sample(50, seed=0).frame(), frame)
    del loaded
    assert kept.name == "model" and not kept.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_train": f"raise ValueError({SECRET!r})"}, r"ended with exit status 1 \(ValueError\)"),
        ({"in_train": "time.sleep(300)", "timeout": 2}, "took longer than 2 seconds"),
        ({"in_train": "shutil.rmtree(model)"}, "wrote nothing to"),
        ({"in_train": "os.symlink('/nowhere', model + '/link')"}, "wrote to .*model.* what cannot be copied"),
        ({"in_train": "os.mkfifo(model + '/pipe')"}, "wrote to .*model.* what cannot be copied"),
        ({"in_sample": f"raise KeyError({SECRET!r})"}, r"ended with exit status 1 \(KeyError\)"),
    ],
)
def test_failures_of_either_part(trained: object, settings: dict, message: str) -> None:
    with pytest.raises((StepError, InputError), match=message) as caught:
        trained(**settings).sample(20, seed=0).frame()  # type: ignore[operator]
    assert SECRET not in str(caught.value)


def test_commands_that_are_not_there() -> None:
    command = ["no-such-program", "{train}", "{out}", "--rows={rows}", "{seed}{brace}"]
    fitted = build_generator("command", {"command": command}).fit(TRAIN, seed=0)
    with pytest.raises(StepError, match=r"no-such-program could not be started \(FileNotFoundError\)"):
        fitted.sample(3, seed=0).frame()
    pd.testing.assert_frame_equal(fitted.train.frame(), TRAIN.frame())
