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
    "kubelet": "tests/kubelet/test_kubelet_plugin.py",
    "claims": "tests/cluster/test_claims.py",
    "restarts": "tests/cluster/test_restarts.py",
    "bad": "tests/cluster/test_bad_input.py",
    "policy": "tests/cluster/test_admission_policy.py",
    "daemonset": "tests/cluster/test_daemonset.py",
    "plugin": "tests/unit/kubelet_side/test_plugin.py",
    "dra": "tests/unit/kubelet_side/test_dra_service.py",
    "stand-in": "tests/unit/kubelet_side/test_kubelet_stand_in.py",
    "health": "tests/unit/kubelet_side/test_health_service.py",
    "board": "tests/unit/kubelet_side/test_health.py",
    "rolling": "tests/unit/kubelet_side/test_rolling_update.py",
    "metadata": "tests/unit/kubelet_side/test_metadata.py",
    "status": "tests/unit/kubelet_side/test_claim_status.py",
    "sockets": "tests/unit/upstream/test_registration.py",
    "slices": "tests/unit/upstream/test_slice_controller.py",
    "publisher": "tests/unit/publisher/test_publisher.py",
    "features": "tests/unit/publisher/test_features.py",
    "apply": "tests/contract/apiserver/test_apply.py",
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
_NO_PLUGIN = "About nodes without a plugin, or calls that the kubelet does not make."
_KUBELET = "The kubelet's own: nothing of it reaches the plugin."

_FOREIGN_STATUS = (
    "must be impossible for a node ServiceAccount to update the non-node ResourceClaim.Status.Devices once allocated"
)

COVERED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    NODE: {
        "must register after Kubelet restart": ("kubelet::test_it_registers_again_after_a_restart_of_the_kubelet",),
        "must register after plugin restart": ("kubelet::test_it_registers_again_after_a_restart_of_the_plugin",),
        "must recover and register after registration failure": (
            "stand-in::test_a_plugin_that_no_kubelet_accepts_is_refused_and_told_why",
            "stand-in::test_a_killed_plugins_sockets_keep_nobody_from_registering",
        ),
        "must recover and register after NotifyRegistrationStatus failure": (
            "plugin::test_the_kubelets_word_is_kept_and_passed_on",
        ),
        "must process pod created when kubelet is not running": (
            "kubelet::test_a_pod_made_while_no_kubelet_ran_is_prepared",
        ),
        "must keep pod in pending state if NodePrepareResources times out": (
            "kubelet::test_a_pod_stays_pending_while_prepare_hangs_and_runs_after",
            "stand-in::test_a_call_that_takes_too_long_is_a_failure_that_names_what_still_runs",
        ),
        "must run pod if NodePrepareResources fails and then succeeds": (
            "kubelet::test_a_pod_runs_after_prepare_failed_and_then_succeeds",
        ),
        "must run pod if NodeUnprepareResources fails and then succeeds": (
            "kubelet::test_unprepare_is_repeated_until_it_succeeds",
        ),
        "must retry NodePrepareResources after Kubelet restart": (
            "kubelet::test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet",
        ),
        "must retry NodeUnprepareResources after Kubelet restart": (
            "kubelet::test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet",
        ),
        "must call NodeUnprepareResources for deleted pod": (
            "kubelet::test_a_pod_deleted_while_prepare_fails_is_unprepared",
        ),
        "must call NodeUnprepareResources for deleted pod after Kubelet restart": (
            "kubelet::test_a_pod_deleted_while_no_kubelet_ran_is_unprepared",
        ),
        "must be functional when plugin starts to listen on a service socket after registration: 2 sockets": (
            "stand-in::test_a_plugin_is_registered_and_told_so",
        ),
        "must be functional after service reconnect: 2 sockets": (
            "kubelet::test_it_registers_again_after_a_restart_of_the_plugin",
            "plugin::test_a_kubelet_that_pings_an_idle_connection_is_never_sent_away",
        ),
        "must report gRPC serving error: for registrar": ("plugin::test_a_failed_start_raises_and_leaves_nothing",),
        "must report gRPC serving error: for DRA service": (
            "plugin::test_a_failed_start_raises_and_leaves_nothing",
            "plugin::test_a_socket_that_somebody_removed_is_noticed",
        ),
        "must prepare and unprepare resources": (
            "stand-in::test_every_driver_of_a_claim_is_called_and_their_devices_are_joined",
        ),
        "must run pod if NodePrepareResources fails for one plugin and then succeeds": (
            "kubelet::test_a_pod_runs_after_prepare_failed_and_then_succeeds",
            "stand-in::test_a_claim_that_fails_is_tried_again_with_the_others",
        ),
        "must run pod if NodeUnprepareResources fails for one plugin and then succeeds": (
            "kubelet::test_unprepare_is_repeated_until_it_succeeds",
            "stand-in::test_an_unprepare_that_fails_keeps_the_claim_for_the_next_try",
        ),
        "must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts": (
            "kubelet::test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet",
            "dra::test_a_retry_finds_the_work_of_the_call_that_took_too_long",
        ),
        "must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts": (
            "kubelet::test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet",
        ),
        "must be removed on kubelet startup": (
            "kubelet::test_slices_are_removed_by_a_starting_kubelet_and_come_back",
            "restarts::test_slices_come_back_after_a_restart_of_the_kubelet",
        ),
        "must be removed after plugin unregistration": (
            "kubelet::test_slices_are_removed_half_a_minute_after_the_plugin_ended",
        ),
        "must be removed if plugin stops after registration: 2 sockets": (
            "kubelet::test_slices_are_removed_half_a_minute_after_the_plugin_ended",
            "stand-in::test_slices_are_wiped_at_the_start_and_after_a_driver_is_gone",
        ),
        "must not be removed if plugin restarts quickly enough: 2 sockets": (
            "kubelet::test_slices_stay_if_the_plugin_is_back_soon",
        ),
        "should reflect device health changes in the Pod's status": (
            "kubelet::test_pod_status_follows_the_health_of_its_device_within_a_minute",
            "health::test_pod_status_follows_the_device",
        ),
        "should reflect device health changes for a plugin which only supports the v1alpha1 health API": (
            "health::test_pod_status_follows_the_device",
            "health::test_each_version_sees_healthy_unhealthy_healthy",
        ),
        "should reflect device health changes for a plugin which only supports the v1 health API": (
            "health::test_each_version_sees_healthy_unhealthy_healthy",
        ),
        "should update health to Unknown when plugin stops and recover upon restart": (
            "kubelet::test_health_is_unknown_without_the_plugin_and_known_again_with_it",
        ),
        "should automatically reconnect both DRA and Health API after connection drop": (
            "health::test_a_kubelet_that_hangs_up_frees_its_stream",
            "kubelet::test_health_is_unknown_without_the_plugin_and_known_again_with_it",
        ),
        "should handle concurrent DRA operations and health monitoring without connection issues": (
            "health::test_more_streams_than_all_workers_leave_prepare_and_registration_alone",
        ),
        "should reflect device health changes for devices with ShareID": (
            "health::test_shares_of_a_device_are_as_well_as_the_device",
        ),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: without ShareID": (
            "dra::test_a_device_without_share_has_none_and_request_names_are_not_repeated",
        ),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: with a ShareID": ("dra::test_a_prepared_claim_is_answered_with_its_devices",),
        "must be functional when plugin starts to listen on a service socket after registration with the specified "
        "allocation results: same device with two ShareIDs": (
            "dra::test_two_shares_of_one_device_are_two_devices_of_the_answer",
            "apply::test_a_share_is_an_entry_of_its_own",
        ),
    },
    E2E: {
        "registers plugin": ("kubelet::test_it_registers_again_after_a_restart_of_the_plugin",),
        "must retry NodePrepareResources": ("kubelet::test_a_pod_runs_after_prepare_failed_and_then_succeeds",),
        "must not run a pod if a claim is not ready": (
            "stand-in::test_a_pod_that_may_not_use_the_claim_reaches_no_driver",
            "dra::test_a_claim_that_is_not_allocated_never_reaches_the_driver",
        ),
        "must unprepare resources for force-deleted pod": ("kubelet::test_a_force_deleted_pod_is_unprepared",),
        "must call NodePrepareResources even if not used by any container": (
            "kubelet::test_a_claim_that_no_container_uses_is_prepared_all_the_same",
            "claims::test_a_pod_may_hold_a_claim_that_no_container_uses",
        ),
        "must map configs and devices to the right containers": (
            "claims::test_a_container_without_the_claim_sees_no_gpu",
            "bad::test_a_configuration_that_cannot_be_used_is_named_in_the_pod_s_event",
        ),
        "blocks new pod after force-delete": (
            "stand-in::test_a_replaced_claim_is_refused_as_long_as_the_old_one_is_held",
            "bad::test_a_claim_that_was_replaced_under_the_same_name_is_not_prepared_for_the_old_one",
        ),
        "must mount device metadata for resource claims": (
            "kubelet::test_metadata_of_a_claim_is_in_its_container_and_in_no_other",
        ),
        "must map device metadata to the right containers": (
            "kubelet::test_metadata_of_a_claim_is_in_its_container_and_in_no_other",
            "metadata::test_the_first_device_of_each_request_brings_the_mount",
        ),
        "must mount device metadata for resource claim templates": (
            "kubelet::test_metadata_of_a_claim_from_a_template_goes_by_the_pods_name_for_it",
        ),
        "must not race when multiple drivers write metadata for the same request": (
            "metadata::test_two_drivers_of_one_request_have_a_file_each",
        ),
        "must manage ResourceSlices": (
            "publisher::test_what_the_driver_wants_is_published",
            "restarts::test_a_slice_that_somebody_deletes_is_back",
            "restarts::test_a_slice_that_somebody_edits_is_put_right",
        ),
        "supports init containers with external claims": (
            "claims::test_an_init_container_uses_the_claim_before_the_others",
        ),
        "reconciles ResourceSlices with ReconcilePoolWithName": (
            "slices::test_controller_pool_name_field_selector",
            "slices::test_case_of_upstream",
        ),
        "runs pod after driver starts": (
            "restarts::test_a_claim_whose_agent_was_killed_before_it_runs_as_soon_as_there_is_one",
        ),
        "rolling update": (
            "kubelet::test_an_update_side_by_side_leaves_slices_to_the_byte_and_pods_run",
            "rolling::test_a_rolling_update_leaves_slices_as_they_are_to_the_byte",
        ),
        "rolling update with long driver name": (
            "rolling::test_a_rolling_update_leaves_slices_as_they_are_to_the_byte",
            "sockets::test_uses_shortest_form_for_very_long_driver_name",
        ),
        "failed update": (
            "kubelet::test_a_failed_update_leaves_the_old_instance_at_work",
            "rolling::test_a_new_one_that_dies_at_its_start_harms_nothing",
        ),
        "sequential update with pods replacing each other": (
            "rolling::test_instances_one_after_the_other_keep_the_slices_if_they_are_quick",
            "kubelet::test_slices_stay_if_the_plugin_is_back_soon",
        ),
        "supports claim and class parameters": (
            "bad::test_a_configuration_that_cannot_be_used_is_named_in_the_pod_s_event",
        ),
        "supports reusing resources": ("claims::test_of_nine_pods_on_eight_gpus_one_waits_until_another_is_gone",),
        "supports sharing a claim concurrently": (
            "claims::test_two_pods_share_a_claim_and_the_second_keeps_it_when_the_first_is_gone",
        ),
        "supports simple pod referencing inline resource claim": (
            "claims::test_a_pod_with_one_gpu_sees_exactly_the_gpu_that_was_allocated",
        ),
        "supports inline claim referenced by multiple containers": ("claims::test_two_containers_share_a_claim",),
        "supports simple pod referencing external resource claim": (
            "claims::test_two_claims_of_one_pod_are_both_there",
        ),
        "supports external claim referenced by multiple pods": (
            "claims::test_two_pods_share_a_claim_and_the_second_keeps_it_when_the_first_is_gone",
        ),
        "supports external claim referenced by multiple containers of multiple pods": (
            "claims::test_two_containers_share_a_claim",
            "stand-in::test_a_claim_of_two_pods_is_prepared_once_and_undone_with_the_last",
        ),
        "supports init containers": ("claims::test_an_init_container_uses_the_claim_before_the_others",),
        "creates slices": ("publisher::test_many_devices_go_out_in_several_slices",),
        "must apply per-node permission checks": (
            "policy::test_a_slice_of_another_node_is_refused_through_every_version",
            "policy::test_the_token_of_one_node_cannot_touch_the_slices_of_another",
            "daemonset::test_its_own_token_may_not_write_a_slice_of_another_node",
        ),
        "must be possible for a node ServiceAccount to update the node ResourceClaim.Status.Devices once allocated": (
            "status::test_entries_of_other_drivers_are_left_alone",
            "apply::test_each_manager_has_its_own_entries",
        ),
        "must be possible for a control-plane ServiceAccount to update the ResourceClaim.Status.Devices once "
        "allocated": ("apply::test_force_takes_a_value_over", "apply::test_a_device_that_is_not_allocated_is_refused"),
        "work": ("stand-in::test_every_driver_of_a_claim_is_called_and_their_devices_are_joined",),
        "should report device health with custom messages": (
            "kubelet::test_pod_status_follows_the_health_of_its_device_within_a_minute",
            "board::test_a_message_is_cut_on_a_character_and_stays_valid",
        ),
        "bypasses node preparation when SkipNodeOperations is All": ("slices::test_case_of_upstream",),
        "bypasses node preparation and unprepare when SkipNodeOperations is All": ("slices::test_case_of_upstream",),
        "must consume and free up counters": (
            "publisher::test_devices_that_overlap_are_never_published_without_their_counters",
            "features::test_only_what_is_kept_is_published",
        ),
    },
}

NOT_OURS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    NODE: {
        _NO_PLUGIN: ("must not call NodePrepareResources for deleted pod after Kubelet restart",),
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
            _FOREIGN_STATUS,
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
        _NO_PLUGIN: (
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
