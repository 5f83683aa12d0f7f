"""Functions that build figures: of sweeps, of checks, of predicted and measured exponents, of limits."""
