"""A fast third of the world: programs that know nothing of vario run watched as they do alone, and are told right."""

import pytest
from driver import programs, watch_program

from starting import start_warm

FAST = (
    *("gan", "wgan_penalty", "wgan_clip", "sam", "maml", "mean_teacher", "schedule_free", "lbfgs", "functional"),
    *("func_grad", "saved_models", "deep_copies", "complex_weights", "sparse_gradients", "caught_exceptions"),
    *("alternating_optimizers", "short_accumulation", "parametrized", "warm_restarts", "rate_schedules", "muon"),
    *("cross_validation", "early_stopping", "updates_in_backward", "adversarial_examples", "gradual_unfreezing"),
    *("growing_model", "lookahead", "threads", "manual_updates", "style_image", "physics_informed"),
    *("input_gradient_penalty", "two_losses", "raises", "accelerate_loop", "scripted"),
)


@pytest.mark.parametrize("name", FAST)
def test_a_program_runs_watched_as_it_does_alone(name, tmp_path):
    [path] = [path for kind in ("loops", "packages") for path in programs(kind) if path.stem == name]
    outcome = watch_program(path, tmp_path, start_warm)
    assert not outcome.problems, "\n".join(outcome.problems)
