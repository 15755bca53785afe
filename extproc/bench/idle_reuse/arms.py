"""What is compared: Envoy without precautions, with each precaution, and with what the shipped files set."""

from __future__ import annotations

from dataclasses import dataclass

NEVER_S = 3600.0
"""Envoy's own default: it keeps unused connections for an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleArm:
    """`idle_share` is Envoy's upstream idle timeout as a share of the server's keep-alive (None: an hour);
    `retry_on` are Envoy's words for one more attempt at the same server.
    """

    name: str
    idle_share: float | None = None
    retry_on: str = ""

    def idle_timeout_s(self, keep_alive_s: float) -> float:
        """The upstream idle timeout beside a server that closes after `keep_alive_s`."""
        return NEVER_S if self.idle_share is None else self.idle_share * keep_alive_s


BARE = IdleArm(name="no precautions")
SHIPPED = IdleArm(name="idle timeout below the server's (shipped)", idle_share=0.8)
IDLE_ARMS: tuple[IdleArm, ...] = (
    BARE,
    IdleArm(name="retry: reset-before-request", retry_on="connect-failure,reset-before-request"),
    IdleArm(name="retry: reset", retry_on="connect-failure,reset"),
    SHIPPED,
)
