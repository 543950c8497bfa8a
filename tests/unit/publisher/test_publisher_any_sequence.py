"""The publisher, property: any sequence of states, foreign edits, failures and restarts converges."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeletplugin.api import DriverResources, Pool
from kubeletplugin.client import ApiError, ApiUnreachableError
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from tests.unit.publisher.publisher_pools import NODE, SLICES, content

names = st.lists(st.sampled_from("abcdefgh"), max_size=4, unique=True)
states = st.dictionaries(st.sampled_from(["one", "two"]), st.lists(names, min_size=1, max_size=3), max_size=2)
edits = st.sampled_from(
    ["delete one", "delete all", "edit", "generation", "duplicate", "break watch", "expire", "node"]
)
troubles = st.sampled_from(["fail", "lose answers", "restart"])
steps = st.lists(
    st.one_of(
        states.map(lambda state: ("want", state)),
        edits.map(lambda edit: ("edit", edit)),
        troubles.map(lambda trouble: ("trouble", trouble)),
    ),
    max_size=7,
)


def disturb_at_last(bench: Any, edit: str) -> None:
    """The server's troubles meet administrators too, who try again."""
    last: Exception | None = None
    for _ in range(20):  # more than the troubles of all steps together
        try:
            return disturb(bench, edit)
        except (ApiError, ApiUnreachableError) as error:
            last = error
    raise AssertionError(f"the administrator gave up: {last}")


def disturb(bench: Any, edit: str) -> None:
    """What an administrator, a kubelet or another driver may do."""
    stored = bench.client.get(SLICES)["items"]
    if edit == "break watch":
        bench.server.faults.close_watches()
    elif edit == "expire":
        bench.server.faults.expire_watches()
    elif edit == "delete all":
        bench.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE}"})
    elif edit == "node":
        if bench.client.get("/api/v1/nodes")["items"]:  # not so after a first try whose answer was lost
            bench.client.delete(f"/api/v1/nodes/{NODE}")
        bench.make_node()
    elif stored:
        disturb_slice(bench, edit, stored[0])


def disturb_slice(bench: Any, edit: str, stored: dict[str, Any]) -> None:
    where = f"{SLICES}/{stored['metadata']['name']}"
    if edit == "delete one":
        bench.client.delete(where)
    elif edit == "edit":
        bench.client.patch(where, {"spec": {"devices": [{"name": "foreign"}]}})
    elif edit == "generation":
        bench.client.patch(where, {"spec": {"pool": {"generation": stored["spec"]["pool"]["generation"] + 3}}})
    else:
        metadata = {
            "generateName": stored["metadata"]["name"][:6],
            "ownerReferences": stored["metadata"]["ownerReferences"],
        }
        bench.client.create(SLICES, {"metadata": metadata, "spec": stored["spec"]})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, last=states)
def test_any_sequence_of_states_foreign_edits_failures_and_restarts_converges(
    bench_class: Any, steps: Any, last: Any
) -> None:
    def resources(state: dict[str, list[list[str]]]) -> DriverResources:
        """Names are made unique in their pool; every slice has at least one device of its own."""
        return DriverResources(
            {
                pool: Pool(
                    tuple(
                        content(*(f"{name}-{index}" for name in ["s", *slice_])) for index, slice_ in enumerate(slices)
                    )
                )
                for pool, slices in state.items()
            }
        )

    with EmbeddedApiServer() as server:
        bench = bench_class(server)
        try:
            publisher = bench.publisher(repair_delay=0.005)
            for kind, what in steps:
                if kind == "want":
                    publisher.update(resources(what))
                elif kind == "edit":
                    disturb_at_last(bench, what)
                elif what == "fail":
                    server.faults.fail(500, "InternalError", path="/resourceslices", times=2)
                elif what == "lose answers":
                    server.faults.lose_answers(times=2)
                else:  # another instance goes on where this one was
                    publisher.stop()
                    publisher = bench.publisher(repair_delay=0.005)
            server.faults.clear()
            wanted = resources(last)
            publisher.update(wanted)
            bench.eventually(lambda: converged(bench, wanted), timeout=20)
        finally:
            bench.stop()


def converged(bench: Any, wanted: DriverResources) -> bool:
    """Exactly the wanted devices, one generation and the right count in each pool, owned by the Node as it is."""
    stored = bench.client.get(SLICES)["items"]
    uid = bench.client.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
    by_pool: dict[str, list[dict[str, Any]]] = {}
    for item in stored:
        by_pool.setdefault(item["spec"]["pool"]["name"], []).append(item)
    if by_pool.keys() != wanted.pools.keys():
        return False
    return all(
        [tuple(item["spec"]["devices"]) for item in by_pool[name]] == [piece.devices for piece in pool.slices]
        and len({item["spec"]["pool"]["generation"] for item in by_pool[name]}) == 1
        and {item["spec"]["pool"]["resourceSliceCount"] for item in by_pool[name]} == {len(pool.slices)}
        and all(item["metadata"]["ownerReferences"][0]["uid"] == uid for item in by_pool[name])
        for name, pool in wanted.pools.items()
    )
