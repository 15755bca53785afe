"""A metrics page gives the same figures however it is cut, whichever way it is read; nothing raises."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from extproc.formats.engine_metrics import VLLM_NAMES
from extproc.formats.prometheus import MetricsReader

_names = st.sampled_from(
    [
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting_by_reason",
        b"vllm:kv_cache_usage_perc",
        b"vllm:gpu_cache_usage_perc",
        b"process_start_time_seconds",
        b"other_total",
    ]
)
_labels = st.sampled_from([b"", b'{engine="0"}', b'{engine="1",model_name="a b} 3"}', b'{x="\\""}', b'{"'])
_values = st.one_of(
    st.integers(0, 10**6).map(lambda n: b"%d" % n),
    st.floats(0, 1).map(lambda x: repr(x).encode()),
    st.sampled_from([b"NaN", b"", b"7 1700000000", b"-3"]),
)
_samples = st.tuples(_names, _labels, _values).map(lambda t: t[0] + t[1] + b" " + t[2])
_comments = _names.map(lambda name: b"# TYPE " + name + b" gauge")
_lines = st.lists(st.one_of(_samples, _comments, st.binary(max_size=12)), max_size=25)
_pages = st.tuples(_lines, st.booleans()).map(lambda t: b"\n".join(t[0]) + (b"\n" if t[1] else b""))


@given(_pages, st.lists(st.integers(0, 600), max_size=8))
def test_every_cut_gives_the_same_figures(page: bytes, cuts: list[int]) -> None:
    whole = MetricsReader(VLLM_NAMES).read_page(page)
    feed = MetricsReader(VLLM_NAMES).start_page()
    edges = [0, *sorted(min(cut, len(page)) for cut in cuts), len(page)]
    for start, end in itertools.pairwise(edges):
        feed.feed(page[start:end])
    assert feed.finish() == whole


_FAMILIES = (b"process_start_time_seconds", b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc")
_series = st.lists(st.tuples(_labels, _values), min_size=1, max_size=4)
_exported = st.tuples(st.integers(0, 3000), *(_series for _ in _FAMILIES))


def _printed(page: tuple[int, *tuple[list[tuple[bytes, bytes]], ...]]) -> bytes:
    """A page as every exporter prints it: each family once, behind its comment line."""
    noise, *families = page
    text = b"# TYPE other counter\nother " + b"1" * noise + b"\n"
    for name, series in zip(_FAMILIES, families, strict=True):
        text += b"# TYPE " + name + b" gauge\n"
        text += b"".join(name + labels + b" " + value + b"\n" for labels, value in series)
    return text


@given(st.lists(_exported.map(_printed), min_size=2, max_size=5))
def test_the_page_read_before_never_changes_what_is_read(pages: list[bytes]) -> None:
    reader = MetricsReader(VLLM_NAMES)
    for page in pages:
        assert reader.read_page(page) == MetricsReader(VLLM_NAMES).read_page(page)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_exception(page: bytes) -> None:
    reader = MetricsReader(VLLM_NAMES)
    assert reader.read_page(page) == reader.read_page(page)
