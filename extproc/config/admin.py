"""Settings of the admin port: where it listens and who may read it.

The admin port shows queues, endpoints and the configuration in force. It is meant for operators, so it
listens on the loopback interface unless told otherwise, and refuses to listen elsewhere without a token or
client certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from extproc.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The admin HTTP port.

    `port` 0 takes a free one (it is logged). `token_file` holds a bearer token, read again at each request so
    that a rotated secret works at once. `tls_cert_file` and `tls_key_file` switch to HTTPS; `client_ca_file`
    then demands a client certificate. `open_metrics` lets /metrics be read without a token (health checks
    always may be). `llm_d_metrics` also exports llm-d-router's flow-control names, with `pool_name` in their
    label `inference_pool`.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 9090
    token_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    client_ca_file: str | None = None
    open_metrics: bool = False
    llm_d_metrics: bool = False
    pool_name: str = "default"

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.port <= 65535:
            problems.append(Problem("port", f"must be from 0 to 65535, not {self.port}"))
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            problems.append(Problem("tls_key_file", "tls_cert_file and tls_key_file belong together"))
        if self.client_ca_file is not None and self.tls_cert_file is None:
            problems.append(Problem("client_ca_file", "needs tls_cert_file and tls_key_file"))
        if not self.is_loopback and self.token_file is None and self.client_ca_file is None:
            problems.append(
                Problem(
                    "host",
                    f"{self.host} can be reached from other machines: set token_file or client_ca_file, "
                    "or listen on 127.0.0.1",
                )
            )
        if problems:
            raise ConfigError(problems)

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
