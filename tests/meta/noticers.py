"""The test that must notice each planted fault of the cabinet, beside whoever searches for it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pymllm.errors import (
    InvariantViolation,
    LockError,
    OwnershipError,
    StaleNodeError,
)

__all__ = ["NOTICED", "NOTICERS", "Noticer"]

NOTICED = (AssertionError, pytest.fail.Exception, InvariantViolation)
"""What a test or a check raises when it has noticed something."""


@dataclass(frozen=True, slots=True)
class Noticer:
    """Who notices a fault.

    Parameters
    ----------
    test : str
        Node id, relative to the root of the repository; without brackets: of all its parameters.
    shows_as : type of BaseException, optional
        Where the class under test refuses what the fault does, its error; no error but this one counts then.
    """

    test: str
    shows_as: type[BaseException] | None = None

    @property
    def counts(self) -> tuple[type[BaseException], ...]:
        """The errors that show that the fault was noticed, and not that the plant is broken."""
        return NOTICED if self.shows_as is None else (self.shows_as,)


_CACHES = "tests/unit/mem_cache/"
_ENGINE = "tests/unit/workloads/"
_HERE = "tests/meta/"
_BLOCKS = "tests/unit/core/inference/contexts/"

NOTICERS: dict[str, Noticer] = {
    "B01": Noticer(_CACHES + "test_radix_cache.py::TestLocks::test_hold_counts_on_the_whole_path"),
    "B02": Noticer(_CACHES + "test_radix_cache.py::TestMatch::test_last_node_spells_the_prefix"),
    "B04": Noticer(
        _CACHES + "test_radix_cache.py::TestMatch::test_pages_that_differ_in_their_last_token_are_siblings"
    ),
    "B05": Noticer(_HERE + "test_noticers.py::test_windowed_branch_grows_from_the_common_prefix"),
    "B07": Noticer(_CACHES + "test_radix_tree.py::TestSplit::test_halves_do_not_keep_the_whole_alive"),
    "B08": Noticer(_CACHES + "test_prefix_caches.py::TestInsert::test_tree_keeps_no_view_of_key_or_value"),
    "B10": Noticer(_ENGINE + "test_engine_memory.py::test_finish_gives_back_duplicates_and_tail"),
    "B11": Noticer(
        _CACHES
        + "test_mamba_radix_cache.py::TestMatch::test_a_longer_match_passes_over_nodes_without_a_state"
    ),
    "B13": Noticer(_CACHES + "test_radix_cache.py::TestEvict::test_locked_nodes_are_never_taken"),
    "B14": Noticer(_CACHES + "test_radix_cache.py::TestLocks::test_hold_counts_on_the_whole_path", LockError),
    "B16": Noticer(_CACHES + "test_prefix_caches.py::TestLocks::test_sizes_survive_a_child_of_a_leaf"),
    "B17": Noticer(
        _ENGINE + "test_engine.py::test_finished_requests_leave_nothing_behind[radix-4-6]", LockError
    ),
    "B19": Noticer(_CACHES + "test_sliding_window.py::TestHolds::test_release_after_a_revival_is_exact"),
    "B20": Noticer(_CACHES + "test_sliding_window.py::TestHolds::test_release_takes_nobody_elses_window"),
    "B22": Noticer(
        _CACHES + "test_mamba_radix_cache.py::TestLocks::test_split_of_a_held_node_keeps_the_state_lock_below"
    ),
    "B23": Noticer(
        _CACHES + "test_sliding_window.py::TestHolds::test_split_of_the_edge_node_keeps_its_id_on_top"
    ),
    "B25": Noticer(
        _CACHES + "test_sliding_window.py::TestHolds::test_split_of_the_edge_node_keeps_its_id_on_top"
    ),
    "B26": Noticer(_CACHES + "test_prefix_caches.py::TestLocks::test_release_without_a_hold_is_refused"),
    "B29": Noticer(_ENGINE + "test_engine_memory.py::test_failed_admission_gives_its_hold_back"),
    "B31": Noticer(
        _CACHES
        + "test_sliding_window.py::TestUsablePrefixes::test_alive_tokens_are_counted_from_the_last_tombstone"
    ),
    "B32": Noticer(
        _ENGINE + "test_engine_memory.py::test_window_halves_behind_the_window_are_returned[True]"
    ),
    "B34": Noticer(
        _CACHES
        + "test_window_insert.py::TestRevival::test_held_tombstone_keeps_its_slots_and_takes_the_halves"
    ),
    "B35": Noticer(
        _CACHES
        + "test_window_insert.py::TestRevival::test_held_tombstone_keeps_its_slots_and_takes_the_halves"
    ),
    "B37": Noticer(_ENGINE + "test_engine.py::test_random_lives_break_no_law[0-radix-1-4]"),
    "B38": Noticer(
        _ENGINE + "test_engine_memory.py::test_window_halves_behind_the_window_are_returned[True]",
        OwnershipError,
    ),
    "B40": Noticer(_HERE + "test_noticers.py::test_held_node_loses_the_window_that_its_hold_does_not_cover"),
    "B41": Noticer(_HERE + "test_noticers.py::test_window_of_a_path_dies_from_its_beginning"),
    "B43": Noticer(_HERE + "test_noticers.py::test_windowed_match_refreshes_what_it_returns"),
    "B44": Noticer(_CACHES + "test_eviction.py::TestWindowTokens::test_tombstones_go_with_their_last_child"),
    "B46": Noticer(_CACHES + "test_eviction.py::TestWindowTokens::test_dead_tokens_count_as_full_only"),
    "B47": Noticer(
        _ENGINE + "test_engine_memory.py::test_window_halves_behind_the_window_are_returned[False]",
        OwnershipError,
    ),
    "B49": Noticer(_CACHES + "test_radix_cache.py::TestEvict::test_matched_half_of_a_split_node_is_young"),
    "B50": Noticer(_CACHES + "test_radix_cache.py::TestEvict::test_unmatched_rest_of_a_split_node_stays_old"),
    "B52": Noticer(_ENGINE + "test_engine.py::test_failed_admission_gives_everything_back[radix-4]"),
    "B53": Noticer(_HERE + "test_noticers.py::test_window_of_a_path_dies_from_its_beginning"),
    "B55": Noticer(_CACHES + "test_prefix_caches.py::TestRecencyAndIds::test_clock_is_logical"),
    "B56": Noticer(_CACHES + "test_prefix_caches.py::TestEvict::test_match_refreshes_what_it_returns"),
    "B58": Noticer(
        _CACHES + "test_eviction.py::TestWindowTokens::test_the_window_that_was_used_longest_ago_goes_first"
    ),
    "B59": Noticer(_CACHES + "test_mamba_radix_cache.py::TestRecencyAndIds::test_lists_follow_the_recency"),
    "B61": Noticer(_HERE + "test_noticers.py::test_node_above_tombstones_only_is_no_leaf"),
    "B62": Noticer(
        _CACHES + "test_eviction.py::TestWindowTokens::test_inner_nodes_lose_their_window_and_stay"
    ),
    "B64": Noticer(_ENGINE + "test_engine.py::test_failed_admission_gives_everything_back[radix-1]"),
    "B65": Noticer(_CACHES + "test_radix_cache.py::TestEvict::test_parents_become_leaves"),
    "B67": Noticer(
        _ENGINE + "test_engine.py::test_aborted_request_leaves_nothing_behind[Stage.HELD-1-radix-1]"
    ),
    "B68": Noticer(
        _ENGINE + "test_engine.py::test_retracted_request_comes_back_and_finishes[radix-4]", OwnershipError
    ),
    "B70": Noticer(
        _ENGINE + "test_engine_memory.py::test_a_longer_prompt_begins_where_the_shorter_one_ended[4]"
    ),
    "B71": Noticer(
        _ENGINE + "test_engine_memory.py::test_a_longer_prompt_begins_where_the_shorter_one_ended[1]"
    ),
    "B73": Noticer(_CACHES + "test_mamba_radix_cache.py::TestLocks::test_sizes_count_tokens_and_states"),
    "B74": Noticer(
        _CACHES + "test_mamba_radix_cache.py::TestInsert::test_state_of_an_ancestor_does_not_count"
    ),
    "B77": Noticer(
        _CACHES + "test_gdn_pool.py::test_track_slots_follow_the_rows_and_are_handed_out_once", RuntimeError
    ),
    "B79": Noticer(_HERE + "test_noticers.py::test_an_idle_engine_keeps_what_is_cached"),
    "B89": Noticer(_ENGINE + "test_engine_memory.py::test_state_that_is_there_already_stays_the_callers"),
    "B91": Noticer(_CACHES + "test_token_allocator.py::test_a_slot_that_is_nobodys_is_refused"),
    "B92": Noticer(_CACHES + "test_swa_allocator.py::test_free_returns_what_is_left_of_both"),
    "B94": Noticer(_CACHES + "test_swa_allocator.py::test_groups_hold_both_halves_back"),
    "B95": Noticer(_CACHES + "test_kv_pool.py::test_the_last_slot_of_the_last_page_is_a_row"),
    "B97": Noticer(
        _ENGINE + "test_engine.py::test_request_may_finish_inside_its_first_chunk[radix-4]", OwnershipError
    ),
    "B98": Noticer(_ENGINE + "test_engine.py::test_retracted_request_comes_back_and_finishes[radix-4]"),
    "B100": Noticer(_CACHES + "test_token_allocator.py::test_pages_are_handed_out_whole"),
    "B101": Noticer(
        _ENGINE + "test_engine_memory.py::test_duplicates_are_given_back_after_the_row_names_the_tree"
    ),
    "B103": Noticer(_CACHES + "test_chunk_cache.py::test_insert_adopts_nothing_and_frees_nothing"),
    "B104": Noticer(
        _ENGINE + "test_engine.py::test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-radix-4]",
        OwnershipError,
    ),
    "B106": Noticer(_ENGINE + "test_engine.py::test_request_may_be_retracted_between_its_chunks[radix-4]"),
    "B107": Noticer(_CACHES + "test_req_to_token_pool.py::test_a_freed_row_carries_nothing_over[cpu]"),
    "B109": Noticer(
        _ENGINE + "test_engine.py::test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-radix-4]"
    ),
    "B110": Noticer(_ENGINE + "test_engine.py::test_finished_requests_leave_nothing_behind[radix-4]"),
    "B112": Noticer(_ENGINE + "test_engine.py::test_failed_admission_gives_everything_back[radix-1]"),
    "B113": Noticer(
        _ENGINE + "test_engine.py::test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-chunk-4]"
    ),
    "B115": Noticer(_ENGINE + "test_engine.py::test_full_hit_leaves_a_token_to_compute"),
    "B116": Noticer(_CACHES + "test_req_to_token_pool.py::test_rows_count_from_1_lowest_first"),
    "B121": Noticer(_ENGINE + "test_engine.py::test_failed_admission_gives_everything_back[radix-4]"),
    "B124": Noticer(
        _CACHES + "test_prefix_caches.py::TestFaults::test_all_callbacks_run_and_the_first_error_is_raised"
    ),
    "B134": Noticer(_ENGINE + "test_engine.py::test_failed_admission_gives_everything_back[radix-1]"),
    "B136": Noticer(
        _CACHES + "test_keys.py::TestHashes::test_page_hash_is_sha256_of_little_endian_tokens[list]"
    ),
    "B139": Noticer(_CACHES + "test_prefix_caches.py::TestMatch::test_namespaces_share_nothing"),
    "B140": Noticer(_CACHES + "test_prefix_caches.py::TestMatch::test_namespaces_share_nothing"),
    "B142": Noticer(_CACHES + "test_keys.py::TestHashes::test_content_hash_is_the_first_8_bytes_unsigned"),
    "B143": Noticer(
        _CACHES + "test_radix_tree.py::TestHashes::test_equal_pages_at_different_places_hash_differently"
    ),
    "B145": Noticer(_CACHES + "test_radix_tree.py::TestHashes::test_namespace_seeds_the_first_page"),
    "B146": Noticer(_CACHES + "test_radix_tree.py::TestSplit::test_split_divides_the_hashes"),
    "B148": Noticer(_ENGINE + "test_engine_forward.py::test_batch_is_padded_with_slot_and_row_zero"),
    "B151": Noticer(_CACHES + "test_gdn_pool.py::test_track_slots_follow_the_rows_and_are_handed_out_once"),
    "B152": Noticer(_ENGINE + "test_engine_forward.py::test_batch_is_padded_with_slot_and_row_zero"),
    "B154": Noticer(_ENGINE + "test_engine.py::test_finished_requests_leave_nothing_behind[radix-4]"),
    "B155": Noticer(_CACHES + "test_prefix_caches.py::TestMatch::test_empty_cache_matches_nothing"),
    "B157": Noticer(_ENGINE + "test_engine.py::test_finished_requests_leave_nothing_behind[radix-4-6-True]"),
    "B163": Noticer(
        _CACHES + "test_radix_cache.py::TestEvict::test_victims_go_back_to_the_pool_in_one_call",
        OwnershipError,
    ),
    "B164": Noticer(_ENGINE + "test_engine.py::test_random_lives_break_no_law[0-radix-4-6]", StaleNodeError),
    "B118": Noticer(_BLOCKS + "test_kv_block_allocator.py::test_a_block_named_twice_counts_twice"),
    "B119": Noticer(
        _BLOCKS + "test_kv_block_allocator.py::test_an_ancestor_is_never_evicted_before_its_descendants"
    ),
    "B133": Noticer(
        _BLOCKS + "test_kv_block_allocator.py::test_nobody_shares_releases_or_registers_what_is_not_held"
    ),
    "B124-blocks": Noticer(
        _BLOCKS + "test_kv_block_allocator.py::test_an_observer_that_raises_finds_the_books_written"
    ),
    "B104-blocks": Noticer(
        _BLOCKS + "test_request_context.py::test_every_exit_gives_everything_back", OwnershipError
    ),
    "B121-blocks": Noticer(
        _BLOCKS + "test_request_context.py::test_a_request_that_finds_no_room_leaves_no_trace"
    ),
    "B164-blocks": Noticer(
        _BLOCKS + "test_request_context.py::test_what_was_found_is_not_evicted_to_make_room", OwnershipError
    ),
    "B122": Noticer(_BLOCKS + "test_kv_block_allocator.py::test_registering_again_changes_nothing"),
    "B125": Noticer(
        _BLOCKS + "test_kv_block_allocator.py::test_eviction_takes_the_oldest_and_the_lowest_id_among_equals"
    ),
    "B127": Noticer(_BLOCKS + "test_kv_block_allocator.py::test_first_registration_of_a_hash_wins"),
    "B130": Noticer(_BLOCKS + "test_dynamic_context.py::test_nothing_is_registered_before_it_is_computed"),
    "B131": Noticer(_BLOCKS + "test_prefix_index.py::test_a_block_that_is_taken_again_is_no_hit_any_more"),
    "B136-blocks": Noticer(
        _BLOCKS + "test_prefix_index.py::test_whole_blocks_are_registered_under_the_chain_of_their_pages"
    ),
    "B137": Noticer(_BLOCKS + "test_prefix_index.py::test_an_equal_hash_is_no_hit"),
    "B143-blocks": Noticer(
        _BLOCKS + "test_prefix_index.py::test_whole_blocks_are_registered_under_the_chain_of_their_pages"
    ),
    "B76": Noticer(
        _BLOCKS + "test_mamba_slot_allocator.py::test_a_commit_that_fails_half_way_publishes_nothing"
    ),
    "B80": Noticer(_BLOCKS + "test_mamba_slot_allocator.py::test_offsets_are_where_a_state_is_worth_keeping"),
    "B82": Noticer(_BLOCKS + "test_block_slots.py::test_what_cannot_be_met_takes_nothing"),
    "B85": Noticer(_BLOCKS + "test_block_slots.py::test_an_allocation_evicts_none_of_its_own_blocks"),
    "B86": Noticer(
        _BLOCKS
        + "test_mamba_slot_allocator.py::test_offsets_are_where_a_state_is_worth_keeping[the first block]"
    ),
    "B88": Noticer(_BLOCKS + "test_slot_states.py::test_where_nothing_is_cached_the_live_state_stays"),
    "B128": Noticer(_BLOCKS + "test_block_slots.py::test_a_deregistered_block_takes_only_its_own_hash"),
    "B76-requests": Noticer(_BLOCKS + "test_request_context.py::test_a_restore_that_fails_is_no_resume"),
    "B79-requests": Noticer(_BLOCKS + "test_dynamic_context.py::test_a_step_without_requests_wipes_nothing"),
    "B107-requests": Noticer(_BLOCKS + "test_requests.py::test_a_closed_row_keeps_nothing"),
    "B115-requests": Noticer(_BLOCKS + "test_request_context.py::test_a_full_hit_leaves_a_token_to_compute"),
    "B148-requests": Noticer(_BLOCKS + "test_requests.py::test_tokens_in_shared_blocks_go_to_the_dummy"),
    "B166": Noticer(_HERE + "test_noticers.py::test_a_half_given_back_in_a_group_is_the_one_of_then"),
    "B167": Noticer(_CACHES + "test_swa_allocator.py::test_freeing_a_half_keeps_the_full_slot"),
    "B169": Noticer(_CACHES + "test_swa_allocator.py::test_free_returns_what_is_left_of_both"),
    "B170": Noticer(_ENGINE + "test_engine_memory.py::test_chunk_is_cut_to_what_the_window_half_has"),
    "B172": Noticer(_ENGINE + "test_engine.py::test_random_lives_break_no_law[0-radix-1-4]"),
    "B173": Noticer(_ENGINE + "test_engine_memory.py::test_a_whole_hit_is_held_as_any_other"),
    "B175": Noticer(_CACHES + "test_radix_tree.py::TestHashes::test_pages_chain_to_their_ancestors"),
    "B176": Noticer(
        _CACHES + "test_radix_cache.py::TestMatch::test_hits_are_counted_on_the_returned_path_only"
    ),
    "B178": Noticer(_ENGINE + "test_engine_memory.py::test_tokens_behind_a_dead_window_are_counted"),
    "B179": Noticer(
        _CACHES + "test_radix_cache.py::TestLocks::test_hold_moves_tokens_from_evictable_to_protected"
    ),
    "B181": Noticer(_HERE + "test_noticers.py::test_a_page_has_its_tokens_in_their_places"),
    "B182": Noticer(_CACHES + "test_swa_allocator.py::test_the_halves_of_a_page_are_a_page"),
    "B185": Noticer(
        _CACHES + "test_mamba_radix_cache.py::TestMatch::test_tokens_without_a_state_cannot_be_resumed_from"
    ),
    "B187": Noticer(_ENGINE + "test_engine.py::test_random_lives_break_no_law[0-radix-1]"),
    "B188": Noticer(
        _BLOCKS + "test_request_context.py::test_a_request_resumes_from_the_deepest_state_and_shares_all_kv"
    ),
    "B193": Noticer(
        _CACHES
        + "test_sliding_window.py::TestUsablePrefixes::test_prefix_after_a_tombstone_needs_a_whole_window"
    ),
    "B194": Noticer(_CACHES + "test_radix_cache.py::TestMatch::test_match_splits_only_where_it_ends"),
    "B199": Noticer(
        _BLOCKS + "test_kv_block_allocator.py::test_what_lies_above_a_referenced_descendant_is_not_evictable"
    ),
    "B200": Noticer(_CACHES + "test_sliding_window.py::TestHolds::test_release_takes_nobody_elses_window"),
    "B202": Noticer(_ENGINE + "test_engine_memory.py::test_short_memory_changes_nothing_but_what_is_evicted"),
    "B205": Noticer(_HERE + "test_noticers.py::test_windowed_insert_is_no_hit"),
}
"""By the id of the fault."""
