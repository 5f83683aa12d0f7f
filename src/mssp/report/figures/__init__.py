"""Figures: of sweeps, of a check, of predicted against measured exponents, of limits beside networks."""
