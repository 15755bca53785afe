"""The pool as several lists see it: identities, and what changed."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.config.endpoints import EndpointEntry
from extproc.core.types import EndpointId
from extproc.runtime.discovery.membership import Changes, Membership


def entry(name: str, port: int = 8000, start: str = "", **rest: object) -> EndpointEntry:
    return EndpointEntry(name=name, address=f"10.0.0.1:{port}", start=start, **rest)  # type: ignore[arg-type]


def ids(changes: Changes) -> tuple[list[str], list[str], list[str]]:
    return tuple(  # type: ignore[return-value]
        [member.endpoint.id for member in part] for part in (changes.removed, changes.added, changes.updated)
    )


def test_the_same_list_again_changes_nothing() -> None:
    pool = Membership(1)
    assert ids(pool.replace(0, [entry("a"), entry("b", 8001)])) == (
        [],
        ["a|10.0.0.1:8000|+1", "b|10.0.0.1:8001|+2"],
        [],
    )
    assert not pool.replace(0, [entry("b", 8001), entry("a")])
    assert len(pool) == 2


def test_labels_and_draining_change_the_endpoint_in_place() -> None:
    pool = Membership(1)
    pool.replace(0, [entry("a")])
    changes = pool.replace(0, [entry("a", labels={"x": "y"}, draining=True)])
    assert ids(changes) == ([], [], ["a|10.0.0.1:8000|+1"])
    assert changes.updated[0].endpoint.is_draining
    assert changes.updated[0].endpoint.labels == {"x": "y"}


def test_field_bug_067_an_entry_that_comes_back_is_another_endpoint() -> None:
    pool = Membership(1)
    first = pool.replace(0, [entry("a")]).added[0].endpoint.id
    assert pool.replace(0, []).removed[0].endpoint.id == first
    assert pool.replace(0, [entry("a")]).added[0].endpoint.id != first


def test_field_bug_068_a_replaced_server_at_one_address_is_removed_before_the_new_one_comes() -> None:
    pool = Membership(1)
    pool.replace(0, [entry("a", start="gen1")])
    changes = pool.replace(0, [entry("a", start="gen2")])
    assert ids(changes) == (["a|10.0.0.1:8000|gen1"], ["a|10.0.0.1:8000|gen2"], [])


def test_a_restarted_process_takes_the_seat_under_another_id() -> None:
    pool = Membership(1)
    pool.replace(0, [entry("a", start="uid")])
    changes = pool.restart(EndpointId("a|10.0.0.1:8000|uid"))
    assert ids(changes) == (["a|10.0.0.1:8000|uid"], ["a|10.0.0.1:8000|uid+2"], [])
    assert not pool.restart(EndpointId("a|10.0.0.1:8000|uid"))
    assert not pool.replace(0, [entry("a", start="uid")])
    assert ids(pool.replace(0, [])) == (["a|10.0.0.1:8000|uid+2"], [], [])


def test_an_address_counts_once_and_the_first_source_wins() -> None:
    pool = Membership(2)
    pool.replace(1, [entry("late")])
    changes = pool.replace(0, [entry("early")])
    assert ids(changes)[1] == ["early|10.0.0.1:8000|+2"]
    assert len(pool) == 1
    assert [member.endpoint.name for member in pool.replace(0, []).added] == ["late"]


def test_the_metrics_may_be_elsewhere() -> None:
    pool = Membership(1)
    members = pool.replace(0, [entry("a", metrics_address="10.0.0.1:9000"), entry("b", 8001)]).added
    assert [member.metrics_address for member in members] == ["10.0.0.1:9000", "10.0.0.1:8001"]


_entries = st.builds(
    entry, st.sampled_from("abc"), st.integers(8000, 8002), st.sampled_from(["", "g1", "g2"])
)
_steps = st.lists(
    st.tuples(st.integers(0, 1), st.lists(_entries, max_size=4, unique_by=lambda e: (e.address,))),
    max_size=12,
)


@given(_steps)
def test_applying_the_changes_always_gives_the_members(steps: list[tuple[int, list[EndpointEntry]]]) -> None:
    pool = Membership(2)
    known: dict[str, object] = {}
    used: set[str] = set()
    for source, entries in steps:
        changes = pool.replace(source, entries)
        for member in changes.removed:
            del known[member.endpoint.id]
        for member in changes.added:
            assert member.endpoint.id not in known
            if not member.endpoint.id.endswith(("g1", "g2")):
                assert member.endpoint.id not in used
            used.add(member.endpoint.id)
            known[member.endpoint.id] = member
        for member in changes.updated:
            assert member.endpoint.id in known
            known[member.endpoint.id] = member
        assert known == {member.endpoint.id: member for member in pool.members()}
        assert len({member.endpoint.address for member in pool.members()}) == len(pool)
