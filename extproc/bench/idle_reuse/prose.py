"""The answer to "the one 503 in 1,440" for docs/reproduction.md, from kept figures; pure."""

from __future__ import annotations

from extproc.bench.idle_reuse.report import SEED_REQUESTS, IdleReuseFigures


def one_503(measured: IdleReuseFigures, *, refused: int, sent: int) -> str:
    """`refused` of `sent` interactive requests got a refusal in virtual time."""
    bare = next(iter(measured["arms"].values()))
    steady = next(each for each in measured["patterns"] if each["setting"] == "steady")
    wave = next(each for each in measured["patterns"] if each["setting"] == "wave")
    per_request = steady["reuses_per_idle_s"] / steady["requests"]
    needed_ms = 1000 / (per_request * SEED_REQUESTS)
    return (
        f"In virtual time {refused} of {sent:,} interactive requests of this suite were refused "
        "(tokens mode, "
        "all loads and arms): flow control has no cause for it. So each cause outside it was "
        "made to happen "
        "over real sockets, through Envoy and extproc to an emulated vLLM (`extproc bench "
        "idle-reuse`, about "
        "six minutes; scenario `config/scenarios/question-one-503.yaml`):\n\n"
        f"{_suspects(measured)}\n\n"
        "An eviction is ruled out: before response headers its answer is a 429. Three causes "
        "give a 503: an "
        "empty pool, a server that is gone or refuses, and one that needs no fault at all. "
        "vLLM's API server "
        "closes a connection that was unused for 5 s. A request that Envoy sends down it at that "
        "moment gets "
        "503 with `upstream_reset_before_response_started{connection_termination}`. Probes "
        "spread over 25 ms "
        f"before and after the closing (keep-alive {measured['keep_alive_s']:g} s):\n\n"
        f"{_arms(measured)}\n\n"
        "![503 by Envoy's setting](plots/question-one-503.svg)\n\n"
        "`reset-before-request` cannot help, since the request was sent. One retry on `reset` is "
        "not enough "
        "either: the next connection of the pool has been unused for as long, and what a server "
        "has begun may "
        "run twice. An idle timeout in Envoy below the server's ends it: then Envoy closes "
        "first. All files "
        "shipped here set 4 s, `extproc envoy-config` has it as an option, and `extproc check "
        "--envoy` names "
        "an Envoy file without it (its own default is an hour).\n\n"
        f"How often does the seed's traffic meet the moment? In its cell (bursts of 32) a burst reuses a "
        f"connection that was unused for just under 5 s {steady['reuses_per_idle_s']:g} times per "
        "second of "
        f"idle time in {steady['requests']:,} requests with varied lengths, and "
        f"{wave['reuses_per_idle_s']:g} "
        f"times with equal ones. With the window measured here ({bare['lost_ms']:g} ms, on a "
        "loopback with a "
        f"server that is hardly busy) that makes {steady['expected_503']:.2g} of "
        f"{SEED_REQUESTS:,}; for one it "
        f"would take a window of {needed_ms:.0f} ms, that is, an API server whose event loop is "
        "held up for so "
        "long. So the closed connection is possible but not likely on these figures, and an endpoint that "
        "left the pool for a moment (the peer answers 503 at once when its candidate list is "
        "empty) is as good "
        "a candidate; the report does not hold what would decide it. Neither can happen here: a "
        "request that "
        "finds no endpoint waits for one (`no_endpoint_ttl_s`), and Envoy closes its connections in time."
    )


def _suspects(measured: IdleReuseFigures) -> str:
    rows = "\n".join(
        f"| {each['suspect']} | {each['status']} | `{each['code']}` |" for each in measured["suspects"]
    )
    return f"| cause | status | code |\n|---|---|---|\n{rows}"


def _arms(measured: IdleReuseFigures) -> str:
    rows = "\n".join(
        f"| {name} | {arm['failed']} of {arm['probes']:,} | {arm['failed_share']:.2%} "
        f"({arm['interval'][0]:.2%} to {arm['interval'][1]:.2%}) |"
        for name, arm in measured["arms"].items()
    )
    return f"| Envoy's setting | 503 | share (95% interval) |\n|---|---|---|\n{rows}"
