#!/usr/bin/env python3
"""Makes docs/conformance.md: each scenario of Kubernetes' own DRA tests, and the test here that covers it, or why none.

    .venv/bin/python hack/conformance.py

The names come from tests/data/upstream/names.json (hack/upstream_tables.py takes them from the pinned version). A test
fails when a name has no entry here, when an entry has no name or names a test that is not there, and when the page is
stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "tests/data/upstream/names.json"
PAGE = ROOT / "docs/conformance.md"
VERSION = "1.37.2"

NODE = "test/e2e_node/dra_test.go"
E2E = "test/e2e/dra/dra.go"

_FILES = {
    "calls": "tests/kubelet/test_calls_of_the_kubelet.py",
    "registering": "tests/kubelet/test_registering.py",
    "two": "tests/kubelet/test_two_drivers.py",
    "gone": "tests/kubelet/test_gone_and_back.py",
    "health": "tests/kubelet/test_health_of_devices.py",
    "shares": "tests/kubelet/test_shares.py",
    "metadata": "tests/kubelet/test_metadata_in_containers.py",
    "updates": "tests/kubelet/test_slices_and_updates.py",
    "claims": "tests/cluster/test_claims.py",
    "restarts": "tests/cluster/test_restarts.py",
    "policy": "tests/cluster/test_admission_policy.py",
    "daemonset": "tests/cluster/test_daemonset.py",
    "status": "tests/cluster/test_claim_status.py",
    "plugin": "tests/unit/kubelet_side/test_plugin.py",
    "streams": "tests/unit/kubelet_side/test_health_service.py",
    "board": "tests/unit/kubelet_side/test_health.py",
    "rolling": "tests/unit/kubelet_side/test_rolling_update.py",
    "sockets": "tests/unit/upstream/test_registration.py",
    "slices": "tests/unit/upstream/test_slice_controller.py",
    "publisher": "tests/unit/publisher/test_publisher.py",
}

_API = "The API server's alone: its objects, validation, quota, or the rights of other accounts."
_SCHEDULER = "The scheduler's: which devices a claim gets. The plugin sees the result, like any other."
_CONTROLLER = "The controllers': claims made from templates, reservations, deallocation. The plugin takes no part."
_POOL_STATUS = (
    "ResourcePoolStatusRequest is answered by a controller from published slices (alpha gate, off by default)."
)
_EXTENDED = "Extended resources become claims before the kubelet asks; the plugin is called as for any claim."
_POD_GROUPS = "Claims of pod groups are made and reserved by others (gate off by default); Prepare is as for any claim."
_TAINTS = (
    "What a taint does is the scheduler's and a controller's affair; that it is published is tested with the publisher."
)
_ONE_SOCKET = "Registration and the DRA service always have a socket each here, so there is no common one to lose."
_ALWAYS_SERVED = (
    "A different order on purpose: here the DRA service answers before there is a registration socket, and both end"
    " together, so no kubelet ever meets a registered plugin without its service"
    " (tests/unit/kubelet_side/test_plugin.py::test_the_service_answers_before_anybody_can_register_it)."
)
_SKIPPED = "Decided by the kubelet from the slice; skipNodeOperations itself is published (alpha gate, off by default)."
_KUBELET = "The kubelet's own: nothing of it reaches the plugin."

_FOREIGN_STATUS = (
    "must be impossible for a node ServiceAccount to update the non-node ResourceClaim.Status.Devices once allocated"
)

COVERED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    NODE: {
        "must register after Kubelet restart": ("registering::test_it_registers_again_after_a_restart_of_the_kubelet",),
        "must register after plugin restart": ("registering::test_it_registers_again_after_a_restart_of_the_plugin",),
        "must recover and register after registration failure": (
            "registering::test_it_registers_after_a_call_of_the_registration_failed",
        ),
        "must recover and register after NotifyRegistrationStatus failure": (
            "registering::test_it_registers_after_a_call_of_the_registration_failed",
        ),
        "must process pod created when kubelet is not running": (
            "calls::test_a_pod_made_while_no_kubelet_ran_is_prepared",
        ),
        "must keep pod in pending state if NodePrepareResources times out": (
            "calls::test_a_pod_stays_pending_while_prepare_hangs_and_runs_after",
        ),
        "must run pod if NodePrepareResources fails and then succeeds": (
            "calls::test_a_pod_runs_after_prepare_failed_and_then_succeeds",
        ),
        "must run pod if NodeUnprepareResources fails and then succeeds": (
            "calls::test_a_pod_that_ended_is_unprepared_although_that_failed_at_first",
        ),
        "must retry NodePrepareResources after Kubelet restart": (
            "calls::test_a_prepare_that_failed_is_tried_again_after_a_restart_of_the_kubelet",
        ),
        "must retry NodeUnprepareResources after Kubelet restart": (
            "calls::test_an_unprepare_that_failed_is_tried_again_after_a_restart_of_the_kubelet",
        ),
        "must call NodeUnprepareResources for deleted pod": (
            "calls::test_unprepare_goes_on_until_it_succeeds_although_the_pod_is_deleted",
        ),
        "must call NodeUnprepareResources for deleted pod after Kubelet restart": (
            "gone::test_a_claim_of_a_pod_that_was_forced_out_is_unprepared_after_a_restart_of_the_kubelet",
        ),
        "must not call NodePrepareResources for deleted pod after Kubelet restart": (
            "calls::test_prepare_is_not_called_for_a_pod_that_was_deleted_while_no_kubelet_ran",
        ),
        "must be functional after service reconnect: 2 sockets": (
            "gone::test_the_one_that_was_away_long_is_taken_back_with_slices_and_health",
            "gone::test_a_pod_from_before_is_unprepared_by_the_plugin_that_is_back",
        ),
        "must report gRPC serving error: for registrar": ("plugin::test_a_socket_that_somebody_removed_is_noticed",),
        "must report gRPC serving error: for DRA service": ("plugin::test_a_socket_that_somebody_removed_is_noticed",),
        "must prepare and unprepare resources": ("two::test_a_claim_of_both_is_prepared_and_unprepared_by_both",),
        "must run pod if NodePrepareResources fails for one plugin and then succeeds": (
            "two::test_a_pod_runs_after_prepare_of_one_failed_and_then_succeeds",
        ),
        "must run pod if NodeUnprepareResources fails for one plugin and then succeeds": (
            "two::test_a_pod_ends_after_unprepare_of_one_failed_and_then_succeeds",
        ),
        "must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts": (
            "two::test_a_pod_runs_although_the_kubelet_restarted_while_one_was_at_work",
        ),
        "must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts": (
            "two::test_unprepare_is_called_again_when_the_kubelet_restarted_while_one_was_at_work",
        ),
        "must be removed on kubelet startup": (
            "updates::test_slices_are_removed_by_a_starting_kubelet_and_come_back_those_of_other_nodes_stay",
        ),
        "must be removed after plugin unregistration": (
            "gone::test_the_slices_of_the_one_that_was_away_long_were_removed",
        ),
        "must be removed if plugin stops after registration: 2 sockets": (
            "gone::test_the_slices_of_the_one_that_was_away_long_were_removed",
        ),
        "must not be removed if plugin restarts quickly enough: 2 sockets": (
            "gone::test_the_slices_of_the_one_that_was_back_at_once_are_the_same",
        ),
        "should reflect device health changes in the Pod's status": (
            "health::test_pod_status_follows_the_health_of_its_device_within_a_minute",
        ),
        "should reflect device health changes for a plugin which only supports the v1alpha1 health API": (
            "health::test_pod_status_follows_the_health_of_its_device_within_a_minute",
        ),
        "should reflect device health changes for a plugin which only supports the v1 health API": (
            "health::test_pod_status_follows_the_health_of_its_device_within_a_minute",
        ),
        "should update health to Unknown when plugin stops and recover upon restart": (
            "gone::test_health_was_unknown_without_the_plugin",
            "gone::test_the_one_that_was_away_long_is_taken_back_with_slices_and_health",
        ),
        "should automatically reconnect both DRA and Health API after connection drop": (
            "gone::test_health_was_unknown_without_the_plugin",
            "gone::test_a_new_pod_runs_and_its_health_is_followed",
        ),
        "should handle concurrent DRA operations and health monitoring without connection issues": (
            "health::test_three_pods_and_their_health_are_served_at_the_same_time",
            "streams::test_more_streams_than_all_workers_leave_prepare_and_registration_alone",
        ),
        "should reflect device health changes for devices with ShareID": (
            "health::test_shares_of_a_device_are_as_well_as_the_device",
        ),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: without ShareID": (
            "shares::test_the_devices_of_an_allocation_are_prepared_share_by_share",
        ),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: with a ShareID": (
            "shares::test_the_devices_of_an_allocation_are_prepared_share_by_share",
        ),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: same device with two ShareIDs": (
            "shares::test_the_devices_of_an_allocation_are_prepared_share_by_share",
        ),
    },
    E2E: {
        "registers plugin": ("registering::test_it_registers_again_after_a_restart_of_the_plugin",),
        "must retry NodePrepareResources": ("calls::test_a_pod_runs_after_prepare_failed_and_then_succeeds",),
        "must not run a pod if a claim is not ready": ("calls::test_a_pod_whose_claim_is_not_allocated_does_not_run",),
        "must unprepare resources for force-deleted pod": ("calls::test_a_force_deleted_pod_is_unprepared",),
        "must call NodePrepareResources even if not used by any container": (
            "calls::test_a_claim_that_no_container_uses_is_prepared_all_the_same",
            "claims::test_a_pod_may_hold_a_claim_that_no_container_uses",
        ),
        "must map configs and devices to the right containers": (
            "calls::test_configs_and_devices_reach_the_right_containers",
        ),
        "blocks new pod after force-delete": (
            "calls::test_a_new_pod_waits_until_the_force_deleted_one_of_its_name_is_unprepared",
        ),
        "must mount device metadata for resource claims": (
            "metadata::test_metadata_of_a_claim_is_in_its_container_and_in_no_other",
        ),
        "must map device metadata to the right containers": (
            "metadata::test_a_container_of_one_request_has_the_metadata_of_that_request_alone",
        ),
        "must mount device metadata for resource claim templates": (
            "metadata::test_metadata_of_a_claim_from_a_template_goes_by_the_pods_name_for_it",
        ),
        "must not race when multiple drivers write metadata for the same request": (
            "two::test_one_request_can_have_devices_of_both_and_each_ones_metadata",
        ),
        "must manage ResourceSlices": (
            "updates::test_the_slice_of_a_node_is_exactly_this",
            "restarts::test_a_slice_that_somebody_deletes_is_back",
            "restarts::test_a_slice_that_somebody_edits_is_put_right",
        ),
        "supports init containers with external claims": (
            "claims::test_an_init_container_uses_the_claim_before_the_others",
        ),
        "reconciles ResourceSlices with ReconcilePoolWithName": (
            "updates::test_a_pool_that_is_cared_for_by_its_name_is_repaired",
            "slices::test_controller_pool_name_field_selector",
        ),
        "runs pod after driver starts": (
            "registering::test_a_pod_that_was_there_before_the_driver_runs_once_there_is_one",
        ),
        "rolling update": ("updates::test_an_update_side_by_side_leaves_slices_to_the_byte_and_pods_run",),
        "rolling update with long driver name": (
            "updates::test_an_update_side_by_side_leaves_slices_to_the_byte_and_pods_run",
            "sockets::test_uses_shortest_form_for_very_long_driver_name",
        ),
        "failed update": (
            "updates::test_a_failed_update_leaves_the_old_instance_at_work",
            "rolling::test_a_new_one_that_dies_at_its_start_harms_nothing",
        ),
        "sequential update with pods replacing each other": (
            "gone::test_the_slices_of_the_one_that_was_back_at_once_are_the_same",
            "gone::test_the_one_that_was_back_at_once_works",
            "gone::test_the_slices_of_the_one_that_was_away_long_were_removed",
        ),
        "supports claim and class parameters": (
            "calls::test_parameters_of_the_class_reach_the_container_beside_those_of_the_claim",
        ),
        "supports reusing resources": ("claims::test_of_nine_pods_on_eight_gpus_one_waits_until_another_is_gone",),
        "supports sharing a claim concurrently": (
            "claims::test_two_pods_share_a_claim_and_the_second_keeps_it_when_the_first_is_gone",
        ),
        "supports simple pod referencing inline resource claim": ("claims::test_two_pods_get_different_gpus",),
        "supports inline claim referenced by multiple containers": ("claims::test_two_containers_share_a_claim",),
        "supports simple pod referencing external resource claim": (
            "claims::test_a_pod_with_one_gpu_sees_exactly_the_gpu_that_was_allocated",
        ),
        "supports external claim referenced by multiple pods": (
            "claims::test_two_pods_share_a_claim_and_the_second_keeps_it_when_the_first_is_gone",
        ),
        "supports external claim referenced by multiple containers of multiple pods": (
            "calls::test_init_and_other_containers_of_two_pods_share_a_claim",
        ),
        "supports init containers": ("claims::test_an_init_container_uses_the_claim_before_the_others",),
        "creates slices": ("publisher::test_many_devices_go_out_in_several_slices",),
        "must apply per-node permission checks": (
            "policy::test_a_slice_of_another_node_is_refused_through_every_version",
            "policy::test_the_token_of_one_node_cannot_touch_the_slices_of_another",
            "daemonset::test_its_own_token_may_not_write_a_slice_of_another_node",
        ),
        "must be possible for a node ServiceAccount to update the node ResourceClaim.Status.Devices once allocated": (
            "status::test_the_agent_says_which_hardware_a_claim_got",
        ),
        _FOREIGN_STATUS: ("status::test_the_agent_s_account_speaks_about_claims_of_its_own_node_alone",),
        "must be possible for a control-plane ServiceAccount to update the ResourceClaim.Status.Devices once "
        "allocated": ("status::test_a_driver_of_the_control_plane_speaks_about_claims_of_every_node",),
        "work": (
            "two::test_a_pod_with_several_claims_of_both_runs",
            "registering::test_the_newest_version_that_both_know_is_spoken",
        ),
        "should report device health with custom messages": (
            "health::test_pod_status_follows_the_health_of_its_device_within_a_minute",
            "board::test_a_message_is_cut_on_a_character_and_stays_valid",
        ),
        "must consume and free up counters": (
            "updates::test_overlapping_devices_are_given_out_as_their_counters_allow_whatever_other_drivers_count",
        ),
    },
}

NOT_OURS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    NODE: {
        _ALWAYS_SERVED: (
            "must be functional when plugin starts to listen on a service socket after registration: 2 sockets",
        ),
        _ONE_SOCKET: (
            "must be functional when plugin starts to listen on a service socket after registration: 1 common socket",
            "must be functional after service reconnect: 1 common socket",
            "must be removed if plugin stops after registration: 1 common socket",
            "must not be removed if plugin restarts quickly enough: 1 common socket",
        ),
        _KUBELET: (
            "must use one gRPC connection for all service calls",
            "must provide metrics",
            "must be removed if plugin is unresponsive after registration",
            "must reuse one gRPC connection for service and health-monitoring calls",
            "should not add health status to Pod when feature gate is disabled",
        ),
    },
    E2E: {
        _API: (
            "resource.k8s.io/v1 DeviceClass",
            "resource.k8s.io/v1 DeviceTaintRule",
            "resource.k8s.io/v1 ResourceClaim",
            "resource.k8s.io/v1 ResourceClaimTemplate",
            "resource.k8s.io/v1 ResourceSlice",
            "resource.k8s.io/v1alpha3 ResourcePoolStatusRequest",
            "validate ResourceClaimTemplate and ResourceClaim for admin access",
            "supports count/resourceclaims.resource.k8s.io ResourceQuota",
            "supports simple ResourceClaim",
        ),
        _POOL_STATUS: (
            "should report pool status with correct device counts",
            "should reflect allocated devices after pod is scheduled",
            "should report partitionSummary for a partitionable pool",
            "should report no partition summary when no partition type is declared",
            "should report shareableSummary for a pool with shareable devices",
            "should populate status for all matching pools",
            "should filter by pool name",
            "should truncate results when limit is reached",
            "should return empty pools for unknown driver",
            "should not reprocess after status is set",
            "should set NodeName when all slices share the same node",
            "should clear NodeName when pool has slices on different nodes",
        ),
        _CONTROLLER: (
            "removes reservation from claim when pod is done",
            "deletes generated claims when pod is done",
            "does not delete generated claims when pod is restarting",
            "must deallocate after use",
            "truncates the name of a generated resource claim",
            "runs a pod without a generated resource claim",
        ),
        _SCHEDULER: (
            "DaemonSet with admin access",
            "retries pod scheduling after creating device class",
            "retries pod scheduling after updating device class",
            "requests an already allocated and a new claim for a pod",
            "keeps pod pending because of CEL runtime errors",
            "uses all resources",
            "selects the first subrequest that can be satisfied",
            "uses the config for the selected subrequest",
            "chooses the correct subrequest subject to constraints",
            "filters config correctly for multiple devices",
            "supports requests with alternatives",
            "must allow multiple allocations and consume capacity",
        ),
        _POD_GROUPS: (
            "allocates devices for PodGroups",
            "generates claims from templates for PodGroups",
            "NoSchedule keeps pod with PodGroup claim pending",
            "NoSchedule can be tolerated for PodGroup claims",
            "DeviceTaintRule evicts pod with PodGroup claim",
        ),
        _TAINTS: (
            "NoSchedule keeps pod pending",
            "NoSchedule can be tolerated",
            "DeviceTaintRule evicts pod",
            "NoExecute keeps pod pending",
            "NoExecute can be tolerated",
        ),
        _SKIPPED: (
            "bypasses node preparation when SkipNodeOperations is All",
            "bypasses node preparation and unprepare when SkipNodeOperations is All",
            "fails node preparation when SkipNodeOperations is not set",
            "fails node preparation when SkipNodeOperations is UnprepareOnly",
            "bypasses node unprepare when SkipNodeOperations is UnprepareOnly",
        ),
        _EXTENDED: (
            "supports extended resources together with ResourceClaim",
            "must run a pod with extended resource with resource quota",
            "must run a pod with both implicit and explicit extended resource with one container two resources",
            "must run a pod with explicit extended resource with one container one resource",
            "must run a pod with implicit extended resource with one container one resource",
            "must run a pod with explicit extended resource with one container three resources",
            "must run a pod with explicit extended resource with three containers one resource each",
            "must run a pod with explicit extended resource with three containers multiple resources each",
            "must cleanup extended resource claims when pods complete",
            "must cleanup extended resource claims when pods fail",
            "process extended resources after device plugin uninstall",
            "must prevent overcommitment of extended resources",
            "must reject pod with invalid extended resource name",
            "must accurately populate ExtendedResourceClaimStatus",
            "must run a pod with extended resource requesting zero",
            "must process extended resource after Device Class creation",
            "must prefer device plugin over DRA when both advertise the same resource on a node",
            "must run pods with extended resource on dra nodes and device plugin nodes",
        ),
    },
}


def upstream_names() -> dict[str, list[str]]:
    """Scenario file -> its names, each once, in their order."""
    names: dict[str, list[str]] = json.loads(NAMES.read_text())
    return {source: list(dict.fromkeys(found)) for source, found in names.items()}


def test_path(reference: str) -> tuple[str, str]:
    """File and function of "short::test"."""
    short, _, function = reference.partition("::")
    return _FILES[short], function


def problems() -> list[str]:
    """What does not fit between the names and the tables above, and tests that are not there."""
    found = []
    for source, names in upstream_names().items():
        reasons = [name for group in NOT_OURS[source].values() for name in group]
        entries = [*COVERED[source], *reasons]
        found += [f"{source}: {name!r} has no entry" for name in names if name not in entries]
        found += [f"{source}: {name!r} is no scenario of Kubernetes {VERSION}" for name in entries if name not in names]
        found += [f"{source}: {name!r} has two entries" for name in sorted(set(entries)) if entries.count(name) > 1]
        for references in COVERED[source].values():
            for reference in references:
                file, function = test_path(reference)
                path = ROOT / file
                if not path.is_file() or f"def {function}(" not in path.read_text():
                    found.append(f"{file} has no {function}")
    return found


def page() -> str:
    """The text of the page."""
    lines = [
        "# Kubernetes' own scenarios",
        "",
        f"Generated by `hack/conformance.py` from the names in Kubernetes {VERSION}; do not edit.",
        "",
        "Kubernetes tests its kubelet and its Go helper with the scenarios below. This page says which test of this",
        "repository covers each, or why it does not concern a driver's plugin. Nothing about kubelet plugins belongs",
        "to the official conformance suite: CDI and plugins are optional for a cluster.",
    ]
    for source, names in upstream_names().items():
        covered = COVERED[source]
        lines += ["", f"## {source}", "", f"{len(names)} scenarios, {len(covered)} of them a plugin's.", ""]
        lines += ["| scenario | test |", "|---|---|"]
        lines += [
            f"| {name} | {'<br>'.join('`{}::{}`'.format(*test_path(one)) for one in covered[name])} |"
            for name in names
            if name in covered
        ]
        for reason, group in NOT_OURS[source].items():
            lines += ["", f"**Not a plugin's.** {reason}", "", *(f"* {name}" for name in names if name in group)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Entry point; 1 where something does not fit."""
    found = problems()
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if not found:
        PAGE.write_text(page())
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
