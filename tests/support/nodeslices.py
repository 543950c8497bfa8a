"""What nodes publish, drawn at random: several drivers, pools of several slices, counters, attributes of all kinds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from driver.analysis.shape import AttributeKinds
from driver.analysis.shape.kinds import EQUALITY, FABRIC, LAUNCH, RUNTIME, SOFTWARE, TYPE
from tests.support import dradocs as dra

JSON = dict[str, Any]
NUMA, ROOT, BUS = (f"resource.kubernetes.io/{name}" for name in ("numaNode", "pcieRoot", "pciBusID"))
OWN = {
    "productName": TYPE,
    "driverVersion": SOFTWARE,
    "nvlinkGroup": EQUALITY,
    "uuid": LAUNCH,
    "fabricClique": FABRIC,
    "nvlinkCount": RUNTIME,
}
KINDS = AttributeKinds({f"{dra.DRIVER}/{name}": kind for name, kind in OWN.items()})

values = st.one_of(
    st.integers(-5, 5).map(lambda v: {"int": v}),
    st.booleans().map(lambda v: {"bool": v}),
    st.text("abc", min_size=1, max_size=3).map(lambda v: {"string": v}),
    st.integers(0, 3).map(lambda v: {"version": f"1.{v}.0"}),
    st.lists(st.integers(0, 2), min_size=1, max_size=2).map(lambda v: {"ints": v}),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=2).map(lambda v: {"strings": v}),
)
attribute_names = st.sampled_from([*OWN, NUMA, ROOT, "model", "rack", "serial", "example.com/x"])
quantities = st.sampled_from(["1", "80Gi", "500m", "2e3"])


@st.composite
def nodes(draw: st.DrawFn) -> list[JSON]:
    """What a node publishes: some drivers, pools of one or more slices, some with counters."""
    slices = []
    for number, driver in enumerate(
        draw(st.lists(st.sampled_from(["a.example.com", dra.DRIVER]), min_size=1, max_size=3))
    ):
        pool = draw(st.sampled_from([f"node-a/{number}", f"pool-{number}", f"x-node-a-{number}"]))
        parts: list[JSON] = []
        if draw(st.booleans()):
            parts.append({"sharedCounters": [dra.counter_set("c", m=draw(quantities))]})
        for part in range(draw(st.integers(1, 3))):
            devices = [
                {
                    "name": f"d-{part}-{index}",
                    "attributes": draw(st.dictionaries(attribute_names, values, max_size=5)),
                    "capacity": {"memory": {"value": draw(quantities)}},
                    **({"consumesCounters": dra.uses("c", m="1")} if parts and "sharedCounters" in parts[0] else {}),
                    **({"taints": [dra.taint()]} if draw(st.booleans()) else {}),
                }
                for index in range(draw(st.integers(0, 3)))
            ]
            parts.append({"devices": devices})
        slices += [
            dra.resource_slice(driver=driver, pool=pool, count=len(parts), name=f"{index:05x}-{number}", **part)
            if "sharedCounters" in part
            else dra.resource_slice(
                *part["devices"], driver=driver, pool=pool, count=len(parts), name=f"{index:05x}-{number}"
            )
            for index, part in enumerate(parts)
        ]
    return slices
