"""Whatever JSON an API server sends, it gives endpoints or none, and raises nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.config.endpoints import EndpointEntry
from extproc.runtime.discovery.kube_objects import pod_entries, pool_spec, slice_entries

_leaf = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70_000), st.sampled_from(["10.0.0.1", "Ready", "True", "x"])
)
_keys = st.sampled_from(
    [
        "metadata",
        "status",
        "spec",
        "podIP",
        "conditions",
        "type",
        "selector",
        "matchLabels",
        "targetPorts",
        "number",
        "endpoints",
        "addresses",
        "ports",
        "port",
        "targetRef",
        "labels",
        "uid",
        "name",
        "containerStatuses",
        "restartCount",
        "zone",
        "ready",
        "serving",
        "terminating",
    ]
)
_json: st.SearchStrategy[Any] = st.recursive(
    _leaf,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=5)),
    max_leaves=20,
)
_object = st.dictionaries(_keys, _json, max_size=6)


@given(st.lists(_object, max_size=3))
def test_any_object_is_read(objects: list[dict[str, Any]]) -> None:
    for entries in (pod_entries(objects, [80, 81]), slice_entries(objects, []), slice_entries(objects, [80])):
        assert all(isinstance(entry, EndpointEntry) for entry in entries)
    for item in objects:
        spec = pool_spec(item)
        assert spec is None or (spec.selector and spec.ports)
