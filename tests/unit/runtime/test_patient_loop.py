"""What gRPC gets for a loop: its futures end when it says so, everything else is the loop's own."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from extproc.runtime.patient_loop import ABANDON, PatientLoop, build_patiently


async def _await(future: asyncio.Future[int]) -> int:
    return await future


async def _waiting(loop: PatientLoop) -> tuple[asyncio.Future[int], asyncio.Task[int]]:
    future: asyncio.Future[int] = loop.create_future()
    task = loop.create_task(_await(future))
    await asyncio.sleep(0)
    return future, task


async def test_a_cancelled_task_waits_for_the_end_of_the_operation() -> None:
    future, task = await _waiting(PatientLoop(asyncio.get_running_loop()))
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    future.set_result(3)
    assert await task == 3


async def test_a_failed_operation_ends_like_one_that_did_nothing() -> None:
    future, task = await _waiting(PatientLoop(asyncio.get_running_loop()))
    future.set_exception(grpc.aio.InternalError("the peer is gone"))
    assert await task is None


async def test_other_failures_are_passed_on() -> None:
    future, task = await _waiting(PatientLoop(asyncio.get_running_loop()))
    future.set_exception(ValueError("ours"))
    with pytest.raises(ValueError, match="ours"):
        await task


@pytest.mark.parametrize("is_patient", [True, False])
async def test_who_may_cancel_at_once(is_patient: bool) -> None:
    loop = PatientLoop(asyncio.get_running_loop())
    _, task = await _waiting(loop)
    loop.is_patient = is_patient
    task.cancel(ABANDON if is_patient else None)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_running_loop_is_the_real_one_again() -> None:
    real = asyncio.get_running_loop()
    given, patient = build_patiently(asyncio.get_running_loop)
    assert given is patient
    assert asyncio.get_running_loop() is real
    assert real in {patient}, "gRPC must take both for one"
    assert patient.time() == pytest.approx(real.time(), abs=1.0)
    with pytest.raises(ZeroDivisionError):
        build_patiently(lambda: 1 // 0)
    assert asyncio.get_running_loop() is real
