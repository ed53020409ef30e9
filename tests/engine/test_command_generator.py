"""Commands as generators: what they are given, how they end, and what may be said about it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.engine.generators import build_generator, load_generator
from privacy_assets.engine.tables.schema import conform, infer_schema, restore
from privacy_assets.errors import ConfigError, InputError, StepError

SECRET = "Zebulon-77123"
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
TRAIN = conform(FRAME, SCHEMA, where="t")
SAMPLE = """
train = pd.read_parquet(sys.argv[1])
out = train.sample(int(sys.argv[3]), replace=True, random_state=int(sys.argv[4]))
out.to_parquet(sys.argv[2])
"""


@pytest.fixture
def program(tmp_path: Path) -> object:
    """A generator whose command runs the given lines of Python."""

    def make(lines: str, **settings: object) -> object:
        path = tmp_path / "program.py"
        path.write_text("import os, subprocess, sys, time\nimport pandas as pd\n" + lines)
        command = [sys.executable, str(path), "{train}", "{out}", "{rows}", "{seed}"]
        return build_generator("command", {"command": command, **settings}).fit(TRAIN, SCHEMA, seed=0)

    return make


def test_the_command_makes_the_rows(program: object, tmp_path: Path) -> None:
    fitted = program(SAMPLE)  # type: ignore[operator]
    frame = fitted.sample(50, seed=0)
    pd.testing.assert_frame_equal(conform(frame, SCHEMA, where="t"), frame)
    assert len(frame) == 50 and set(frame["c"].dropna()) == {"a", SECRET} and frame.isna().any().all()
    pd.testing.assert_frame_equal(fitted.sample(50, seed=0), frame)
    assert not fitted.sample(50, seed=1).equals(frame)
    assert fitted.privacy.epsilon is None
    fitted.save(tmp_path / "model")
    loaded = load_generator(tmp_path / "model")
    assert loaded.generator == fitted.generator
    pd.testing.assert_frame_equal(loaded.sample(50, seed=0), frame)


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
    program(lines + SAMPLE, variables=["MODEL_FOLDER"]).sample(3, seed=0)  # type: ignore[operator]
    pd.testing.assert_frame_equal(pd.read_pickle(seen / "train"), restore(TRAIN, SCHEMA))
    environment = pd.read_pickle(seen / "env")
    allowed = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "MODEL_FOLDER", "mode"}
    assert set(environment.index) <= allowed and environment["MODEL_FOLDER"] == "here"
    assert environment["mode"].endswith("700") and not Path(environment["TMPDIR"]).exists()
    monkeypatch.delenv("MODEL_FOLDER")
    with pytest.raises(StepError, match="needs the environment variable MODEL_FOLDER"):
        program(SAMPLE, variables=["MODEL_FOLDER"]).sample(3, seed=0)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (f"raise ValueError({SECRET!r})", r"ended with exit status 1 \(ValueError\)\."),
        (f"print({SECRET!r}); sys.exit(3)", r"ended with exit status 3\. "),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        (f"print({SECRET!r})", r"wrote no file to \{out\}"),
        (f"open(sys.argv[2], 'w').write({SECRET!r})", r"no Parquet file that can be read \(ArrowInvalid\)"),
        (SAMPLE + "sys.exit(1)", "ended with exit status 1"),
        (SAMPLE.replace("train.sample", "train.drop(columns='b').sample"), "column 'b': the column is missing"),
        (SAMPLE.replace("int(sys.argv[3])", "2"), "2 rows came where 20 were asked for"),
        (SAMPLE.replace("train.sample", f"train.assign(x={SECRET!r}).sample"), "column 'x', row 0: a value is not"),
    ],
)
def test_failures_are_told_without_what_was_printed(
    program: object, lines: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((StepError, InputError), match=message) as caught:
        program(lines).sample(20, seed=0)  # type: ignore[operator]
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert SECRET not in str(chain[-1])
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    assert SECRET not in "".join(capfd.readouterr())


def test_what_is_printed_goes_to_the_log_that_is_named(program: object, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    fitted = program(f"print({SECRET!r} * 400_000)\n" + SAMPLE, log=str(log))  # type: ignore[operator]
    for runs in (1, 2):
        fitted.sample(3, seed=0)
        assert log.stat().st_size == runs * (400_000 * len(SECRET) + 1)
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StepError, match="exit status 5"):
        program("print('why', file=sys.stderr); sys.exit(5)", log=str(log)).sample(3, seed=0)  # type: ignore[operator]
    assert log.read_text().endswith("why\n")


def gone(pid: int) -> bool:
    """True when the process has ended (a zombie has), within five seconds."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
@pytest.mark.parametrize("ends", [True, False])
def test_nothing_that_it_started_is_left(program: object, tmp_path: Path, ends: bool) -> None:
    note = tmp_path / "pid"
    lines = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open({str(note)!r}, "w").write(str(child.pid))
"""
    if ends:
        assert len(program(lines + SAMPLE).sample(4, seed=0)) == 4  # type: ignore[operator]
    else:
        with pytest.raises(StepError, match="took longer than 4 seconds"):
            program(lines + "time.sleep(300)", timeout=4).sample(4, seed=0)  # type: ignore[operator]
    assert gone(int(note.read_text()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the settings command"),
        ({"command": "python x.py {train} {out} {rows} {seed}"}, "must be a list of texts"),
        ({"command": ["x", "{train}", "{out}", "{rows}"]}, r"\{seed\} does not stand"),
        ({"command": ["{train}"]}, r"\{train\} does not stand"),
        ({"command": []}, r"\{train\} does not stand"),
        ({"command": ["x", "{train}{out}{rows}{seed}"], "timeout": 0}, "timeout"),
        ({"command": ["x", "{train}{out}{rows}{seed}"], "variables": "HOME"}, "variables must be a list"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_generator("command", settings)


def test_commands_that_are_not_there() -> None:
    command = ["no-such-program", "{train}", "{out}", "--rows={rows}", "{seed}{brace}"]
    fitted = build_generator("command", {"command": command}).fit(TRAIN, SCHEMA, seed=0)
    with pytest.raises(StepError, match=r"no-such-program could not be started \(FileNotFoundError\)"):
        fitted.sample(3, seed=0)
    assert np.array_equal(fitted.train.index, np.arange(4))
