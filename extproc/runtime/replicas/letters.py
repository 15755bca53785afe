"""Reports and grants as bytes (MessagePack); what can't be read is the sender's fault, never a crash."""

from __future__ import annotations

import msgspec

from extproc.core.credits import Grant, Report
from extproc.errors import PeerProtocolError

_ENCODER = msgspec.msgpack.Encoder()
_REPORTS = msgspec.msgpack.Decoder(Report)
_GRANTS = msgspec.msgpack.Decoder(Grant)


def encode(letter: Report | Grant) -> bytes:
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
