"""State of the host program: computations give the same numbers in each, and restore it."""

from __future__ import annotations

import decimal
import os
import random
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
import sklearn
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from privacy_assets.infra import host
from privacy_assets.infra.host import isolated


def state() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # options that pandas deprecates
        options = {name: pd.get_option(name) for name in host._PANDAS if name not in ABSENT}
    return {
        "numpy": (np.geterr(), np.geterrcall()),
        "special": scipy.special.geterr(),
        "decimal": repr(decimal.getcontext()),
        "filters": list(warnings.filters),
        "pandas": options,
        "sklearn": sklearn.get_config(),
        "torch": (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_float32_matmul_precision(),
            torch.get_deterministic_debug_mode(),
            torch.is_anomaly_enabled(),
            torch.backends.mkldnn.enabled,
            torch.get_num_threads(),
        ),
        "random": (
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            torch.get_rng_state().tolist(),
        ),
    }


def absent() -> set[str]:
    found = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in host._PANDAS:
            try:
                pd.get_option(name)
            except pd.errors.OptionError:
                found.add(name)
    return found


ABSENT = absent()
ODD: dict[str, Callable[[ExitStack], object]] = {
    "numpy": lambda stack: np.seterr(all="raise"),
    "special": lambda stack: scipy.special.seterr(all="raise"),
    "decimal": lambda stack: decimal.setcontext(decimal.Context(prec=2, traps=[decimal.Inexact])),
    "filters": lambda stack: warnings.simplefilter("error"),
    "pandas": lambda stack: pd.set_option(
        "mode.string_storage", "python", "compute.use_bottleneck", False
    ),
    "sklearn": lambda stack: sklearn.set_config(transform_output="pandas", assume_finite=True),
    "dtype": lambda stack: torch.set_default_dtype(torch.float64),
    "device": lambda stack: torch.set_default_device("meta"),
    "grad": lambda stack: torch.set_grad_enabled(False),
    "inference": lambda stack: stack.enter_context(torch.inference_mode()),
    "autocast": lambda stack: stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16)),
    "deterministic": lambda stack: torch.use_deterministic_algorithms(True),
    "precision": lambda stack: torch.set_float32_matmul_precision("medium"),
    "anomaly": lambda stack: torch.autograd.set_detect_anomaly(True),
    "mkldnn": lambda stack: setattr(torch.backends.mkldnn, "enabled", False),
}


@pytest.fixture(autouse=True)
def restored() -> Any:
    before = state()
    with ExitStack() as stack, warnings.catch_warnings(), np.errstate(), decimal.localcontext():
        with sklearn.config_context(), scipy.special.errstate(), torch.set_grad_enabled(True):
            yield stack
        stack.close()
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.autograd.set_detect_anomaly(False)
        torch.backends.mkldnn.enabled = True
        pd.reset_option("mode.string_storage")
        pd.reset_option("compute.use_bottleneck")
    assert state() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_a_computation_has_the_default_state_and_restores_that_of_the_host(
    name: str, restored: ExitStack
) -> None:
    default = state()
    ODD[name](restored)
    odd = state()
    assert odd != default
    with isolated(), isolated():
        inside = state()
        assert ("error", None, Warning, None, 0) not in inside["filters"]
        inside["filters"] = default["filters"]
        assert inside == {**default, "random": odd["random"]}
        assert (
            torch.ones(2, requires_grad=True).sum().requires_grad
            and torch.zeros(1).device.type == "cpu"
        )
        warnings.warn("of a library", UserWarning, stacklevel=1)
    assert state() == odd
    with pytest.raises(ZeroDivisionError), isolated():
        raise ZeroDivisionError
    assert state() == odd


@pytest.mark.slow
def test_filters_that_are_no_errors_are_left_to_the_program() -> None:
    with isolated():
        warnings.simplefilter("ignore")
        after = list(warnings.filters)
    assert warnings.filters == after


def test_a_filter_that_names_a_module_stays_an_error() -> None:
    warnings.filterwarnings("error", module=__name__.replace(".", r"\."))
    with isolated(), pytest.raises(UserWarning):
        warnings.warn("of this module", UserWarning, stacklevel=1)


def test_the_last_of_several_threads_restores_the_state(restored: ExitStack) -> None:
    torch.set_default_dtype(torch.float64)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with isolated():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with isolated():
        thread.start()
        entered.wait()
    assert torch.get_default_dtype() == torch.float32
    leave.set()
    thread.join()
    assert torch.get_default_dtype() == torch.float64


def test_a_forked_child_uses_one_thread_of_openmp_and_does_not_wait_for_those_of_its_parent() -> (
    None
):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        large = torch.ones(2_000, 2_000)
        (large @ large).exp()
        child = os.fork()
        if not child:
            status = 1
            try:
                with isolated():
                    done = torch.get_num_threads() == 1 and bool(
                        (large @ large).exp().isinf().all()
                    )
                status = int(not (done and torch.get_num_threads() == 2))
            finally:
                os._exit(status)
        waiting = threading.Timer(60, os.kill, (child, 9))
        waiting.start()
        _, status = os.waitpid(child, 0)
        waiting.cancel()
        assert os.waitstatus_to_exitcode(status) == 0
        with isolated():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_blas_uses_one_thread_while_computing_and_then_as_many_as_before() -> None:
    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        with isolated():
            assert threads() == {1}
        assert threads() == {2}
