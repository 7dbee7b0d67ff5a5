"""Does the suite notice a wrong library? Breaks one important line of asa/ at a time and asks for a test that fails.

`python -m tests.mutations` works in a copy of the tree. Exit code 1 where a mutant survives its test, or a line or a
test is not found any more.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "assets", "data", "runs", "build", "dist")
PASSED, FAILED = 0, 1  # exit codes of pytest; others tell that it ran no test


class Mutation(NamedTuple):
    """What is broken; in which file of asa/; the text there, once, and what stands in its place; the test to fail."""

    what: str
    file: str
    text: str
    wrong: str
    test: str


MUTATIONS = (
    Mutation(
        "the adversary's gradient is not reversed",
        "adversary.py",
        "slope.mul_(-ctx.scale / ctx.temperature)",
        "slope.mul_(ctx.scale / ctx.temperature)",
        "asa/test_adversary.py::test_the_gradient_is_the_sigmoids_reversed_and_scaled",
    ),
    Mutation(
        "the keep map is soft",
        "adversary.py",
        "return (x > 0).to(x.dtype)",
        "return torch.sigmoid(x)",
        "asa/test_adversary.py::test_keep_is_exactly_zero_or_one_in_every_precision",
    ),
    Mutation(
        "the adversary's gradient goes on into the model",
        "adversary.py",
        "_wide(h_BLD.detach())",
        "_wide(h_BLD)",
        "asa/test_adversary.py::test_hidden_states_get_no_gradient_from_the_adversary",
    ),
    Mutation(
        "padding keys are attended",
        "biased.py",
        " * seen_BLL + (1 - seen_BLL) * unseen",
        " * seen_BLL",
        "asa/test_families.py::test_what_padding_holds_never_reaches_a_real_position",
    ),
    Mutation(
        "what sees no key attends to padding",
        "dispatch.py",
        "context.masked_fill(blind_BL[..., None, None], 0)",
        "context",
        "asa/test_families.py::test_a_row_of_padding_alone_is_under_a_map_what_it_is_without",
    ),
    Mutation(
        "a query that keeps no key stays so",
        "biased.py",
        "return keep_BLL * (1 - empty_BL1) + empty_BL1",
        "return keep_BLL * (1 - empty_BL1)",
        "asa/test_attention.py::test_a_query_that_keeps_no_real_key_attends_as_if_unmasked",
    ),
    Mutation(
        "the penalty has weight tau",
        "losses.py",
        "return tau**2 * kept / batch.total_rows",
        "return tau * kept / batch.total_rows",
        "asa/test_losses.py::test_the_penalty_is_tau_squared_times_the_attended_units_of_real_queries_per_row",
    ),
    Mutation(
        "the task's loss is a mean of the micro-batch",
        "losses.py",
        "return loss / batch.total_labels",
        "return loss / (labels != IGNORE).sum()",
        "asa/test_losses.py::test_the_terms_of_two_pieces_add_up_to_those_of_the_whole",
    ),
    Mutation(
        "a fixed target learns",
        "losses.py",
        "clean = clean.detach()",
        "clean = clean.clone()",
        "asa/test_losses.py::test_with_stop_gradient_the_clean_pass_learns_nothing",
    ),
    Mutation(
        "a perturbation may leave its ball",
        "perturb.py",
        "scale_E1.clamp_max(1)",
        "scale_E1.clamp_min(1)",
        "asa/test_methods.py::test_perturbations_stay_in_their_ball_reach_it_and_leave_padding_alone",
    ),
    Mutation(
        "passes that share dropout draw their own masks",
        "engine.py",
        "torch.set_rng_state(cpu)",
        "torch.get_rng_state()",
        "asa/test_engine.py::test_same_dropout_repeats_the_masks_and_forward_outside_does_not",
    ),
    Mutation(
        "making SMART's teacher moves the random state",
        "model.py",
        "fork_rng(devices=[])",
        "fork_rng(enabled=False)",
        "asa/test_smart.py::test_the_teacher_has_no_dropout_and_takes_no_random_number_from_the_model",
    ),
    Mutation(
        "gradients are not clipped",
        "optim.py",
        "nn.utils.clip_grads_with_norm_(parameters, self.clip, self._global_grad_norm)",
        'nn.utils.clip_grads_with_norm_(parameters, float("inf"), self._global_grad_norm)',
        "asa/test_engine.py::test_the_norm_is_told_before_clipping_and_zero_turns_clipping_off",
    ),
    Mutation(
        "a gradient that is not finite is applied",
        "optim.py",
        "self.overflow = not bool(torch.isfinite(self._global_grad_norm))",
        "self.overflow = False",
        "asa/test_engine.py::test_a_gradient_that_is_not_finite_is_cleared_and_changes_nothing",
    ),
    Mutation(
        "DeepSpeed's mean over ranks is applied in place of the sum",
        "zero.py",
        "self._vetoed(loss) * dist.world()",
        "self._vetoed(loss)",
        "contract/test_engines.py::test_update_equals_the_plain_reference[zero2-asa-2-2]",
    ),
    Mutation(
        "damaged files pass as whole",
        "manifest.py",
        'if found != listed[name]["sha256"]:',
        'if len(found) != len(listed[name]["sha256"]):',
        "asa/test_checkpoint.py::test_a_flipped_byte_is_found_before_anything_is_loaded",
    ),
    Mutation(
        "what a removal begins with is left to chance",
        "places.py",
        "        (folder / first).unlink(missing_ok=True)\n    except OSError",
        "        (folder / first).exists()\n    except OSError",
        "asa/test_places.py::test_what_a_kill_leaves_of_a_removed_folder_is_not_whole",
    ),
    Mutation(
        "what a mask lets be seen is believed after it changed",
        "biased.py",
        " and then == changes",
        "",
        "asa/test_attach.py::test_a_mask_that_is_changed_between_two_layers_is_looked_at_again",
    ),
    Mutation(
        "a block that stands twice is taken to leave tokens out",
        "parts.py",
        "len(set(blocks)) == len(blocks) == int(number)",
        "len(blocks) == int(number)",
        "asa/test_trimmed.py::test_a_block_that_stood_twice_before_attach_computes_all_tokens",
    ),
    Mutation(
        "a last block that was wrapped is taken to leave tokens out",
        "parts.py",
        " and _inside(blocks[-1]) == last.modules",
        "",
        "asa/test_trimmed.py::test_a_last_block_that_is_another_since_attach_computes_all_tokens",
    ),
    Mutation(
        "what is recomputed is not perturbed where checkpointing was switched on in the pass",
        "attention.py",
        "        recall(blocks_of(module, layers), signal)",
        "        pass",
        "asa/test_recompute.py::test_checkpointing_switched_on_at_any_time_recomputes_what_was",
    ),
    Mutation(
        "a copied block keeps the hooks that came with it",
        "biased.py",
        "    unseat(module)  # of",
        "    # of",
        "asa/test_attach.py::test_a_copied_block_obeys_the_model_it_was_put_into",
    ),
    Mutation(
        "blocks that obey another model are left alone without a word",
        "attention.py",
        "        _check_seats(attached)\n",
        "        pass\n",
        "asa/test_attach.py::test_of_two_models_that_share_blocks_the_one_that_is_no_longer_obeyed_says_so",
    ),
    Mutation(
        "a last block that became the first is taken to leave tokens out",
        "parts.py",
        " == int(number) + 1:",
        ":",
        "asa/test_trimmed.py::test_a_block_that_is_left_alone_computes_all_tokens",
    ),
    Mutation(
        "what a full disk took of a curve's point is left there",
        "curves.py",
        "        file.truncate(before)\n",
        "",
        "asa/test_record.py::test_curves_that_the_system_refuses_for_a_while_go_on_after_it",
    ),
    Mutation(
        "what was known of a padding mask is believed after it changed",
        "batch.py",
        " and version(mask) == self.version",
        "",
        "asa/test_waits.py::test_what_was_seen_of_a_mask_holds_for_that_mask_alone",
    ),
    Mutation(
        "a mask that is not the batch's own is passed over",
        "attention.py",
        "or not looked.holds(mask)",
        "",
        "asa/test_waits.py::test_what_is_added_later_gets_the_mask_and_may_give_another",
    ),
    Mutation(
        "a head that was replaced is not noticed",
        "stock.py",
        "if part is not base",
        "if part is base",
        "asa/test_trimmed.py::test_a_head_that_is_replaced_later_gets_all_tokens",
    ),
    Mutation(
        "a masked LM's head of one's own gets masked tokens alone",
        "model.py",
        "stock = has_stock_head(model)",
        "stock = True",
        "asa/test_trimmed.py::test_a_masked_lms_head_of_ones_own_gets_all_tokens",
    ),
    Mutation(
        "padding's queries are paid for",
        "losses.py",
        'kept_BL * ~pad_BL if rows == "valid" else kept_BL',
        "kept_BL",
        "asa/test_losses.py::test_the_penalty_is_tau_squared_times_the_attended_units_of_real_queries_per_row",
    ),
    Mutation(
        "attention of several rows on a CPU gives their masks one gradient",
        "cpu_attention.py",
        "len(d_scores) if len(found_mask) > 1 else 1",
        "1",
        "asa/test_cpu_attention.py::test_without_dropout_it_is_torchs",
    ),
    Mutation(
        "the fused norm's gradient leaves out that its deviation moves",
        "fused/normal.py",
        "(slope_RD - normal_RD * along_R[:, None] - level_R[:, None])",
        "(slope_RD - level_R[:, None])",
        "fused/test_norms.py::test_the_norm_and_its_gradients_are_the_formulas",
    ),
    Mutation(
        "the bias before a fused activation gets the gradient twice",
        "forwards.py",
        "dense.bias.detach()",
        "dense.bias",
        "fused/test_gelu.py::test_a_family_is_what_it_was",
    ),
    Mutation(
        "a dense layer that somebody watches is fused",
        "forwards.py",
        " and not _watched(*parts)",
        "",
        "fused/test_norms.py::test_a_part_that_somebody_has_changed_or_watches_is_left_to_torch",
    ),
    Mutation(
        "an ascent on ZeRO 3 computes all weights' gradients beside",
        "zero_linear.py",
        "return _torch._C._will_engine_execute_node(node)",
        "return True",
        "asa/test_zero_engine.py::test_an_ascent_on_zero_3_computes_no_gradient_of_a_weight",
    ),
    Mutation(
        "several ranks' gradients are summed, where a mean was promised to DeepSpeed",
        "zero_at_once.py",
        ".div_(dist.world())",
        "",
        "precision/test_matrix.py::test_two_ranks_whose_gradients_are_summed_at_once_do_so_as_well",
    ),
    Mutation(
        "further pieces of gradients take the place of earlier passes'",
        "zero_at_once.py",
        "place.copy_(new) if first else place.add_(new)",
        "place.copy_(new)",
        "precision/test_matrix.py::test_it_follows_the_plain_engine_resumes_and_skips_a_bad_gradient",
    ),
    Mutation(
        "the clean prediction's part in the fused divergence's gradient has the other sign",
        "fused/vocabulary.py",
        "d_p_T += p_T * (forth * gap_T + (back",
        "d_p_T += p_T * (-forth * gap_T + (back",
        "fused/test_losses.py::test_losses_and_gradients_are_torchs",
    ),
    Mutation(
        "gradients of clean rows are not put beside the attacked ones",
        "fused/beside.py",
        "all_BHLK[: self.free].copy_(free_BHLK)",
        "all_BHLK[: self.free].zero_()",
        "fused/test_beside.py::test_both_at_once_are_what_each_is_alone",
    ),
    Mutation(
        "a loss of the model's own is known by its value alone",
        "integrations/own_loss.py",
        "elif not _pull_alike(theirs, ours, logits, batch.total_labels):",
        "elif False:",
        "integrations/test_own_loss.py::test_another_loss_is_refused_also_while_the_head_knows_nothing",
    ),
    Mutation(
        "a forward that was put into a class passes for Hugging Face's",
        "stock.py",
        " or not _as_written(part) for",
        " for",
        "asa/test_trimmed.py::test_a_forward_that_was_put_into_a_class_is_the_users",
    ),
    Mutation(
        "a user's forward under accelerate's autocast passes for accelerate's",
        "stock.py",
        'whole and all(place.startswith(("accelerate.", "torch.")) for _, place in found[:-1])',
        "whole",
        "asa/test_trimmed.py::test_a_users_forward_under_that_autocast_is_the_users",
    ),
    Mutation(
        "a TaskModel attacks by the settings of a later one",
        "model.py",
        "now is not None and _of_attention(now) != self._settings",
        "False",
        "asa/test_attach.py::test_a_task_model_attacks_by_no_other_settings_than_its_own",
    ),
)


def pytest(tree: Path, *tests: str) -> int:
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
    return subprocess.run(command, cwd=tree, capture_output=True).returncode


def verdict(tree: Path, mutation: Mutation) -> str:
    """ "killed", or what is wrong; the tree is left as it was."""
    file = tree / "asa" / mutation.file
    right = file.read_text()
    if right.count(mutation.text) != 1:
        return f"its text is found {right.count(mutation.text)} times"
    file.write_text(right.replace(mutation.text, mutation.wrong))
    code = pytest(tree, mutation.test)
    file.write_text(right)
    return {PASSED: "SURVIVED", FAILED: "killed"}.get(code, f"pytest ended with {code}, so no test was run")


def main() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        if pytest(tree, *(mutation.test for mutation in MUTATIONS)) != PASSED:
            print("the tests do not pass as the library is; run make test")
            return 1
        wrong = 0
        for mutation in MUTATIONS:
            found = verdict(tree, mutation)
            wrong += found != "killed"
            print(f"{found}: {mutation.what} (asa/{mutation.file}, tests/{mutation.test})", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
