"""For any launchpad input, all readable rows are attested, and no secret is shown."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import Phase, example, given, settings
from launchpad import CANARY, CANARY_NAME, LAUNCHES, Launch, Launchpad, nothing_uncovered, whole
from stock import KEY


@pytest.fixture(scope="module")
def pad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launchpad]:
    """A deployment with a release of the honest table."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Launchpad.open(tmp_path_factory.mktemp("launchpad")) as opened,
    ):
        patch.setenv(CANARY_NAME, CANARY)
        assert opened.launch(Launch(whole("honest"), {}, {})) and opened.successes == 1
        yield opened
        # At the end over all output, including values stored in pieces.
        told = opened.databases()
        for name, spellings in opened.secrets().items():
            for secret in spellings:
                assert secret not in told, name
                assert not [file for file, data in opened.written() if secret in data], name


NORTH = {f"dagster/asset_partition_range_{end}": "north" for end in ("start", "end")}


@pytest.mark.slow
@example(Launch(whole("honest"), {KEY: "shop-0"}, {}))
@example(Launch(("honest/published",), {KEY: "shop-0"}, {}))
@example(Launch(whole("leaky"), {}, {}))
@example(Launch(whole("fed"), {}, {}))
@example(Launch(whole("regional"), {KEY: "north"}, {}))
@example(Launch(whole("regional"), NORTH, {}))
@example(
    Launch(
        ("raw",), {}, {"resources": {"io_manager": {"config": {"base_dir": {"env": CANARY_NAME}}}}}
    )
)
@example(Launch(("reads_honest",), {}, {}))
@example(Launch(("reads_leaky",), {}, {}))
@example(Launch(("reads_regions",), {}, {}))
@given(LAUNCHES)
@settings(max_examples=30, phases=(Phase.explicit, Phase.generate))
def test_what_is_drawn_from_the_launchpad(
    pad: Launchpad, caplog: pytest.LogCaptureFixture, launch: Launch
) -> None:
    check_launch(pad, caplog, launch)


@pytest.mark.weekly
@given(LAUNCHES)
@settings(max_examples=300, phases=(Phase.generate,))
def test_more_that_is_drawn_from_the_launchpad(
    pad: Launchpad, caplog: pytest.LogCaptureFixture, launch: Launch
) -> None:
    check_launch(pad, caplog, launch)


def check_launch(pad: Launchpad, caplog: pytest.LogCaptureFixture, launch: Launch) -> None:
    """Launch a run, and check that it showed no secret and that all readable rows are attested."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        run_id = pad.launch(launch)
    if run_id is None:
        return
    told = (pad.logged(run_id) + caplog.text).encode()
    for name, spellings in pad.secrets().items():
        assert not [secret for secret in spellings if secret in told], name
    nothing_uncovered(pad)
