"""Endpoints that leave and come back while requests are in flight."""

from msgspec.structs import replace

from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import EndpointHealthChanged
from extproc.core.types import EndpointId
from tests.support.core import Script, endpoint

TWO_SLOTS = FlowControlConfig(detector=ConcurrencyDetectorConfig(max_concurrency=2))


def load(script: Script) -> dict[str, int]:
    return {row.endpoint_id: row.inflight_requests for row in script.controller.statistics().endpoints}


def test_field_bug_067_a_flap_of_one_server_neither_loses_nor_doubles_its_load() -> None:
    script = Script(TWO_SLOTS, endpoints=0)
    server = endpoint("a")
    script.add(server)
    first, second = script.arrive(), script.arrive()
    script.drop(server)
    script.add(server)
    assert load(script) == {server.id: 2}
    third = script.arrive()
    assert script.dispatched() == [first, second]
    script.finish(first)
    assert script.dispatched() == [first, second, third]
    for request in (second, third):
        script.finish(request)
    assert load(script) == {server.id: 0}


def test_field_bug_067_another_server_at_the_address_starts_from_zero() -> None:
    script = Script(TWO_SLOTS, endpoints=0)
    old = endpoint("a")
    new = replace(old, id=EndpointId(f"{old.id}-next"))
    script.add(old)
    before = [script.arrive(), script.arrive()]
    script.drop(old)
    script.add(new)
    after = [script.arrive(), script.arrive(), script.arrive()]
    assert load(script) == {new.id: 2}
    for request in before:
        script.finish(request)
    assert load(script) == {new.id: 2}
    script.finish(after[0])
    assert script.dispatched() == [*before, *after]
    for request in after[1:]:
        script.finish(request)
    assert load(script) == {new.id: 0}


def test_field_bug_068_a_late_delete_of_the_old_generation_leaves_the_new_one_alone() -> None:
    script = Script(TWO_SLOTS, endpoints=0)
    old = endpoint("a")
    new = replace(old, id=EndpointId(f"{old.id}-next"))
    script.add(old)
    script.add(new)
    script.drop(old)
    requests = [script.arrive(), script.arrive()]
    script.drop(old)
    assert load(script) == {new.id: 2}
    assert script.dispatched() == requests


def test_a_server_that_comes_back_is_healthy_again() -> None:
    script = Script(TWO_SLOTS, endpoints=0)
    server = endpoint("a")
    script.add(server)
    first = script.arrive()
    script.send(EndpointHealthChanged(server.id, False))
    script.drop(server)
    script.add(server)
    second = script.arrive()
    assert script.dispatched() == [first, second]
