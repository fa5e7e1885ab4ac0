"""Which tests have the mark `slow`: scripts/test.sh leaves them out, `scripts/test.sh -m slow` and .ci/run run them.

Each promise is shown in the first tier, in fewer cases than there are. Of the tests of EACH_VALUE, whose cases are a
product (containers by kinds of damage, say), the first tier has a case for each value of each factor; of those of
FIRST_CASES so many, spread over all; of the pages that run in `test_docs_blocks.py`, all but LONG_PAGES. Of the cases
of any other test that differ in the container only, it has one, of another container in each test: the code that they
show is the same, and EVERY_CONTAINER shows what is not.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from packer.containers import CONTAINERS

HERE = Path(__file__).parent
EACH_VALUE = {
    "containers/test_container_contract.py": "test_scanned_byte_exact test_thousands_of_tiny_records",
    "containers/test_container_foreign_readers.py": "test_read_back",
    "format/test_pack.py": "test_closed_packs_leave_nothing",
    "format/test_pack_damage.py": (
        "test_index_that_points_outside test_missing test_one_bit_of_the_pixels "
        "test_truncated_or_appended test_truncations_that_the_manifest_vouches_for"
    ),
    "format/test_pack_hostile.py": (
        "test_numbers_of_the_manifest test_offsets_of_columns test_places_of_records test_shapes "
        "test_texts_that_do_not_fit"
    ),
    "format/test_pack_pipes.py": "test_nobody_waits_for_a_pipe",
    "format/test_parts.py": (
        "test_a_lost_file_is_made_again test_annotations_that_list_no_parts test_convert test_places_that_no_file_has"
    ),
    "format/test_repair.py": (
        "test_a_container test_a_flip_beside_the_records test_container_and_index_both_damaged test_indexes "
        "test_one_bit_of_the_manifest test_other_containers test_records test_without_a_manifest"
    ),
    "format/test_verify.py": "test_files test_good_pack",
    "format/test_verify_deep.py": "test_annotations_that_differ test_good_pack",
    "images/test_ops_decode.py": (
        "test_jpeg_pixels_are_those_of_pillow test_orient_is_what_numpy_says "
        "test_orientation_is_applied_once_in_every_format_and_mode test_pixels_are_those_of_pillow "
        "test_small_and_thin_images"
    ),
    "images/test_ops_formats.py": (
        "test_lenient_takes_of_a_truncated_file_what_pillow_takes test_pixels_are_those_of_pillow"
    ),
    "images/test_ops_resize.py": "test_dtype_and_channels_are_kept",
    "loading/test_dataset.py": (
        "test_batch_is_the_samples_one_by_one test_image_is_a_copy_channels_last test_pixels_are_those_of_pillow"
    ),
    "loading/test_dataset_loader.py": (
        "test_default_collate test_images_that_accelerate_sends_to_other_processes_are_contiguous "
        "test_same_bytes_in_forked_workers"
    ),
    "loading/test_dataset_errors.py": "test_a_file",
    "loading/test_dataset_plain.py": (
        "test_batches_are_the_records_in_order test_samples_in_another_order_are_stacked"
    ),
    "loading/test_loader_batches.py": "test_batches_are_the_samples test_copied_files_are_turned_upright",
    "loading/test_loader_caches.py": "test_the_device_gives_the_hosts_batches",
    "loading/test_loader_crops.py": (
        "test_each_axis_that_shrinks_is_averaged test_nothing_blends_into_the_border_of_a_resized_center_crop "
        "test_random_resized_crop_has_torchvisions_distribution"
    ),
    "loading/test_loader_handover.py": "test_yolo_rows",
    "loading/test_loader_life.py": (
        "test_the_number_of_opencvs_threads_is_left_alone test_twenty_epochs_take_no_more_memory_than_two"
    ),
    "loading/test_loader_pixels.py": (
        "test_a_jpeg_of_another_size_than_the_index_says_is_damage test_a_spot_stays_on_its_landmark"
    ),
    "loading/test_loader_randomness.py": "test_the_same_images_however_they_are_made",
    "loading/test_loader_remote.py": "test_each_block_is_asked_for_once_by_all_ranks_and_epochs",
    "loading/test_loader_replace.py": "test_the_same_for_any_number_of_threads",
    "loading/test_loader_resume.py": (
        "test_a_loader_is_copied_as_its_settings_and_state test_a_resumed_lightning_run_is_the_uninterrupted_one "
        "test_another_number_of_ranks test_corrupt_states_are_refused test_every_position"
    ),
    "loading/test_loader_targets.py": "test_a_mark_stays_under_its_box_and_its_landmarks",
    "packing/test_build_archives.py": "test_every_container_shuffled_and_copied test_the_same_bytes_as_of_the_folder",
    "packing/test_build_choices.py": "test_lines_that_name_images",
    "packing/test_build_engines.py": "test_finish_publishes_no_shard_that_was_damaged_after_its_part",
    "packing/test_build_formats.py": "test_still_images_in_every_container",
    "packing/test_build_output.py": "test_planned_size_is_the_size",
    "packing/test_build_shards.py": "test_none_makes_one_file test_the_plan_of_lmdb_is_right_for_small_images",
    "repack/test_compact.py": "test_what_was_deleted_is_gone",
    "repack/test_convert.py": "test_resized_as_a_build_does",
    "repack/test_edit_labels.py": (
        "test_corrected_labels_are_those_of_a_build test_labels_without_images test_shapes_of_objects"
    ),
    "repack/test_formats_arrays.py": "test_packers_own_files_without_their_pack",
    "repack/test_purge.py": "test_nothing_of_deleted_records_is_left",
    "repack/test_split.py": "test_interrupted_split_resumes",
    "repack/test_writer.py": "test_arrays",
    "samplers/test_sampler_contract.py": "test_batches_of_many_records_are_parts_of_the_order",
    "samplers/test_sampler_dataloader.py": (
        "test_an_epoch_set_after_workers_began_another_is_an_error test_workers_give_the_order_of_the_sampler"
    ),
    "samplers/test_sampler_nodes.py": (
        "test_each_machine_reads_the_same_part_in_every_epoch test_global_batches_are_those_of_one_process"
    ),
    "samplers/test_sampler_permutation.py": (
        "test_every_pair_of_neighbours_is_equally_likely test_every_record_is_at_every_place_equally_often"
    ),
    "samplers/test_sampler_state.py": (
        "test_a_plain_iteration_resumes_at_every_number test_every_position_resumes_exactly_at_every_number_of_ranks"
    ),
    "sources/test_list_paths.py": "test_blocks_are_read_as_single_lines_are",
    "stats/test_stats.py": "test_mean_and_std_are_exact test_raw_images_of_one_shape",
    "stores/test_commands.py": "test_ctrl_c_while_the_store_does_not_answer",
    "test_cli_commands.py": "test_folder test_voc_and_list_merge test_voc_padded",
    "test_cli_options.py": "test_reports_show_paths_as_they_were_typed",
    "test_planted_links.py": "test_no_link_at_a_name_is_followed",
    "torture/test_torture_builds.py": "test_a_fault_at_any_call",
    "torture/test_torture_changes.py": "test_a_change_meets_a_fault",
    "torture/test_torture_packs.py": "test_damage",
}
FIRST_CASES = {
    "bench/test_bench_compare.py::test_own_loops_measure_about_the_same": 0,
    "bench/test_bench_pack.py::test_cold_tune_prints_a_line_that_reads_the_pack": 0,
    "bench/test_bench_pack.py::test_packs_of_images_of_many_sizes_are_swept_too": 0,
    "bench/test_bench_pack.py::test_tune_without_an_index": 0,
    "audit/test_audit_strace.py::test_commands_touch_what_their_line_names": 1,
    "format/test_bits.py::test_a_child_does_not_wait_for_threads_that_set_bits_while_it_was_forked": 1,
    "format/test_joined.py::test_packs_of_many_shards": 1,
    "format/test_large_pack.py::test_at_a_url_an_index_is_fetched_when_its_shard_is_read": 1,
    "format/test_large_pack.py::test_an_epoch_begins_without_an_array_over_all_records": 0,
    "format/test_large_pack.py::test_at_a_url_indexes_that_are_not_here_yet_count_for_the_cache": 0,
    "images/test_ops_decode.py::test_every_prefix_is_refused": 8,
    "images/test_ops_formats.py::test_every_prefix_is_refused": 8,
    "loading/test_dataset_loader.py::test_same_bytes_in_fresh_workers": 1,
    "loading/test_dataset_plain.py::test_a_worker_uses_memory_again_that_the_consumer_has_dropped": 1,
    "loading/test_loader_caches.py::test_crops_on_the_device_are_the_hosts_to_two_levels": 6,
    "loading/test_loader_remote.py::test_the_cache_need_only_hold_what_an_order_reads_at_a_time": 1,
    "packing/test_build_crash.py::test_many_in_any_shards_with_any_threads": 1,
    "packing/test_build_crash.py::test_an_image_that_is_never_finished": 1,
    "packing/test_build_current_folder.py::test_modules_there_are_not_imported": 1,
    "packing/test_build_limits.py::test_few_descriptors": 1,
    "packing/test_build_limits.py::test_too_little": 1,
    "packing/test_build_limits.py::test_shared_memory": 1,
    "packing/test_build_limits.py::test_little_memory": 1,
    "packing/test_build_limits.py::test_temporary_folder": 1,
    "packing/test_build_names.py::test_no_name_reaches_the_terminal_raw": 1,
    "packing/test_build_processes.py::test_terminate": 1,
    "packing/test_build_processes.py::test_ctrl_c_before_packing_has_begun": 0,
    "packing/test_build_processes.py::test_ctrl_c_again_and_again": 1,
    "packing/test_build_processes.py::test_at_any_moment": 2,
    "packing/test_build_real_boxes.py::test_bccd_drop_and_max_bad": 1,
    "packing/test_build_real_boxes.py::test_bccd_splits": 1,
    "packing/test_build_resume.py::test_other_options_are_refused": 3,
    "packing/test_build_same_bytes.py::test_any_number_of_workers": 2,
    "packing/test_build_same_bytes.py::test_threads_inside_one_shard": 1,
    "packing/test_build_same_bytes.py::test_threads_over_many_chunks": 0,
    "packing/test_plan.py::test_partitions_of_any_size": 1,
    "repack/test_purge.py::test_the_pack_is_whole_wherever_a_purge_dies": 1,
    "samplers/test_sampler_mixture.py::test_every_world_size_reads_the_same_and_resumes_what_another_left": 1,
    "samplers/test_sampler_ranks.py::test_every_batch_size_cuts_the_same_global_batches": 1,
    "sources/test_layouts.py::test_a_store_is_read_as_its_folder": 30,
    "sources/test_layouts.py::test_an_archive_is_read_as_its_folder": 30,
    "stats/test_stats_plot.py::test_class_names_do_not_overprint": 1,
    "system/test_processes.py::test_nothing_changes": 1,
    "system/test_processes.py::test_without_a_main_guard": 1,
    "test_cli_streams.py::test_build": 2,
    "test_cli_streams.py::test_json": 1,
    "test_cli_streams.py::test_other_commands": 3,
    "test_planted_links.py::test_nothing_that_an_interrupted_run_left_is_reached_through_a_link": 4,
    "test_planted_links.py::test_nor_as_another_user_than_root": 1,
    "test_plugins.py::test_names_that_nobody_adds": 0,
    "test_plugins.py::test_help_looks_for_no_package": 0,
    "test_without_torch.py::test_packing_needs_neither_torch_nor_jpeg4py": 1,
    "torture/test_torture_builds.py::test_short_writes": 1,
    "torture/test_torture_builds.py::test_random_kills": 0,
    "torture/test_torture_changes.py::test_random_kills_of_changes": 0,
    "torture/test_torture_loader.py::test_workers_take_no_more_memory_with_each_epoch": 0,
    "torture/test_torture_loader.py::test_opening_leaves_nothing": 1,
    "torture/test_torture_loader.py::test_epochs_left_early": 0,
    "torture/test_torture_loader.py::test_resume_positions": 1,
    "torture/test_torture_parsers.py::test_mutations": 3,
    "torture/test_torture_parsers.py::test_corpus": 3,
}
"""0: another test shows the same on a smaller scale, or by fewer repetitions."""
EVERY_CONTAINER = ("containers/", "golden/", "packing/test_build_formats.py", "repack/test_convert.py::test_every")
"""How the names of tests begin that have every container in the first tier, too."""
CONTAINER_NAMES = frozenset(("container", "format", "target"))
"""What tests call the container that they are given."""
LONG_PAGES = frozenset(
    ("quickstart.md", "formats.md", "guides/kaggle.md", "stats.md", "training.md", "packs.md", "labels.md")
)


def products() -> Iterator[str]:
    """The tests of EACH_VALUE, named as those of FIRST_CASES."""
    for file, names in EACH_VALUE.items():
        yield from (f"{file}::{name}" for name in names.split())


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Mark what the first tier leaves out."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[f"{item.path.relative_to(HERE).as_posix()}::{getattr(item, 'originalname', item.name)}"].append(item)
    kept: set[pytest.Item] = set()
    later: list[pytest.Item] = []
    for name in products():
        later += cases[name]
        kept.update(_one_for_each_value(cases[name]))
    for name, count in FIRST_CASES.items():
        later += cases[name]
        kept.update(cases[name][i * len(cases[name]) // count] for i in range(min(count, len(cases[name]))))
    later += [item for item in cases["test_docs_blocks.py::test_every_block_runs"] if item.callspec.id in LONG_PAGES]
    slow = {item for item in later if item not in kept}
    for name, group in cases.items():
        if not name.startswith(EVERY_CONTAINER):
            slow.update(_but_one_container([item for item in group if item not in slow], zlib.crc32(name.encode())))
    for item in slow:
        item.add_marker(pytest.mark.slow)


def _one_for_each_value(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The first of those cases that have most of the values that none before it has."""
    values = {item: set(enumerate(item.callspec._idlist)) for item in items if hasattr(item, "callspec")}
    missing = set().union(*values.values())
    while missing:
        best = max(values, key=lambda item: len(values[item] & missing))
        missing -= values[best]
        yield best


def _but_one_container(items: Sequence[pytest.Item], turn: int) -> Iterator[pytest.Item]:
    """Of the cases that differ in the container only, all but one; which one it is goes round with `turn`."""
    alike: dict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            given = item.callspec.params
            if any(given.get(name) in CONTAINERS for name in CONTAINER_NAMES):
                alike[tuple(part for part in item.callspec._idlist if part not in CONTAINERS)].append(item)
    for number, group in enumerate(alike.values()):
        del group[(turn + number) % len(group)]
        yield from group
