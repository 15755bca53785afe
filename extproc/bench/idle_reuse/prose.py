"""The answer to "the one 503 in 1,440" for docs/reproduction.md, from kept figures; pure."""

from __future__ import annotations

from extproc.bench.idle_reuse.report import SEED_REQUESTS, ArmFigures, IdleReuseFigures, PatternFigures


def one_503(emulated: IdleReuseFigures, real: IdleReuseFigures, *, refused: int, sent: int) -> str:
    """`refused` of `sent` interactive requests got a refusal in virtual time; `real` is with a real vLLM."""
    return "\n\n".join(
        [
            f"In virtual time {refused} of {sent:,} interactive requests of this suite were refused (tokens "
            "mode, all loads and arms): flow control has no cause for it. So each cause outside it was made "
            "to happen over real sockets, through Envoy and extproc (`extproc bench idle-reuse`, about six "
            "minutes):",
            _suspects(emulated),
            "An eviction is ruled out: before response headers its answer is a 429. Three causes give a 503: "
            "an empty pool, a server that is gone or refuses, and one that needs no fault at all. vLLM's API "
            "server closes a connection that was unused for 5 s. A request that Envoy sends down it at that "
            "moment gets 503 with `upstream_reset_before_response_started{connection_termination}`. Probes "
            "spread evenly over some 25 ms before and after the closing:",
            _arms(emulated, real),
            "![503 by Envoy's setting](plots/question-one-503.svg)",
            "`reset-before-request` cannot help, since the request was sent. One retry on `reset` is not "
            "enough either: the next connection of the pool has been unused for as long, and what a server "
            "has begun may run twice. An idle timeout in Envoy below the server's ends it: then Envoy closes "
            "first. All files shipped here set 4 s, `extproc envoy-config` has it as an option, and `extproc "
            "check --envoy` names an Envoy file without it (Envoy's own default is an hour).",
            _odds(emulated, real),
        ]
    )


def _odds(emulated: IdleReuseFigures, real: IdleReuseFigures) -> str:
    """How often the seed's traffic meets the moment, and what follows."""
    steady, wave = _pattern(emulated, "steady"), _pattern(emulated, "wave")
    per_request = steady["reuses_per_idle_s"] / steady["requests"]
    lost_ms = _bare(real)["lost_ms"]
    expected = per_request * lost_ms / 1000 * SEED_REQUESTS
    needed_ms = 1000 / (per_request * SEED_REQUESTS)
    return (
        "How often does the seed's traffic meet the moment? In its cell (bursts of 32) requests with "
        "varied output lengths take a connection that was unused for just under 5 s "
        f"{steady['reuses_per_idle_s']:g} times per second of idle time in {steady['requests']:,} "
        f"requests, with equal ones {wave['reuses_per_idle_s']:g} times. With the window measured on the "
        f"real vLLM ({lost_ms:g} ms, on a loopback, hardly busy) that makes {expected:.2g} of "
        f"{SEED_REQUESTS:,}; for one of them it takes a window of {needed_ms:.0f} ms: an API server "
        "whose event loop is held up for so long. So the closed connection is possible but not likely "
        "on these figures. An endpoint that left the pool for a moment (the peer answers 503 at once "
        "when its candidate list is empty) is as good a candidate, and the report does not hold what "
        "would decide it. Neither happens here: a request that finds no endpoint waits for one "
        "(`no_endpoint_ttl_s`), and Envoy closes its connections in time."
    )


def _bare(measured: IdleReuseFigures) -> ArmFigures:
    return next(iter(measured["arms"].values()))


def _pattern(measured: IdleReuseFigures, setting: str) -> PatternFigures:
    return next(each for each in measured["patterns"] if each["setting"] == setting)


def _suspects(measured: IdleReuseFigures) -> str:
    rows = "\n".join(
        f"| {each['suspect']} | {each['status']} | `{each['code']}` |" for each in measured["suspects"]
    )
    return f"| cause | status | code |\n|---|---|---|\n{rows}"


def _arms(emulated: IdleReuseFigures, real: IdleReuseFigures) -> str:
    rows = "\n".join(
        f"| {name} | {_failed(arm)} | {_failed(real['arms'][name])} |"
        for name, arm in emulated["arms"].items()
    )
    heads = (
        f"503 with the emulated vLLM, keep-alive {emulated['keep_alive_s']:g} s (95% interval)",
        f"503 with vLLM 0.30 on a CPU, keep-alive {real['keep_alive_s']:g} s (95% interval)",
    )
    return f"| Envoy's setting | {' | '.join(heads)} |\n|---|---|---|\n{rows}"


def _failed(arm: ArmFigures) -> str:
    low, high = arm["interval"]
    return f"{arm['failed']} of {arm['probes']:,} ({low:.2%} to {high:.2%})"
