"""An endpoint that comes back from an ejection gets one request at a time until it has proved itself."""

from extproc.core.events import EndpointHealthChanged
from tests.support.core import Script, endpoint


def test_a_probing_endpoint_takes_one_request_at_a_time() -> None:
    script = Script(endpoints=1)
    known = endpoint("e0")
    script.send(EndpointHealthChanged(known.id, False))
    first, second, third = script.arrive(), script.arrive(), script.arrive()
    assert script.dispatched() == []
    script.send(EndpointHealthChanged(known.id, True, is_probing=True))
    assert script.dispatched() == [first]
    script.finish(first)
    assert script.dispatched() == [first, second]
    script.send(EndpointHealthChanged(known.id, True))
    assert script.dispatched() == [first, second, third]


def test_health_of_an_unknown_endpoint_changes_nothing() -> None:
    script = Script(endpoints=1)
    assert script.send(EndpointHealthChanged(endpoint("gone").id, True, is_probing=True)) == []
    assert script.dispatched() == []
