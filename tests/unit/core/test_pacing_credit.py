"""The engine's prompt counter ends prefills that nobody saw ending, and no others."""

from __future__ import annotations

from extproc.core.commands import Dispatch
from extproc.core.config import FlowControlConfig
from extproc.core.events import OutputObserved
from tests.support.core import Script, endpoint


def test_tokens_of_an_observed_prefill_do_not_end_the_next_one() -> None:
    """The counter shows the interactive prompt, whose end was seen already; the batch prompt still runs."""
    script = Script(FlowControlConfig(default_ttl_s=None), endpoints=0)
    server = endpoint("a")
    script.add(server)
    script.sample(server, prompt_tokens_total=0, waiting_requests=0)
    seen = script.arrive(priority=10, prompt_tokens=8000, is_streaming=True)
    script.advance(0.5)
    script.send(OutputObserved(seen, 1))
    script.arrive(priority=-1, prompt_tokens=6000, is_streaming=True)
    waiting = script.arrive(priority=-1, prompt_tokens=6000, is_streaming=True)
    script.advance(0.1)
    script.sample(server, prompt_tokens_total=8000, waiting_requests=0)
    dispatched = {command.request_id for command in script.commands if isinstance(command, Dispatch)}
    assert waiting not in dispatched
    script.advance(0.4)
    script.sample(server, prompt_tokens_total=14_000, waiting_requests=0)
    dispatched = {command.request_id for command in script.commands if isinstance(command, Dispatch)}
    assert waiting in dispatched
