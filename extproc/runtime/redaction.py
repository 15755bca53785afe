"""What may be shown of values that came from clients or from secret settings.

Fairness ids can be anything, an API key in the worst case: enough is kept to tell two apart and to find one's
own. It knows nothing of where the values are shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

MASK = "***"

_SECRET_KEY = re.compile(r"(^|_)(token|password|passwd|secret|api_key|apikey|private_key|credentials?)($|_)")
_SECRET_EXCEPTION = re.compile(r"(_file|_tokens|_path)$")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact_id(value: str) -> str:
    """Short ids as they are; longer ones as their first four characters and six digits of their hash."""
    if len(value) <= 16 and value.isprintable():
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{value[:4] if value[:4].isprintable() else ''}…{digest}"


def redact_settings(value: object) -> object:
    """A copy of plain data with the values of secret-looking keys and passwords in URLs masked.

    Paths of files that hold secrets (`token_file`) and counts of tokens (`max_tokens`) are not secrets.
    """
    if isinstance(value, Mapping):
        return {
            key: MASK if _is_secret(str(key)) and item not in (None, "") else redact_settings(item)
            for key, item in value.items()
        }
    if isinstance(value, str):
        return _USERINFO.sub(MASK, value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [redact_settings(item) for item in value]
    return value


def _is_secret(key: str) -> bool:
    lowered = key.lower().replace("-", "_")
    return bool(_SECRET_KEY.search(lowered)) and not _SECRET_EXCEPTION.search(lowered)
