"""Figures: of what sweeps found, of what a check measured, and of limits beside finite networks."""
