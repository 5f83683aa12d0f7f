"""The function that scales gradients, for loops whose plan scales them instead of eps."""

# fmt: off


def scale_gradients(optimizer):
    """Scale each group's gradients right before every step."""
    def scale(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(group["grad_scale"])
    return optimizer.register_step_pre_hook(scale)
