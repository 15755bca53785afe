"""Reports and grants as bytes (MessagePack); what can't be read is the sender's fault, never a crash."""

from __future__ import annotations

import msgspec

from extproc.core.credits import Grant, Report
from extproc.errors import PeerProtocolError
from extproc.runtime.replicas.status import MemberSummary

_ENCODER = msgspec.msgpack.Encoder()
_REPORTS = msgspec.msgpack.Decoder(Report)
_GRANTS = msgspec.msgpack.Decoder(Grant)
_SUMMARIES = msgspec.msgpack.Decoder(MemberSummary)


def encode(letter: Report | Grant | MemberSummary) -> bytes:
    return _ENCODER.encode(letter)


def decode_report(data: bytes) -> Report:
    """Raises PeerProtocolError: another version, or another program on the same keys."""
    try:
        return _REPORTS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerProtocolError(f"a replica's report can't be read: {error}") from error


def decode_grant(data: bytes) -> Grant:
    """Raises PeerProtocolError, as `decode_report`."""
    try:
        return _GRANTS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerProtocolError(f"a grant can't be read: {error}") from error


def decode_summary(data: bytes) -> MemberSummary | None:
    """None: unreadable; it is only shown."""
    try:
        return _SUMMARIES.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
