"""Does Envoy send a request where extproc says? The clusters and retries behind the destination header.

Two kinds of cluster obey it: ORIGINAL_DST, which connects to the one address in the header, and a list of
endpoints with the override_host policy, which tries the addresses in the header one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config.envoy_bootstrap import OVERRIDE_HOST, Bootstrap, Found, number, typed
from extproc.config.yaml_source import Data, Path
from extproc.exchange.names import DESTINATION

Finding = tuple[Path, str]
_FEWER = "name one (max_endpoints: 1 in every picker profile, fallbacks: 0 for least-inflight)"
_LISTED = "list the servers with the override_host policy (`extproc envoy-config --endpoint ...` writes it)"


def destination_problems(
    bootstrap: Bootstrap, path: Path, route: dict[str, Data], addresses: int
) -> Iterator[Finding]:
    """What keeps this route from obeying a header of up to `addresses` addresses: where, and what to do."""
    takes_several = False
    for cluster_path, cluster in bootstrap.clusters_of(route):
        if cluster.get("type") == "ORIGINAL_DST":
            yield from _original_dst(cluster_path, cluster, addresses)
        takes_several |= any(typed(OVERRIDE_HOST, cluster, cluster_path))
        yield from _aggregate(bootstrap, cluster_path, cluster)
    if takes_several and addresses > 1:
        yield from _retries(path, route, addresses)


def _original_dst(path: Path, cluster: dict[str, Data], addresses: int) -> Iterator[Finding]:
    if addresses > 1:
        yield (
            (*path, "type"),
            f"ORIGINAL_DST takes one address, but {DESTINATION} may hold {addresses}: Envoy answers every "
            f"such request with 503 (no healthy upstream); {_FEWER}, or {_LISTED}",
        )
    options = cluster.get("original_dst_lb_config")
    options = options if isinstance(options, dict) else {}
    where = (*path, "original_dst_lb_config")
    if options.get("use_http_header") is not True:
        yield (
            (*where, "use_http_header"),
            "must be true: else Envoy goes where the client had connected to, not to the chosen server",
        )
    elif options.get("http_header_name") != DESTINATION:
        yield (*where, "http_header_name"), f"must be {DESTINATION}: it is where extproc names the server"


def _aggregate(bootstrap: Bootstrap, path: Path, cluster: dict[str, Data]) -> Iterator[Finding]:
    for name in bootstrap.members(path, cluster):
        member: Found | None = bootstrap.cluster(name)
        if member is not None and member[1].get("type") == "ORIGINAL_DST":
            yield (
                (*path, "cluster_type"),
                f"an aggregate never chooses its ORIGINAL_DST member {name!r}, which lists no hosts: "
                f"requests go to the other members, whatever extproc chose, or get 503; route to {name!r} "
                f"itself, or {_LISTED}",
            )


def _retries(path: Path, route: dict[str, Data], addresses: int) -> Iterator[Finding]:
    policy = route.get("retry_policy")
    policy = policy if isinstance(policy, dict) else {}
    retries, fallbacks = number(policy.get("num_retries"), 1), addresses - 1
    if not str(policy.get("retry_on", "")).strip():
        yield (
            (*path, "retry_policy"),
            f"{DESTINATION} may hold {addresses} addresses, but only the first is ever used: nothing is "
            "tried again; add {retry_on: 'connect-failure,reset-before-request', "
            f"num_retries: {fallbacks}}}",
        )
    elif retries < fallbacks:
        yield (
            (*path, "retry_policy", "num_retries"),
            f"{retries:g} (default 1), but {DESTINATION} may hold {fallbacks} fallbacks: the last ones are "
            "never used",
        )
