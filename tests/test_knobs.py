"""Every setting of every config is shown to do something: a list that a new setting is missing from until it is shown.

tests/test_knobs_methods.py, _stages.py and _data.py change one setting at a time and look at what comes of it. What a
test elsewhere shows is named in PROVEN. What has no default is refused where it is not given. Of the settings of
benchmarks it is only seen that their code reads them.
"""

import ast
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asa.config import from_dict
from asa.errors import RequestError
from asa.methods import MethodsConfig
from finetune.config import FinetuneConfig, TuneConfig
from tests import knobs_worker, test_knobs_data, test_knobs_methods, test_knobs_stages

ROOT = Path(__file__).parent
PACKAGES = ("asa", "data_prep", "pretrain", "finetune", "launch", "benchmarks")
# Setting -> the test that shows what it does.
PROVEN = {
    "DedupConfig.near": "data_prep/test_dedup.py::test_duplicates_go_and_the_first_stays",
    "DedupConfig.overwrite": "test_knobs_data.py::test_overwrite_lets_other_settings_take_a_folder",
    "DedupConfig.workers": "data_prep/test_dedup.py::test_dedup_is_the_same_for_any_number_of_workers",
    "BuildConfig.documents": "data_prep/test_commands.py::test_build_from_documents",
    "BuildConfig.dumps": "data_prep/test_build.py::test_machines_share_a_build",
    "BuildConfig.leads": "data_prep/test_dedup.py::test_equal_texts_alone_and_leads_among_them",
    "BuildConfig.overwrite": "data_prep/test_commands.py::test_up_to_date_then_refused_then_replaced",
    "BuildConfig.shard": "data_prep/test_build.py::test_machines_share_a_build",
    "BuildConfig.workers": "data_prep/test_commands.py::test_same_input_same_bytes_for_any_number_of_workers",
    "InspectConfig.page": "data_prep/test_inspect.py::test_rows_counts_and_lengths",
    "InspectConfig.rows": "data_prep/test_inspect.py::test_rows_counts_and_lengths",
    "MergeConfig.overwrite": "data_prep/test_extract.py::"
    "test_files_that_no_manifest_lists_are_neither_read_nor_replaced",
    "SampleConfig.assets": "data_prep/test_sample.py::test_an_unknown_asset_is_a_wrong_request",
    "TextConfig.overwrite": "data_prep/test_extract.py::"
    "test_files_that_no_manifest_lists_are_neither_read_nor_replaced",
    "TextConfig.workers": "data_prep/test_extract.py::test_shards_merge_into_the_bytes_of_one_run",
    "TokenizerConfig.overwrite": "data_prep/test_tokenizer.py::"
    "test_a_trained_vocabulary_is_reused_refused_and_replaced",
    "VerifyConfig.model": "data_prep/test_check.py::test_another_vocabulary_is_found",
    "ExportConfig.overwrite": "pretrain/test_run.py::test_exporting_over_anything_but_an_export_is_refused",
    "PretrainConfig.hang_timeout": "pretrain/test_watchdog.py::test_a_process_that_stands_still_ends_with_its_stack",
    "PretrainConfig.on_nonfinite": "pretrain/test_faults.py::"
    "test_skipped_by_configuration_the_run_goes_on_without_that_update",
    "PretrainConfig.on_save_error": "pretrain/test_faults.py::"
    "test_a_checkpoint_that_cannot_be_written_ends_the_run_or_not_as_configured",
    "PretrainConfig.wandb": "pretrain/test_run.py::test_weights_and_biases_without_its_package",
    "RTDConfig.generator": "pretrain/test_rtd.py::test_an_exported_pair_is_where_the_next_run_starts",
    "MethodsConfig.outside": "finetune/test_together.py::test_a_failed_run_holds_no_memory_while_others_are_made",
    "random_mask.schedule": "asa/test_random_mask.py::test_shares_follow_the_schedule_step_by_step_and_layer_by_layer",
    "FinetuneConfig.adversary": "finetune/test_loop.py::"
    "test_an_exported_adversary_is_the_start_where_asked_for_and_there_is_one",
    "FinetuneConfig.data": "finetune/test_tasks_load.py::test_no_files_and_no_place_are_told",
    "FinetuneConfig.holdout": "finetune/test_score.py::test_a_model_is_scored_on_the_rows_that_its_own_run_held_out",
    "FinetuneConfig.overwrite": "finetune/test_sweep.py::"
    "test_a_finished_run_with_other_settings_is_refused_unless_overwritten",
    "FinetuneConfig.paper_compat": "finetune/test_tasks_load.py::"
    "test_paper_compat_adds_rows_chooses_on_the_scored_ones_and_changes_the_main_score",
    "FinetuneConfig.recipes": "test_knobs_data.py::test_a_recipe_and_a_preset_are_taken_where_asked_for",
    "FinetuneConfig.tasks": "finetune/test_sweep.py::"
    "test_a_standard_task_starts_from_its_recipe_and_flags_have_the_last_word",
    "TuneConfig.seeds": "finetune/test_tune.py::test_the_best_on_dev_is_chosen_and_nothing_but_dev_is_scored",
    "TuneConfig.trials": "finetune/test_tune.py::test_trials_fill_the_ranges_and_more_of_them_begin_with_the_same",
    "MapsConfig.beside": "finetune/test_maps.py::test_a_second_models_attention_stands_beside",
    "MapsConfig.head": "finetune/test_maps.py::test_a_head_is_one_of_those_whose_mean_is_drawn",
    "MapsConfig.layers": "finetune/test_maps.py::test_a_second_models_attention_stands_beside",
    "ReportConfig.repeated": "finetune/test_report.py::test_weights_trained_anew_for_every_seed_are_one_model",
    "ScoreConfig.batch": "test_knobs_data.py::test_rows_of_a_pass_are_those_that_were_asked_for",
    "ScoreConfig.data": "test_knobs_data.py::test_attacks_and_scores_read_standard_tasks_where_they_are_told",
    "ScoreConfig.length": "finetune/test_score.py::test_a_run_scored_on_its_own_task_gives_what_it_recorded",
    "ScoreConfig.map": "test_knobs_data.py::test_classes_that_are_one_are_merged_as_asked_for",
    "ScoreConfig.merge": "test_knobs_data.py::test_classes_that_are_one_are_merged_as_asked_for",
    "ScoreConfig.overwrite": "finetune/test_score.py::test_a_run_scored_on_its_own_task_gives_what_it_recorded",
    "ScoreConfig.tasks": "finetune/test_score.py::test_wrong_requests_are_one_line",
    "SubmitConfig.partial": "finetune/test_submit.py::test_missing_tasks_are_told_and_nothing_is_written",
    "RobustnessConfig.batch": "finetune/test_robustness.py::test_answers_that_a_row_has_not_take_no_part",
    "RobustnessConfig.map": "finetune/test_robustness.py::test_classes_without_names_in_common_are_mapped",
    "RobustnessConfig.data": "test_knobs_data.py::test_attacks_and_scores_read_standard_tasks_where_they_are_told",
    "EnsembleConfig.overwrite": "finetune/test_submit.py::test_an_ensemble_averages_probabilities_and_can_be_submitted",
    "RobustnessConfig.overwrite": "test_knobs_data.py::test_overwrite_lets_other_settings_take_a_folder",
    "RobustnessConfig.tasks": "test_knobs_data.py::test_attacks_and_scores_read_standard_tasks_where_they_are_told",
    "Source.keys": "test_knobs_data.py::test_files_are_where_a_source_says_and_its_keys_hold_there",
    "HubSource.config": "test_knobs_data.py::test_a_place_on_the_hub_is_asked_for_as_its_settings_say",
    "HubSource.revision": "test_knobs_data.py::test_a_place_on_the_hub_is_asked_for_as_its_settings_say",
    "HubSource.keys": "finetune/test_tasks_load.py::test_the_hub_form_of_a_task_is_read_from_a_local_repository",
    "TaskConfig.name": "finetune/test_tasks.py::test_a_folder_names_its_task_unless_the_request_does",
    "TaskConfig.folder": "finetune/test_tasks.py::test_a_folder_names_its_task_unless_the_request_does",
    "TaskConfig.kind": "finetune/test_tasks_load.py::test_own_data_is_the_same_task_in_every_format",
    "TaskConfig.train": "finetune/test_tasks_names.py::test_files_are_named_with_commas_between",
    "TaskConfig.dev": "finetune/test_tasks_load.py::test_who_trains_who_chooses_who_is_scored",
    "TaskConfig.test": "finetune/test_tasks_load.py::test_who_trains_who_chooses_who_is_scored",
    "TaskConfig.submit": "finetune/test_tasks_load.py::test_subsets_and_further_files_are_scored_apart",
    "TaskConfig.extra": "finetune/test_tasks_load.py::test_subsets_and_further_files_are_scored_apart",
    "TaskConfig.subsets": "finetune/test_tasks_load.py::test_subsets_and_further_files_are_scored_apart",
    "TaskConfig.also": "finetune/test_tasks_load.py::test_only_tasks_of_a_kind_are_trained_on_together",
    "TaskConfig.format": "test_knobs_data.py::test_a_format_that_is_given_counts_more_than_an_ending",
    "TaskConfig.header": "finetune/test_tasks_files.py::"
    "test_a_line_of_names_is_read_as_such_whether_it_is_there_or_not",
    "TaskConfig.entry": "finetune/test_tasks_files.py::"
    "test_a_missing_file_another_encoding_and_a_missing_entry_are_told",
    "TaskConfig.broken": "finetune/test_tasks_load.py::test_a_value_that_is_none_is_no_label",
    "TaskConfig.text": "finetune/test_tasks_load.py::test_own_data_is_the_same_task_in_every_format",
    "TaskConfig.choices": "finetune/test_tasks_load.py::"
    "test_the_right_answer_is_a_number_a_letter_a_text_or_its_own_name",
    "TaskConfig.form": "finetune/test_tasks_load.py::test_a_form_says_what_the_encoder_reads",
    "TaskConfig.literals": "finetune/test_tasks_load.py::test_python_bytes_repeated_dialogues_and_missing_labels",
    "TaskConfig.ranked": "finetune/test_ranking.py::test_a_task_of_pairs_is_loaded_as_a_choice",
    "TaskConfig.first_of": "finetune/test_tasks_load.py::test_python_bytes_repeated_dialogues_and_missing_labels",
    "TaskConfig.label": "finetune/test_cut.py::test_words_beyond_the_length_are_counted_told_and_scored_as_o",
    "TaskConfig.labels": "finetune/test_tasks_load.py::test_labels_are_names_or_numbers",
    "TaskConfig.spellings": "finetune/test_tasks_load.py::test_labels_are_names_or_numbers",
    "TaskConfig.metrics": "finetune/test_cut.py::test_words_beyond_the_length_are_counted_told_and_scored_as_o",
    "TaskConfig.recipe": "test_knobs_data.py::test_a_recipe_and_a_preset_are_taken_where_asked_for",
    "TaskConfig.paper_compat": "finetune/test_tasks_load.py::"
    "test_paper_compat_adds_rows_chooses_on_the_scored_ones_and_changes_the_main_score",
    "TaskConfig.hub": "finetune/test_tasks_load.py::test_the_hub_form_of_a_task_is_read_from_a_local_repository",
    "TaskConfig.partial": "finetune/test_tasks_load.py::test_a_part_of_a_published_set_is_told",
    "TaskConfig.sources": "test_knobs_data.py::test_files_are_where_a_source_says_and_its_keys_hold_there",
    "FinetuneOptions.nproc": "launch/test_requests.py::test_only_a_command_that_reads_tasks_from_the_hub_may_reach_it",
    "FinetuneOptions.dry_run": "launch/test_requests.py::test_the_processes_of_a_run_get_its_flags",
    "FinetuneOptions.ranks": "launch/test_requests.py::test_the_processes_of_a_run_get_its_flags",
    "ClusterOptions.nproc": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.dry_run": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.hostfile": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.node_rank": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.master_addr": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.master_port": "launch/test_requests.py::test_a_dry_run_shows_the_command_line_alone",
    "ClusterOptions.slurm": "launch/test_slurm.py::test_the_file_is_shown_or_submitted",
    "ClusterOptions.nodes": "launch/test_slurm.py::test_the_file_is_sound_bash_and_says_what_was_asked_for",
    "ClusterOptions.time": "launch/test_slurm.py::test_the_file_is_sound_bash_and_says_what_was_asked_for",
    "ClusterOptions.partition": "launch/test_slurm.py::test_the_file_is_sound_bash_and_says_what_was_asked_for",
    "ClusterOptions.sbatch": "launch/test_slurm.py::test_the_file_is_shown_or_submitted",
}


def configs() -> Iterator[Any]:
    """The config classes of all packages, but for those that others only extend."""
    found: list[Any] = []
    for name in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                held = vars(importlib.import_module(module.name)).values()
                found += [one for one in held if isinstance(one, type) and hasattr(one, "__pydantic_fields__")]
    kinds = {type(value) for value in vars(MethodsConfig()).values()}  # SmoothConfig is used itself and extended,
    kinds.add(FinetuneConfig)  # and so is this
    extended = {base for one in found for base in one.__mro__[1:]} - kinds
    yield from dict.fromkeys(one for one in found if dataclasses.is_dataclass(one) and one not in extended)


CONFIGS = {cls.__name__: cls for cls in configs()}
GROUPS = {field.name: field.type for field in dataclasses.fields(MethodsConfig) if dataclasses.is_dataclass(field.type)}


def settings() -> dict[str, bool]:
    """CLASS.FIELD, of a method's settings GROUP.FIELD -> whether it has a default. Of a group its fields alone."""
    groups = {kind: group for group, kind in GROUPS.items() if group != "alum"}
    found = {f"alum.{field.name}": True for field in dataclasses.fields(GROUPS["alum"])} | {
        "MethodsConfig.outside": True
    }
    for cls in CONFIGS.values():
        shared = GROUPS.keys() | {"outside"} if issubclass(cls, MethodsConfig) else set()
        if cls is TuneConfig:
            shared |= {field.name for field in dataclasses.fields(FinetuneConfig)} - TuneConfig.__annotations__.keys()
        for field in dataclasses.fields(cls) if cls is not GROUPS["alum"] else ():
            if field.name not in shared and not dataclasses.is_dataclass(field.type):
                found[f"{groups.get(cls, cls.__name__)}.{field.name}"] = not needed(cls, field.name)
    return found


def needed(cls: Any, name: str) -> bool:
    return cls.__pydantic_fields__[name].is_required()


def shown() -> set[str]:
    """The settings that the tables of the neighbouring files change."""
    found = {f"{group}.{field}" for group, knobs in test_knobs_methods.METHOD_KNOBS.items() for field in knobs}
    found |= {f"OptimConfig.{field}" for field in test_knobs_methods.OPTIM_KNOBS}
    tables = {
        "PretrainConfig": [*knobs_worker.PRETRAIN, "deterministic"],
        "FinetuneConfig": [*knobs_worker.FINETUNE, *test_knobs_stages.FINETUNE],
        "TextConfig": test_knobs_data.TEXT,
        "BuildConfig": test_knobs_data.BUILD,
        "TokenizerConfig": test_knobs_data.TOKENIZER,
        "RobustnessConfig": test_knobs_data.ROBUSTNESS,
    }
    found |= {f"{name}.{field}" for name, table in tables.items() for field in table}
    return {name.replace("PretrainConfig.rtd.", "RTDConfig.") for name in found}


def test_no_setting_is_without_a_proof_and_no_proof_without_a_setting() -> None:
    every, proven = settings(), shown() | PROVEN.keys()
    measured = tuple(f"{name}." for name, cls in CONFIGS.items() if cls.__module__.startswith("benchmarks"))
    assert {name for name, free in every.items() if free and not name.startswith(measured)} - proven == set()
    assert proven - every.keys() == set()


@pytest.mark.parametrize("setting", PROVEN)
def test_the_test_that_is_named_is_there_and_speaks_of_the_setting(setting: str) -> None:
    file, name = PROVEN[setting].split("::")
    said = spoken((ROOT / file).read_text(), name).replace("--dry-run", "--dry_run")
    assert re.search(rf"\b{setting.rpartition('.')[2]}\b", said)


def spoken(text: str, name: str) -> str:
    """A test's source, with that of the tables, fixtures and helpers of its file which it uses."""
    lines, parts = text.splitlines(), dict[str, str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            parts[node.name] = "\n".join(
                lines[min(d.lineno for d in [node, *node.decorator_list]) - 1 : node.end_lineno]
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            parts[ast.unparse(target)] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    own = parts[name]
    return "\n".join([own, *(parts[word] for word in set(re.findall(r"\w+", own)) & parts.keys() - {name})])


@pytest.mark.parametrize(
    "cls", [cls for cls in CONFIGS.values() if any(needed(cls, name) for name in cls.__pydantic_fields__)]
)
def test_what_has_no_default_is_asked_for(cls: Any) -> None:
    names = [name for name in cls.__pydantic_fields__ if needed(cls, name)]
    with pytest.raises(RequestError) as caught:
        from_dict(cls, {})
    assert [name for name in names if f"{name} is not set; give --{name}" not in str(caught.value)] == []


def test_benchmarks_read_every_setting_they_have() -> None:
    trees = [ast.parse(path.read_text()) for path in (ROOT.parent / "benchmarks").glob("*.py")]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    mine = [cls for cls in CONFIGS.values() if cls.__module__.startswith("benchmarks")]
    assert {field.name for cls in mine for field in dataclasses.fields(cls)} - read == set()
