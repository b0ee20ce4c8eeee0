"""One small round of every fault: exact, no hang, nothing left. `python -m tests.faults` plays many large ones.

Where another test of the default run sees the same, as those of strangers, hosts and deaths do, the round is slow."""

from __future__ import annotations

import re

import pytest

from .battery import Account, one_round
from .catalog import FAULTS

KILLING = {f"F{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 15, 16)} | {"A5", "H1"}
"""Rounds that count whom they kill. One that kills nobody holds, and shows nothing."""


def hold(name: str, seed: int = 1) -> None:
    """A quick round of fault ``name`` holds. Its seed is fixed: what fails here fails again."""
    account = Account(FAULTS[name])
    one_round(account, account.fault.schedule(seed, "quick"), shrink=False)
    assert not account.failures, account.failures[0].told()
    assert account.kills or name not in KILLING or account.skipped, f"{name}: nobody was killed"
    if account.skipped:
        pytest.skip(", ".join(account.skipped))


def test_f1_a_pass_with_workers_killed_at_random_is_exact() -> None:
    hold("F1")


def test_f2_a_pass_with_workers_that_crash_exit_or_are_stopped_is_exact() -> None:
    hold("F2")


@pytest.mark.parametrize(
    "seed",
    [pytest.param(7, id="one"), pytest.param(10, id="ranks"), pytest.param(11, id="dynamic", marks=pytest.mark.slow)],
)
def test_f3_a_service_that_is_killed_at_random_goes_on_when_it_is_started_again(seed: int) -> None:
    hold("F3", seed)


def test_f4_a_trainer_that_is_killed_goes_on_bit_by_bit_from_its_checkpoint() -> None:
    hold("F4")


def test_f5_workers_server_and_trainer_may_all_be_killed_in_the_same_seconds() -> None:
    hold("F5")


@pytest.mark.slow
def test_f6_a_stream_goes_on_the_same_with_any_number_of_workers() -> None:
    hold("F6")


def test_f7_two_resumes_in_a_row_at_the_edges_of_a_pass_skip_nothing() -> None:
    hold("F7")


def test_f8_what_a_rank_that_died_or_hung_had_not_used_is_used_once() -> None:
    hold("F8")


def test_f9_memory_is_flat_under_a_trainer_that_is_far_too_slow() -> None:
    hold("F9")


def test_f10_samples_of_any_size_are_served_or_refused_and_never_hang() -> None:
    hold("F10")


def test_f11_a_generator_that_raises_or_yields_what_does_not_fit_is_named() -> None:
    hold("F11")


@pytest.mark.slow
def test_f12_a_generator_that_hangs_is_killed_shown_and_named() -> None:
    hold("F12")


def test_f13_a_generator_that_harms_its_surroundings_harms_no_pass() -> None:
    hold("F13")


def test_f14_a_generator_that_does_not_repeat_itself_is_found_out() -> None:
    hold("F14")


def test_f15_only_the_file_that_kills_every_worker_is_condemned() -> None:
    hold("F15")


def test_f16_a_disk_that_is_full_ends_no_pass() -> None:
    hold("F16", 7)


def test_f17_a_cache_that_was_damaged_gives_no_wrong_data() -> None:
    hold("F17")


@pytest.mark.real_starts
def test_f18_whatever_signal_ends_a_program_nothing_of_it_is_left() -> None:
    hold("F18")


@pytest.mark.real_starts
def test_f19_after_everybody_was_killed_the_next_start_works() -> None:
    hold("F19")


def test_f20_broken_messages_of_peers_with_a_key_disturb_nobody() -> None:
    hold("F20")


def test_f22_a_peer_without_the_right_key_gets_nothing() -> None:
    hold("F22")


def test_f25_every_list_as_it_should_not_be_has_a_known_outcome() -> None:
    hold("F25")


def test_f26_over_a_network_that_fails_trainers_come_back_and_each_place_is_ones() -> None:
    hold("F26")


def test_f27_a_clock_that_jumps_by_days_ends_nothing() -> None:
    hold("F27")


@pytest.mark.real_starts
def test_f28_a_service_starts_beside_threads_and_forks() -> None:
    hold("F28")


@pytest.mark.slow
@pytest.mark.real_starts
def test_f29_under_a_tight_limit_a_pass_is_exact_or_the_limit_is_named() -> None:
    hold("F29")


@pytest.mark.slow
def test_f35_whoever_is_killed_process_draws_the_same_from_the_global_generators() -> None:
    hold("F35")


def test_a1_ranks_of_a_short_pass_that_come_one_by_one_each_end() -> None:
    hold("A1")


def test_a2_jobs_of_far_more_ranks_than_come_disturb_nobody() -> None:
    hold("A2")


@pytest.mark.slow
def test_a3_a_flood_without_the_token_takes_no_memory_and_changes_no_batch() -> None:
    hold("A3")


@pytest.mark.parametrize("seed", [pytest.param(3, id="ipc"), pytest.param(7, id="tcp", marks=pytest.mark.slow)])
def test_a4_strangers_who_take_all_descriptors_take_nobody_s_place(seed: int) -> None:
    hold("A4", seed)


@pytest.mark.slow
def test_a5_killed_workers_leave_no_descriptor() -> None:
    hold("A5")


def test_a6_trainers_that_ask_for_all_and_read_nothing_disturb_nobody() -> None:
    hold("A6")


@pytest.mark.slow
@pytest.mark.real_starts
def test_a7_with_few_addresses_a_pass_is_exact_or_the_limit_is_named() -> None:
    hold("A7")


@pytest.mark.slow
def test_a8_rows_larger_than_a_limit_are_served_without_what_has_no_room() -> None:
    hold("A8")


@pytest.mark.real_starts
def test_a9_in_a_small_control_group_a_pass_is_exact_or_the_limit_is_named() -> None:
    hold("A9")


def test_h1_agents_of_hosts_that_are_killed_cost_nothing_but_time() -> None:
    hold("H1")


@pytest.mark.parametrize("seed", [pytest.param(1, id="short"), pytest.param(2, id="long", marks=pytest.mark.slow)])
def test_h2_an_agent_that_is_stopped_goes_on_or_joins_anew(seed: int) -> None:
    hold("H2", seed)


@pytest.mark.slow
def test_h3_hosts_that_are_cut_off_join_anew_by_themselves() -> None:
    hold("H3")


def test_h4_over_a_long_way_no_host_is_lost() -> None:
    hold("H4")


def test_h5_with_all_read_ahead_and_a_busy_server_no_host_is_lost() -> None:
    hold("H5")


@pytest.mark.slow
def test_h6_hosts_may_join_and_leave_in_the_middle_of_a_pass() -> None:
    hold("H6")


@pytest.mark.slow
def test_h7_many_hosts_give_the_stream_of_workers_here() -> None:
    hold("H7")


def test_h8_over_a_link_that_loses_packets_no_host_is_lost() -> None:
    hold("H8")


def test_h9_behind_a_network_that_dropped_all_packets_hosts_and_trainers_go_on() -> None:
    hold("H9")


def test_every_fault_of_the_battery_is_held_here() -> None:
    here = {name.split("_")[1].upper() for name in globals() if re.match(r"test_[afh]\d+_", name)}
    assert here == set(FAULTS)


def test_f31_a_store_that_fails_costs_nothing_but_time() -> None:
    hold("F31")


def test_f36_what_a_pass_loses_is_written_down_once_though_the_server_is_killed() -> None:
    hold("F36")


@pytest.mark.parametrize("seed", [pytest.param(8, id="dynamic"), pytest.param(7, id="ranks")])
def test_f37_a_trainer_that_was_away_while_others_loaded_a_state_goes_on(seed: int) -> None:
    hold("F37", seed)
