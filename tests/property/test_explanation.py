"""An explanation says what then happens, and asking changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.commands import Dispatch
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import EndpointHealthChanged, RequestArrived, TimerFired
from extproc.core.holdback import StaticCeilingConfig
from extproc.core.types import Request, RequestId
from tests.support.core import Script, endpoint

_steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "finish", "add", "drop", "eject", "probe", "drain"]),
        st.integers(0, 2),
        st.sampled_from([-1, 0, 5]),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=25,
)
CONFIG = FlowControlConfig(
    detector=ConcurrencyDetectorConfig(max_concurrency=2), ceilings=StaticCeilingConfig(threshold=0.8)
)


@settings(deadline=None)
@given(_steps)
def test_the_verdict_is_what_happens_to_the_next_arrival(
    steps: list[tuple[str, int, int, str | None]],
) -> None:
    script, names = Script(CONFIG, endpoints=0), "abc"
    for number, (what, which, priority, subset) in enumerate(steps):
        known = endpoint(names[which])
        if what == "arrive":
            allowed = None if subset is None else frozenset({endpoint(subset).address})
            request = Request(id=RequestId(1000 + number), priority=priority, endpoint_subset=allowed)
            script.send(TimerFired())  # the driver's timer has done what was due by now
            answers = [script.controller.explain(request, script.now) for _ in range(2)]
            assert answers[0] == answers[1]
            (first, *_) = [*script.send(RequestArrived(request)), None]
            assert (answers[0].verdict == "dispatch") == isinstance(first, Dispatch), answers[0]
            if isinstance(first, Dispatch):
                row = next(r for r in answers[0].endpoints if r.endpoint_id == first.endpoint_id)
                assert row.removed_by is None
        elif what == "finish":
            inflight = script.dispatched()
            if inflight:
                script.finish(inflight[which % len(inflight)])
        elif what == "add":
            script.add(known)
        elif what == "drain":
            script.add(endpoint(names[which], is_draining=True))
        elif what == "drop":
            script.drop(known)
        else:
            script.send(EndpointHealthChanged(known.id, what == "probe", is_probing=what == "probe"))
