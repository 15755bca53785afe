"""The doctor's questions to others: is every model server reachable, and is its clock like ours?"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from extproc.cli.doctor_checks import Finding, Level
from extproc.clock import SystemClock
from extproc.config.endpoints import DnsDiscovery, FileDiscovery, StaticDiscovery, split_address
from extproc.config.schema import Config

TIMEOUT_S = 3.0
MAX_SKEW_S = 2.0


def network_findings(config: Config) -> list[Finding]:
    """Every source of endpoints, and every server that can be named from here."""
    findings: list[Finding] = []
    for source in config.endpoints.discovery:
        match source:
            case StaticDiscovery():
                for entry in source.endpoints:
                    metrics = entry.metrics_address or entry.address
                    findings += _server(entry.name, entry.address, metrics, config)
            case DnsDiscovery():
                findings += _name(source, config)
            case FileDiscovery():
                findings.append(_file(source))
            case _:
                message = "asks the Kubernetes API at run time"
                findings.append(Finding(Level.OK, "discovery", message))
    return findings


def _file(source: FileDiscovery) -> Finding:
    try:
        with open(source.path, "rb") as file:
            file.read(1)
    except OSError as error:
        advice = "create it; until then the pool is empty"
        return Finding(Level.FAIL, "discovery", f"{source.path}: {error.strerror}", advice)
    return Finding(Level.OK, "discovery", f"{source.path} can be read")


def _name(source: DnsDiscovery, config: Config) -> Iterator[Finding]:
    try:
        answers = socket.getaddrinfo(source.name, source.port, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = "fine while no server runs behind it; else look at the name and at /etc/resolv.conf"
        yield Finding(Level.WARN, "discovery", f"{source.name}: {error.strerror}", advice)
        return
    addresses = sorted({f"{answer[4][0]}:{source.port}" for answer in answers if answer[0] == socket.AF_INET})
    yield Finding(Level.OK, "discovery", f"{source.name} is {', '.join(addresses)}")
    for address in addresses:
        yield from _server(address, address, address, config)


def _server(name: str, address: str, metrics_address: str, config: Config) -> Iterator[Finding]:
    answer = _get(address, "/v1/models")
    if isinstance(answer, str):
        advice = f"start it, or open the way: `curl http://{address}/v1/models` must answer here"
        yield Finding(Level.FAIL, f"endpoint {name}", f"{address}: {answer}", advice)
        return
    status, date, _ = answer
    level = Level.OK if status == 200 else Level.WARN
    yield Finding(level, f"endpoint {name}", f"{address} answers {status}", "is it a model server?")
    yield from _clock(name, date)
    if config.endpoints.scrape.enabled:
        yield _metrics(name, metrics_address, config)


def _metrics(name: str, address: str, config: Config) -> Finding:
    scrape = config.endpoints.scrape
    answer = _get(address, scrape.path)
    if isinstance(answer, str) or answer[0] != 200:
        said = answer if isinstance(answer, str) else f"answers {answer[0]}"
        advice = "measured detectors need it: set metrics_address or endpoints.scrape.path"
        return Finding(Level.WARN, f"metrics of {name}", f"{address}{scrape.path}: {said}", advice)
    names = scrape.metric_names().running_requests
    if not any(series.encode() in answer[2] for series in names):
        advice = "other engine? set endpoints.scrape.engine or endpoints.scrape.metrics"
        return Finding(Level.WARN, f"metrics of {name}", f"none of {', '.join(names)} is there", advice)
    return Finding(Level.OK, f"metrics of {name}", f"{address}{scrape.path} has them")


def _clock(name: str, date: str | None) -> Iterator[Finding]:
    """Deadlines come as epoch milliseconds, so this machine's clock must be right."""
    if date is None:
        return
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return
    skew_s = SystemClock().wall_time() - theirs
    if not -MAX_SKEW_S <= skew_s <= MAX_SKEW_S + 1:  # the header has whole seconds
        advice = "synchronise both clocks (chrony, systemd-timesyncd): x-request-deadline-ms is wall time"
        yield Finding(Level.WARN, "clock", f"differs from that of {name} by {skew_s:+.1f} s", advice)


def _get(address: str, path: str) -> tuple[int, str | None, bytes] | str:
    """Status, date and body; or what went wrong, in words."""
    host, port = split_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("date"), response.read(8 << 20)
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    except http.client.HTTPException as error:
        return f"no HTTP there ({type(error).__name__})"
    finally:
        connection.close()
